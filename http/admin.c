/*-------------------------------------------------------------------------
 *
 * admin.c
 *	  GET /live, /ready and /metrics, on an address of their own.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <string.h>

static struct MHD_Daemon *admin;
static BaseSource source;

static unsigned answer(const char *path, BaseText *text);
static void print_metrics(BaseText *text);

static enum MHD_Result
handle(void *arg, struct MHD_Connection *connection, const char *path,
	   const char *method, const char *version, const char *body,
	   size_t *length, void **state)
{
	struct MHD_Response *response;
	enum MHD_Result sent;
	BaseText	text = {0};
	unsigned	status = 405;

	if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
		status = answer(path, &text);
	else
		base_text_print(&text, "not allowed\n");
	response = http_response_text(&text, "text/plain; charset=utf-8");
	if (status == 405)
		MHD_add_response_header(response, "Allow", "GET, HEAD");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	sent = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return sent;
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
			db_listener_ready() && !http_server_draining();

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

bool
http_admin_start(const char *address)
{
	admin = http_server_daemon(address, &source, handle, false);
	return admin != NULL;
}

/* Returns in how many ms to be called again, -1 if there is no need. */
int64_t
http_admin_run(void)
{
	if (admin == NULL)
		return -1;
	return http_server_work(admin, &source);
}
