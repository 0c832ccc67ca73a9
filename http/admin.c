/*-------------------------------------------------------------------------
 *
 * admin.c
 *	  GET /live, /ready and /metrics, on an address of their own.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>

static void print_metrics(BaseText *text);

/* Can requests be answered, and is news heard? */
static bool
has_database(void)
{
	return db_pool_connected() > 0 && db_listener_ready();
}

void
http_admin(HttpRequest *request)
{
	const char *path = request->path;
	BaseText	text = {0};

	request->allowed = "GET, HEAD";
	if (strcmp(path, "/live") == 0)
		base_text_print(&text, "ok\n");
	else if (strcmp(path, "/ready") == 0)
	{
		if (has_database() && !job_ending())
			base_text_print(&text, "ok\n");
	}
	else if (strcmp(path, "/metrics") == 0)
		print_metrics(&text);
	else
	{
		http_problem(request, 404, "there is no such resource");
		return;
	}

	if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0)
		http_problem(request, 405, "this method is not allowed here");
	else if (text.length == 0)
		http_problem(request, 503, "there is no database, or the process ends");
	else
	{
		http_add(request, "Cache-Control", "no-store");
		http_respond_text(request, 200, "text/plain; charset=utf-8", &text);
	}
	free(text.data);
}

/* In the text format of Prometheus. */
static void
print_metrics(BaseText *text)
{
	JobStatistics jobs;

	job_statistics(&jobs);
	base_text_print(text, "# TYPE feedpub_http_responses_total counter\n");
	for (int i = 2; i <= 5; i++)
		base_text_print(text,
						"feedpub_http_responses_total{status=\"%dxx\"} %llu\n",
						i, (unsigned long long) http_responses(i));
	base_text_print(text,
					"# TYPE feedpub_http_jobs_total counter\n"
					"feedpub_http_jobs_total %llu\n"
					"# TYPE feedpub_http_jobs_joined_total counter\n"
					"feedpub_http_jobs_joined_total %llu\n",
					(unsigned long long) jobs.made,
					(unsigned long long) jobs.joined);
	base_text_print(text,
					"# TYPE feedpub_http_connections gauge\n"
					"feedpub_http_connections %d\n"
					"# TYPE feedpub_http_dropped_total counter\n"
					"feedpub_http_dropped_total %llu\n"
					"# TYPE feedpub_http_memory_bytes gauge\n"
					"feedpub_http_memory_bytes %zu\n"
					"# TYPE feedpub_http_waiting gauge\n"
					"feedpub_http_waiting %d\n"
					"# TYPE feedpub_http_pool_connections gauge\n"
					"feedpub_http_pool_connections %d\n"
					"# TYPE feedpub_http_database gauge\n"
					"feedpub_http_database %d\n",
					http_connection_count(), (unsigned long long) http_dropped(),
					http_memory(), jobs.waiting,
					db_pool_connected(), has_database());
}
