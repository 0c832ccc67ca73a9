/*-------------------------------------------------------------------------
 *
 * stamp.c
 *	  What runs inside a writer's INSERT: defaults and guards of an outbox.
 *
 * An outbox row is stamped by the defaults of its columns: feed_xid by
 * pg_current_xact_id(), feed_pos by feedpub._stamp_pos().  The functions are
 * declared STABLE although they are evaluated for each row: COPY buffers rows
 * for heap_multi_insert() only as long as no default is volatile
 * (copyfrom.c: CopyFrom), and a BEFORE ROW trigger would end that as well.
 *
 * The guard is a check constraint that calls feedpub._stamp_check(), which
 * accepts a stamp only if this transaction has just taken it: a forged one
 * could lie behind every cursor, and two rows of one position would break
 * paging.  A check is also enforced for COPY, for OVERRIDING SYSTEM VALUE,
 * for replica roles and in logical replication, all of which a trigger or an
 * identity column lets through.
 *
 * Order of events, which the published order's causality rests on: the xid
 * is assigned before the position is taken, and the position is taken while
 * the writer already holds whatever locks it took before the INSERT.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feedpub_stamp_pos);
PG_FUNCTION_INFO_V1(feedpub_stamp_check);
PG_FUNCTION_INFO_V1(feedpub_message_id);
PG_FUNCTION_INFO_V1(feedpub_guard_update);

/*
 * Positions that were taken and not yet seen by the check, youngest last.
 *
 * It is a stack because inserts nest: a trigger of the outbox may insert
 * into the same outbox between a row's defaults and its check.  What lies
 * above the entry that a check accepts belongs to rows that came to nothing
 * (a BEFORE trigger dropped them, a savepoint was rolled back), and goes with
 * it.  Entries of another transaction or of an earlier statement of the
 * client are void.  Should the stack become very large, because a trigger
 * drops row after row, entries go from its middle: what is waited for lies at
 * its ends, rows that are being nested in and the row at hand.
 */
typedef struct TakenPosition
{
	Oid			seqid;
	FullTransactionId xid;
	TimestampTz statement;
	int64		pos;
} TakenPosition;

#define MAX_TAKEN	65536

static TakenPosition *taken = NULL;
static int	ntaken = 0;
static int	taken_size = 0;

/*
 * Sequences that callers may advance without a right on them, because their
 * owner made one a feed's: those that feed_pos of a table takes its default
 * from.  An entry is voided by relcache invalidation of the sequence or the
 * table; entries are never freed, so that fn_extra can point to one.
 */
typedef struct FeedSequence
{
	Oid			seqid;			/* hash key, must be first */
	Oid			relid;			/* the feed's table */
	bool		valid;
} FeedSequence;

static HTAB *sequences = NULL;

/* Random bytes, fetched in bulk: the system call costs more than the rest. */
static uint8 randomness[4096];
static int	randomness_used = sizeof(randomness);

/*
 * The feeds that the present transaction has written to, for the worker to be
 * told when it has committed.  Most write to one; what does not fit stands
 * for all feeds.
 */
#define MAX_STAMPED	8

static Oid	stamped[MAX_STAMPED];
static int	nstamped = 0;
static bool stamped_more = false;
static TransactionId stamped_xid;

static void tell_worker(XactEvent event, void *arg);
static void invalidate_sequences(Datum arg, Oid relid);
static FeedSequence *find_sequence(Oid seqid);
static void verify_sequence(FeedSequence *sequence, Oid funcid);
static void push_taken(Oid seqid, FullTransactionId xid, int64 pos);
static bool pop_taken(Oid seqid, FullTransactionId xid, int64 pos);

/*
 * feedpub._stamp_pos(seq regclass) returns bigint, STABLE (see above)
 *
 * The default of feed_pos: the next position of a feed.  Needs no right on
 * the sequence, but works only on the sequence of a column whose default
 * calls it.
 *
 * Nor on the table: who inserts through a view need have none, and a default
 * is computed as himself.  So anybody may burn positions; they are no rows.
 */
Datum
feedpub_stamp_pos(PG_FUNCTION_ARGS)
{
	Oid			seqid = PG_GETARG_OID(0);
	FeedSequence *sequence = fcinfo->flinfo->fn_extra;
	FullTransactionId xid;
	int64		pos;

	if (sequence == NULL || sequence->seqid != seqid)
	{
		sequence = find_sequence(seqid);
		fcinfo->flinfo->fn_extra = sequence;
	}
	if (!sequence->valid)
	{
		if (get_rel_relkind(seqid) != RELKIND_SEQUENCE)
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("%u is not a sequence", seqid)));
		verify_sequence(sequence, fcinfo->flinfo->fn_oid);
	}

	/* the xid first, whatever order the columns are computed in */
	xid = GetTopFullTransactionId();
	pos = nextval_internal(seqid, !sequence->valid);
	push_taken(seqid, xid, pos);
	feedpub_stamp_note(sequence->relid, xid);
	PG_RETURN_INT64(pos);
}

/*
 * feedpub._stamp_check(seq regclass, feed_xid xid8, feed_pos bigint)
 * returns boolean
 *
 * The guard of an outbox, in a check constraint.  Raises PF004 for a stamp
 * that this transaction has not just taken from the feed's sequence.
 */
Datum
feedpub_stamp_check(PG_FUNCTION_ARGS)
{
	FullTransactionId xid = GetTopFullTransactionIdIfAny();
	Oid			relid = InvalidOid;
	int32		attno;
	const char *name = NULL;

	if (!PG_ARGISNULL(0) && !PG_ARGISNULL(1) && !PG_ARGISNULL(2) &&
		FullTransactionIdIsValid(xid) &&
		FullTransactionIdEquals(xid, PG_GETARG_FULLTRANSACTIONID(1)) &&
		pop_taken(PG_GETARG_OID(0), xid, PG_GETARG_INT64(2)))
		PG_RETURN_BOOL(true);

	if (!PG_ARGISNULL(0) &&
		sequenceIsOwned(PG_GETARG_OID(0), DEPENDENCY_AUTO, &relid, &attno))
		name = get_rel_name(relid);
	ereport(ERROR,
			(errcode(ERRCODE_FEED_GUARDED),
			 errmsg("cannot write the stamp of feed \"%s\"",
					name ? name : "?"),
			 errdetail("Columns %s and %s are given to each row as it is inserted, and never change.",
					   FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
			 errhint("Leave both out of the INSERT or COPY, and out of the publication when the rows come by logical replication.")));
}

/*
 * feedpub._message_id() returns text, STABLE (see stamp_pos)
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
 * feedpub._guard_update() returns trigger
 *
 * BEFORE UPDATE, FOR EACH STATEMENT, on an outbox: refuses the statement.
 * The check constraint alone would let SET feed_xid = DEFAULT, feed_pos =
 * DEFAULT through; a statement trigger costs an INSERT nothing, and fires for
 * ON CONFLICT DO UPDATE and MERGE as well.
 */
Datum
feedpub_guard_update(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigdata->tg_event) ||
		!TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be called as a trigger before UPDATE",
						"_guard_update")));

	ereport(ERROR,
			(errcode(ERRCODE_FEED_GUARDED),
			 errmsg("cannot update outbox feed \"%s\"",
					RelationGetRelationName(trigdata->tg_relation)),
			 errdetail("Its rows are messages that consumers may have read already."),
			 errhint("Insert a new message.  ON CONFLICT DO NOTHING and DELETE are allowed.")));
}

static void
invalidate_sequences(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	FeedSequence *sequence;

	hash_seq_init(&status, sequences);
	while ((sequence = hash_seq_search(&status)) != NULL)
	{
		if (!OidIsValid(relid) ||
			sequence->seqid == relid || sequence->relid == relid)
			sequence->valid = false;
	}
}

static FeedSequence *
find_sequence(Oid seqid)
{
	FeedSequence *sequence;
	bool		found;

	if (sequences == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(FeedSequence);
		ctl.hcxt = TopMemoryContext;
		sequences = hash_create("feedpub sequences", 16, &ctl,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		CacheRegisterRelcacheCallback(invalidate_sequences, (Datum) 0);
	}
	sequence = hash_search(sequences, &seqid, HASH_ENTER, &found);
	if (!found)
	{
		sequence->relid = InvalidOid;
		sequence->valid = false;
	}
	return sequence;
}

/*
 * See whether a sequence is a feed's: owned by a column whose default is a
 * call of _stamp_pos() on this sequence.  Only the owner of table and
 * sequence can have arranged that, so he has given everybody who may INSERT
 * the right to advance it.  No look into the registry: a writer goes on when
 * that is gone (DESIGN 2.7).
 */
static void
verify_sequence(FeedSequence *sequence, Oid funcid)
{
	Oid			relid;
	int32		attno;
	Relation	rel;

	if (!sequenceIsOwned(sequence->seqid, DEPENDENCY_AUTO, &relid, &attno))
		return;
	rel = relation_open(relid, AccessShareLock);
	sequence->relid = relid;
	sequence->valid = feedpub_guard_default_takes(rel, attno, funcid,
												  sequence->seqid);
	relation_close(rel, AccessShareLock);
}

static void
push_taken(Oid seqid, FullTransactionId xid, int64 pos)
{
	TakenPosition *top;

	TimestampTz statement = GetCurrentStatementStartTimestamp();

	if (ntaken > 0 &&
		(taken[ntaken - 1].statement != statement ||
		 !FullTransactionIdEquals(taken[ntaken - 1].xid, xid)))
		ntaken = 0;
	if (ntaken == taken_size && taken_size < MAX_TAKEN)
	{
		int			size = taken_size ? taken_size * 4 : 64;

		taken = taken ? repalloc(taken, size * sizeof(TakenPosition)) :
						MemoryContextAlloc(TopMemoryContext, size * sizeof(TakenPosition));
		taken_size = size;
	}
	if (ntaken == taken_size)
	{
		int			quarter = MAX_TAKEN / 4;

		memmove(taken + quarter, taken + 3 * quarter, quarter * sizeof(TakenPosition));
		ntaken = 2 * quarter;
	}
	top = &taken[ntaken++];
	top->seqid = seqid;
	top->xid = xid;
	top->statement = statement;
	top->pos = pos;
}

static bool
pop_taken(Oid seqid, FullTransactionId xid, int64 pos)
{
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	for (int i = ntaken - 1; i >= 0; i--)
	{
		if (taken[i].pos != pos || taken[i].seqid != seqid)
			continue;
		if (taken[i].statement != statement ||
			!FullTransactionIdEquals(taken[i].xid, xid))
			return false;
		ntaken = i;
		return true;
	}
	return false;
}

/*
 * Remember a feed that the transaction writes to.  Rolled-back savepoints are
 * not taken back: the worker looks once for nothing.
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

	/* now, for it may have to be looked up, which a callback must not */
	(void) feedpub_shmem_database();
	stamped_xid = XidFromFullTransactionId(xid);
	if (nstamped < MAX_STAMPED && OidIsValid(relid))
		stamped[nstamped++] = relid;
	else
		stamped_more = true;
}

/*
 * At the end of a transaction that wrote to feeds: tell the worker.  The
 * commit is visible by now (xact.c: CommitTransaction calls us after
 * ProcArrayEndTransaction), so whoever is woken sees it.  Earlier would lose
 * the wake-up: the worker would look, find nothing, and forget.  After
 * PREPARE nothing will be called when the transaction commits, so it is put
 * on watch.
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
