/*-------------------------------------------------------------------------
 *
 * main.c
 *	  feedpub-http: starts the threads, and waits for signals.
 *
 * SIGTERM and SIGINT: no new clients, those that wait are answered, and when
 * all have been, or after --drain seconds, the process ends.  SIGHUP: settings
 * are read again.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <signal.h>
#include <stdio.h>

int
main(int argc, char **argv)
{
	sigset_t	signals;
	int			number;
	int			status;

	if (!http_config_load(argc, argv, &status))
		return status;

	/* blocked in all threads, taken by this one */
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);

	http_job_start();
	http_pool_start(http_config()->pool);
	http_listener_start();
	if (!http_server_start())
		return 1;
	if (*http_config()->admin != '\0' &&
		!http_admin_start(http_config()->admin))
		return 1;
	http_log(HTTP_LOG_INFO, "ready on %s", http_config()->listen);

	while (sigwait(&signals, &number) == 0 && number == SIGHUP)
		http_log(HTTP_LOG_INFO, http_config_reload() ? "settings reloaded" : "settings not reloaded");

	http_log(HTTP_LOG_INFO, "ending");
	http_server_drain();
	http_admin_stop();
	http_server_stop();
	http_listener_stop();
	http_job_stop();
	http_pool_stop();
	http_log(HTTP_LOG_INFO, "ended");
	return 0;
}
