/*-------------------------------------------------------------------------
 *
 * listen.c
 *	  Announcements for programs that wait for many consumers: feed_listen().
 *
 * A program that has thousands of clients wait needs one connection for all:
 * it calls feed_listen() for each feed that one waits for, and LISTENs on the
 * extension's own channel.  The owner of the feed need not set a channel.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_listen);

/* how long a feed is announced after a call, in s */
#define LISTEN_TIME		3600

/*
 * feed_listen(feed regclass) returns text, VOLATILE
 *
 * Has each batch of a feed announced for an hour from now, by a NOTIFY on the
 * channel that it returns, with the feed's OID as payload.  A program that
 * listens on calls it again before the hour is over, and after the server was
 * started.  Order: LISTEN and commit, for LISTEN takes effect at commit;
 * feed_listen(); read; then wait for a notification.  Nothing is written, and
 * the call takes effect at once, whatever becomes of the transaction.  Starts
 * the worker if there is none.
 *
 * Needs SELECT on the table.  Takes ACCESS SHARE on it.  Errors: 42809 if it
 * is no feed, 42501, 22004, PF001, 25006 on a standby, where LISTEN fails too,
 * 53400 if too many databases have feeds.
 */
Datum
feed_listen(PG_FUNCTION_ARGS)
{
	Oid			relid;

	feedpub_argument_check(fcinfo, 0, 1);
	relid = PG_GETARG_OID(0);
	PreventCommandDuringRecovery("feed_listen()");
	feedpub_wait_check_feed(relid);
	if (!feedpub_shmem_listen(relid, GetCurrentTimestamp() + LISTEN_TIME * USECS_PER_SEC))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("batches of this database cannot be announced"),
				 feedpub_launcher_errdetail()));
	(void) feedpub_launcher_ensure(InvalidOid);
	PG_RETURN_TEXT_P(cstring_to_text(FEEDPUB_CHANNEL));
}
