/*-------------------------------------------------------------------------
 *
 * main.c
 *	  feedpub-relay: starts, and runs the loop until a signal ends it.
 *
 * SIGTERM and SIGINT: nothing more is sent, and when all that was sent is
 * acknowledged, or after --drain seconds, the process ends.  SIGHUP: settings
 * are read again.
 *
 *-------------------------------------------------------------------------
 */
#include "status/status.h"
#include "webhook/webhook.h"

#include <signal.h>

#define CHECK_TIMEOUT 30000		/* ms */

static int64_t ends_at;			/* ms, when it ends at the latest; 0: not yet */

static void take_signal(int number);
static bool run(int *status);

int
main(int argc, char **argv)
{
	int			status;

	if (!relay_config_load(argc, argv, &status))
		return status;
	base_loop_start();
	base_loop_signals(take_signal);
#ifdef HAVE_WEBHOOK
	feed_add_runner(&webhook_runner);
#endif
	if (!feed_start())
		return 2;
	if (*relay_config()->admin != '\0' && !status_listen(relay_config()->admin))
		return 1;
	if (relay_config()->check)
		ends_at = base_now() + CHECK_TIMEOUT;
	while (run(&status))
		;

	/* what is still open is closed with the process */
	base_log(BASE_LOG_INFO, "ended");
	return status;
}

static void
take_signal(int number)
{
	if (number == SIGHUP)
		base_log(BASE_LOG_INFO, relay_config_reload() && feed_reload() ? "settings reloaded" : "settings not reloaded");
	else if (ends_at == 0)
	{
		base_log(BASE_LOG_INFO, "ending");
		ends_at = base_now() + relay_config()->drain * INT64_C(1000);
		feed_end();
	}
}

/*
 * One round: deadlines, then what feeds have to do, then what ready descriptors
 * ask for.  Returns false when the process is to end.
 */
static bool
run(int *status)
{
	int64_t		now = base_now();
	int64_t		next;
	int64_t		timeout;

	base_timer_sweep();
	next = feed_work(now);
	if (feed_all_ended(status))
		return false;
	if (ends_at > 0 && now >= ends_at)
	{
		base_log(BASE_LOG_WARNING, relay_config()->check ? "there was no answer" : "not all that was sent has been acknowledged");
		*status = 1;
		return false;
	}
	if (ends_at > 0 && ends_at < next)
		next = ends_at;
	timeout = base_timer_sweep();
	now = base_now();
	if (next != INT64_MAX && (timeout < 0 || next - now < timeout))
		timeout = next > now ? next - now : 0;
	base_loop_wait(timeout);
	return true;
}
