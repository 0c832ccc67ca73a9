/*-------------------------------------------------------------------------
 *
 * stamp.c
 *	  What comes with a writer's rows: a message's id, and a mark for the
 *	  worker when the transaction has committed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "port/pg_bswap.h"
#include "utils/timestamp.h"

#include "write/write.h"

PG_FUNCTION_INFO_V1(feedpub_message_id);

/* Random bytes, fetched in bulk: the system call is what costs most. */
static uint8 randomness[4096];
static int	randomness_used = sizeof(randomness);

/*
 * The feeds to which this transaction has written, for a mark when it has
 * committed.  Most transactions write to one.  If there are more than
 * MAX_STAMPED, stamped_more stands for all feeds.
 */
#define MAX_STAMPED	8

static Oid	stamped[MAX_STAMPED];
static int	nstamped = 0;
static bool stamped_more = false;
static TransactionId stamped_xid;

static void tell_worker(XactEvent event, void *arg);

/*
 * feedpub._message_id() returns text
 *
 * The default of message_id: a UUID of version 7 (RFC 9562), so that ids of
 * neighbouring messages are neighbours in a consumer's index too.  48 bits of
 * milliseconds, 12 of their fraction, 62 of strong randomness.
 */
Datum
feedpub_message_id(PG_FUNCTION_ARGS)
{
	static const char hex[] = "0123456789abcdef";
	uint8		id[16];
	uint64		now;
	uint64		micros;
	text	   *result;
	char	   *p;

	/* microseconds since 1970 */
	now = (uint64) (GetCurrentTimestamp() +
					(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY);
	micros = now % 1000;
	now = pg_hton64((now / 1000) << 16 | 0x7000 | (micros * 4096 / 1000));

	if (randomness_used + 8 > sizeof(randomness))
	{
		if (!pg_strong_random(randomness, sizeof(randomness)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		randomness_used = 0;
	}
	memcpy(id, &now, 8);
	memcpy(id + 8, randomness + randomness_used, 8);
	randomness_used += 8;
	id[8] = (id[8] & 0x3f) | 0x80;	/* the variant */

	result = (text *) palloc(VARHDRSZ + 36);
	SET_VARSIZE(result, VARHDRSZ + 36);
	p = VARDATA(result);
	for (int i = 0; i < 16; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		*p++ = hex[id[i] >> 4];
		*p++ = hex[id[i] & 0xf];
	}
	PG_RETURN_TEXT_P(result);
}

/*
 * Note a feed to which the transaction writes.  A rolled-back savepoint does
 * not remove the note: the worker looks once for nothing.
 */
void
feedpub_stamp_note(Oid relid, FullTransactionId xid)
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
	stamped_xid = XidFromFullTransactionId(xid);
	if (nstamped < MAX_STAMPED && OidIsValid(relid))
		stamped[nstamped++] = relid;
	else
		stamped_more = true;
}

/*
 * At the end of a transaction that wrote to feeds, set marks for the worker.
 * The commit is visible by now (xact.c: CommitTransaction calls this after
 * ProcArrayEndTransaction), so a process that is woken sees it.  An earlier
 * mark would lose the wake-up: the worker would look, find nothing, and take
 * the mark.  After PREPARE no callback runs when the transaction commits, so
 * its feeds are put on watch.
 */
static void
tell_worker(XactEvent event, void *arg)
{
	if (nstamped == 0 && !stamped_more)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			feedpub_shmem_mark(stamped, nstamped, stamped_more);
			break;
		case XACT_EVENT_PREPARE:
			feedpub_shmem_watch(stamped, nstamped, stamped_more, stamped_xid);
			break;
		case XACT_EVENT_ABORT:
			break;
		default:
			return;				/* not its end */
	}
	nstamped = 0;
	stamped_more = false;
}
