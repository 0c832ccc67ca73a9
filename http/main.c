/*-------------------------------------------------------------------------
 *
 * main.c
 *	  feedpub-http: starts, and runs the loop until a signal ends it.
 *
 * SIGTERM and SIGINT: no new clients, those that wait are answered, and when
 * all have been, or after --drain seconds, the process ends.  SIGHUP: settings
 * are read again.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <malloc.h>
#include <signal.h>

/* bytes that are not given back to the system */
#define KEPT_MEMORY (16 * 1024 * 1024)

static int64_t ends_at;			/* ms, when it ends at the latest; 0: not yet */

static void take_signal(int number);
static bool run(void);
static int64_t earlier(int64_t a, int64_t b);

int
main(int argc, char **argv)
{
	int			status;

	if (!http_config_load(argc, argv, &status))
		return status;
	/* pages come and go: keep their memory, which costs more to get than to fill */
	mallopt(M_MMAP_THRESHOLD, KEPT_MEMORY);
	mallopt(M_TRIM_THRESHOLD, KEPT_MEMORY);
	base_loop_start();
	base_loop_signals(take_signal);
	db_pool_start();
	job_start();
	if (!http_listen(http_config()->listen, true, http_route))
		return 1;
	if (*http_config()->admin != '\0' &&
		!http_listen(http_config()->admin, false, http_admin))
		return 1;
	base_log(BASE_LOG_INFO, "ready on %s", http_config()->listen);
	while (run())
		;

	/* what is still open is closed with the process */
	base_log(BASE_LOG_INFO, "ended");
	return 0;
}

static void
take_signal(int number)
{
	if (number == SIGHUP)
	{
		base_log(BASE_LOG_INFO, http_config_reload() ? "settings reloaded" : "settings not reloaded");
		http_token_forget();
	}
	else if (ends_at == 0)
	{
		base_log(BASE_LOG_INFO, "ending");
		ends_at = base_now() + http_config()->drain * INT64_C(1000);
		http_stop_listening();
	}
}

/*
 * One round: what ready descriptors and deadlines ask for, then the requests
 * whose results are there, then the tasks that all of them asked for.  Returns
 * false when the process is to end.
 */
static bool
run(void)
{
	int64_t		now = base_now();
	int64_t		next = db_listener_sweep(now);
	int64_t		at;
	int64_t		timeout;

	base_timer_sweep();
	if (ends_at > 0)
	{
		if (http_server_drain() || now >= ends_at)
			return false;
		if (ends_at < next)
			next = ends_at;
	}
	http_server_work();
	db_pool_work();
	at = db_pool_sweep(now);
	if (at < next)
		next = at;

	/* what has begun in this round has deadlines too */
	timeout = base_timer_sweep();
	if (next != INT64_MAX)
		timeout = earlier(timeout, next > now ? next - now : 0);
	base_loop_wait(http_server_is_ready() ? 0 : timeout);
	return true;
}

/* -1 is never. */
static int64_t
earlier(int64_t a, int64_t b)
{
	if (a < 0 || b < 0)
		return a < 0 ? b : a;
	return a < b ? a : b;
}
