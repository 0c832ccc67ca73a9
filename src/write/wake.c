/*-------------------------------------------------------------------------
 *
 * wake.c
 *	  What a commit wakes: a mark for the worker when a transaction that wrote
 *	  to feeds has committed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"

#include "write/write.h"

/*
 * The feeds to which this transaction has written, for a mark when it has
 * committed.  Most transactions write to one.  If there are more than
 * MAX_STAMPED, stamped_more stands for all feeds.
 */
#define MAX_STAMPED	8

static Oid	stamped[MAX_STAMPED];
static int	nstamped = 0;
static bool stamped_more = false;
static bool makes_feed = false; /* this transaction */

static void tell_worker(XactEvent event, void *arg);

/*
 * Note a feed to which the transaction writes.  A rolled-back savepoint does
 * not remove the note: the worker looks once for nothing.
 */
void
feedpub_wake_note(Oid relid)
{
	static bool registered = false;

	if (nstamped > 0 && stamped[nstamped - 1] == relid)
		return;
	if (!registered)
	{
		RegisterXactCallback(tell_worker, NULL);
		registered = true;
	}
	for (int i = 0; i < nstamped; i++)
	{
		if (stamped[i] == relid)
			return;
	}

	/* now, since it may have to be looked up, which a callback must not do */
	(void) feedpub_shmem_database();
	if (nstamped < MAX_STAMPED && OidIsValid(relid))
		stamped[nstamped++] = relid;
	else
		stamped_more = true;
}

/*
 * Note a feed that the transaction makes.  A worker would not see it before, and
 * the database may have none.  Retention and the rows that are there do not wait
 * for a first reader.
 */
void
feedpub_wake_note_new(Oid relid)
{
	feedpub_wake_note(relid);
	makes_feed = true;
}

/*
 * At the end of a transaction that wrote to feeds, set marks for the worker.
 * The commit is visible by now (xact.c: CommitTransaction calls this after
 * ProcArrayEndTransaction), so a process that is woken sees it.  An earlier
 * mark would lose the wake-up: the worker would look, find nothing, and take
 * the mark.  After PREPARE no callback runs when the transaction commits, so
 * the worker is told to look for it (worker/prepared.c).
 */
static void
tell_worker(XactEvent event, void *arg)
{
	if (nstamped == 0 && !stamped_more)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			feedpub_shmem_mark(stamped, nstamped, stamped_more, false);
			if (makes_feed)
				(void) feedpub_launcher_ensure(InvalidOid);
			break;
		case XACT_EVENT_PREPARE:
			feedpub_shmem_mark(stamped, nstamped, stamped_more, true);
			break;
		case XACT_EVENT_ABORT:
			break;
		default:
			return;				/* not its end */
	}
	nstamped = 0;
	stamped_more = makes_feed = false;
}
