/*-------------------------------------------------------------------------
 *
 * admin.c
 *	  GET /live, /ready and /metrics, on an address of their own.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <string.h>

static unsigned answer(const char *path, BaseText *text);
static void print_metrics(BaseText *text);

void
http_admin(HttpRequest *request)
{
	BaseText	text = {0};
	unsigned	status = 405;

	if (strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0)
		status = answer(request->path, &text);
	else
		base_text_print(&text, "not allowed\n");
	if (status == 405)
		http_add(request, "Allow", "GET, HEAD");
	http_add(request, "Cache-Control", "no-store");
	http_respond_text(request, status, "text/plain; charset=utf-8", &text);
}

static unsigned
answer(const char *path, BaseText *text)
{
	if (strcmp(path, "/live") == 0)
	{
		base_text_print(text, "ok\n");
		return 200;
	}
	if (strcmp(path, "/ready") == 0)
	{
		bool		ready = db_pool_connected() > 0 &&
			db_listener_ready() && !job_ending();

		base_text_print(text, ready ? "ok\n" : "not ready\n");
		return ready ? 200 : 503;
	}
	if (strcmp(path, "/metrics") == 0)
	{
		print_metrics(text);
		return 200;
	}
	base_text_print(text, "not found\n");
	return 404;
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
					"# TYPE feedpub_http_waiting gauge\n"
					"feedpub_http_waiting %d\n"
					"# TYPE feedpub_http_pool_connections gauge\n"
					"feedpub_http_pool_connections %d\n",
					http_connection_count(), jobs.waiting,
					db_pool_connected());
}
