/*-------------------------------------------------------------------------
 *
 * background.c
 *	  Publishing all rows of a table feed again, in the background.
 *
 * All rows, or those without a stamp, are a matter of hours in a large table.
 * That is written down in feedpub.republication, and done by the worker, in
 * steps, each a short transaction that stamps a few rows (restamp.c) and
 * writes how far it got, with them: so nothing is lost in a crash, nor in a
 * dump.  All rows are those that have no stamp, or one that had been given out
 * when it was asked for, the cutoff, or another server's, which lies beyond the
 * next id; whatever is written later is published by that.
 *
 * Each part of the feed, its table or the partitions, is done by itself.
 * First come its rows without a stamp, then those with an old one.  Each is a
 * pass over all their places, then passes over the places of the rows that
 * somebody had locked, until none is left.  Places of rows without a stamp are
 * those of a file: a rewritten table begins again, and passes what has been
 * stamped.
 *
 * Locks.  A step takes the row in feedpub.republication, which keeps other
 * steps out and is not waited for, then the table's lock, which is not waited
 * for, then rows, if they can be had at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feedpub_republish_some);

/* columns of feedpub.republication */
#define ANUM_REPUBLICATION_FEED		1
#define ANUM_REPUBLICATION_STATE	3
#define NATTS_REPUBLICATION			11

/* One part of a feed, as its row in feedpub.republication_part tells. */
typedef struct Part
{
	Oid			relid;
	int32		file;			/* of the places of rows without a stamp */
	BlockNumber blocks;			/* how many it had */
	int			passes;			/* over rows that had been locked */
	FeedpubRestamp work;
} Part;

static FeedpubStatement ask = {
	.sql = "INSERT INTO feedpub.republication AS r (feed, rows, cutoff, requested_by)"
		   " VALUES ($1, $2, $3, $4)"
		   " ON CONFLICT (feed) DO UPDATE SET rows = EXCLUDED.rows, state = DEFAULT,"
		   "  cutoff = EXCLUDED.cutoff, requested_by = EXCLUDED.requested_by, requested_at = DEFAULT,"
		   "  stamped = DEFAULT, stepped_at = NULL, finished_at = NULL,"
		   "  last_error = NULL, last_error_at = NULL"
		   " WHERE r.state OPERATOR(pg_catalog.<>) 'running'"
		   /* asked for more */
		   "  OR (r.rows OPERATOR(pg_catalog.<>) 'all' AND EXCLUDED.rows OPERATOR(pg_catalog.=) 'all')",
	.nargs = 4,
	.argtypes = {REGCLASSOID, TEXTOID, INT8OID, NAMEOID},
};

static FeedpubStatement forget_parts = {
	.sql = "DELETE FROM feedpub.republication_part"
		   " WHERE feed OPERATOR(pg_catalog.=) $1",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

static FeedpubStatement cancel = {
	.sql = "UPDATE feedpub.republication SET state = 'cancelled',"
		   "  finished_at = pg_catalog.clock_timestamp()"
		   " WHERE feed OPERATOR(pg_catalog.=) $1"
		   "  AND state OPERATOR(pg_catalog.=) 'running'",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

static FeedpubStatement note_error = {
	.sql = "UPDATE feedpub.republication"
		   " SET last_error = $2, last_error_at = pg_catalog.clock_timestamp()"
		   " WHERE feed OPERATOR(pg_catalog.=) $1"
		   "  AND state OPERATOR(pg_catalog.=) 'running'",
	.nargs = 2,
	.argtypes = {REGCLASSOID, TEXTOID},
};

static FeedpubStatement lock_job = {
	.sql = "SELECT r.rows OPERATOR(pg_catalog.=) 'all', r.cutoff"
		   " FROM feedpub.republication r"
		   " WHERE r.feed OPERATOR(pg_catalog.=) $1"
		   "  AND r.state OPERATOR(pg_catalog.=) 'running'"
		   " FOR UPDATE SKIP LOCKED",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

static FeedpubStatement first_part = {
	.sql = "SELECT u.part, p.file, p.blocks, p.passes, p.phase OPERATOR(pg_catalog.=) 'stamped',"
		   "  p.after_xid, p.after_pos, p.to_xid, p.to_pos,"
		   "  p.left_first_xid, p.left_first_pos, p.left_last_xid, p.left_last_pos"
		   " FROM pg_catalog.unnest($2) WITH ORDINALITY u (part, n)"
		   " LEFT JOIN feedpub.republication_part p"
		   "  ON p.feed OPERATOR(pg_catalog.=) $1 AND p.part OPERATOR(pg_catalog.=) u.part"
		   " WHERE p.phase IS NULL OR p.phase OPERATOR(pg_catalog.<>) 'done'"
		   " ORDER BY u.n LIMIT 1",
	.nargs = 2,
	.argtypes = {REGCLASSOID, OIDARRAYOID},
};

static FeedpubStatement save_part = {
	.sql = "INSERT INTO feedpub.republication_part (feed, part, file, blocks, passes, phase,"
		   "  after_xid, after_pos, to_xid, to_pos,"
		   "  left_first_xid, left_first_pos, left_last_xid, left_last_pos)"
		   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
		   " ON CONFLICT (feed, part) DO UPDATE SET file = EXCLUDED.file, blocks = EXCLUDED.blocks,"
		   "  passes = EXCLUDED.passes, phase = EXCLUDED.phase,"
		   "  after_xid = EXCLUDED.after_xid, after_pos = EXCLUDED.after_pos,"
		   "  to_xid = EXCLUDED.to_xid, to_pos = EXCLUDED.to_pos,"
		   "  left_first_xid = EXCLUDED.left_first_xid, left_first_pos = EXCLUDED.left_first_pos,"
		   "  left_last_xid = EXCLUDED.left_last_xid, left_last_pos = EXCLUDED.left_last_pos",
	.nargs = 14,
	.argtypes = {REGCLASSOID, REGCLASSOID, INT4OID, INT8OID, INT4OID,
				 TEXTOID, XID8OID, INT8OID, XID8OID, INT8OID,
				 XID8OID, INT8OID, XID8OID, INT8OID},
};

static FeedpubStatement count_step = {
	.sql = "UPDATE feedpub.republication"
		   " SET stamped = stamped OPERATOR(pg_catalog.+) $2,"
		   "  stepped_at = pg_catalog.clock_timestamp(),"
		   "  state = CASE WHEN $3 THEN 'done' ELSE state END,"
		   "  finished_at = CASE WHEN $3 THEN pg_catalog.clock_timestamp() END"
		   " WHERE feed OPERATOR(pg_catalog.=) $1",
	.nargs = 3,
	.argtypes = {REGCLASSOID, INT8OID, BOOLOID},
};

static List *find_parts(Oid relid);
static void refuse_obstacle(Relation rel);
static int64 last_position(Oid relid);
static bool lock_republication(Oid relid, bool *all, int64 *cutoff);
static bool choose_part(Oid relid, List *relids, Part *part, bool *is_new);
static void begin_unstamped(Part *part, Relation rel, int32 file);
static bool end_pass(Part *part, bool all);
static void write_part(Oid relid, const Part *part, bool done);
static void write_step(Oid relid, int nrows, bool done);
static uint64 write_state(FeedpubStatement *statement, Datum *values,
						  const char *nulls);

/*
 * Write down that all rows of a table feed, or those without a stamp, are to be
 * published again, and start the worker.  The caller has the table locked.
 */
void
feedpub_background_ask(Oid relid, const char *rows)
{
	Datum		values[4];
	NameData	requested_by;
	ListCell   *lc;

	if (strcmp(rows, "all") != 0 && strcmp(rows, "unstamped") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("rows must be \"all\" or \"unstamped\"")));
	foreach(lc, find_parts(relid))
	{
		Relation	rel = feedpub_registry_open(lfirst_oid(lc));

		refuse_obstacle(rel);
		relation_close(rel, NoLock);
	}

	namestrcpy(&requested_by, GetUserNameFromId(GetUserId(), false));
	values[0] = ObjectIdGetDatum(relid);
	values[1] = CStringGetTextDatum(rows);
	values[2] = Int64GetDatum(last_position(relid));
	values[3] = NameGetDatum(&requested_by);
	if (write_state(&ask, values, NULL) == 0)
	{
		ereport(NOTICE,
				(errmsg("rows of feed \"%s\" are being republished already",
						get_rel_name(relid))));
		return;
	}
	(void) write_state(&forget_parts, values, NULL);

	/* at commit the worker is told that there is something to do */
	feedpub_stamp_note(relid, GetTopFullTransactionId());
	feedpub_worker_ensure(InvalidOid);
}

/*
 * Write down that no more are to be.  Returns whether some were.
 */
bool
feedpub_background_cancel(Oid relid)
{
	Datum		values[1] = {ObjectIdGetDatum(relid)};

	return write_state(&cancel, values, NULL) > 0;
}

/*
 * feedpub._republish_some(feed regclass, max_rows integer) returns integer
 *
 * A step of the worker's, by hand, of up to so many rows of one part of the
 * feed.  Returns how many it was, NULL when nothing is to be done, or somebody
 * else is doing it.  Not for PUBLIC.
 */
Datum
feedpub_republish_some(PG_FUNCTION_ARGS)
{
	FeedpubRepublished what;
	int			max_rows = PG_GETARG_INT32(1);
	int			nrows;

	if (max_rows < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rows must be greater than zero")));
	nrows = feedpub_background_step(PG_GETARG_OID(0), max_rows, 0, &what);
	if (what == FEEDPUB_REPUBLISH_NONE)
		PG_RETURN_NULL();
	PG_RETURN_INT32(nrows);
}

/*
 * Stamp some of the rows that are to be stamped in the background.  Returns
 * how many; *what tells what comes next.
 */
int
feedpub_background_step(Oid relid, int max_rows, int max_ms,
						FeedpubRepublished *what)
{
	bool		all;
	bool		is_new;
	int64		cutoff;
	int32		file;
	FeedpubFloor floor;
	Part		part;
	Relation	rel;
	int			nrows;
	bool		done;

	*what = FEEDPUB_REPUBLISH_NONE;
	if (!lock_republication(relid, &all, &cutoff))
		return 0;
	*what = FEEDPUB_REPUBLISH_LOCKED;
	if (!ConditionalLockRelationOid(relid, RowExclusiveLock) ||
		!feedpub_registry_is_table(relid))
		return 0;
	if (!choose_part(relid, find_parts(relid), &part, &is_new))
	{
		write_step(relid, 0, true);
		*what = FEEDPUB_REPUBLISH_DONE;
		return 0;
	}
	if (part.relid != relid && !ConditionalLockRelationOid(part.relid, RowExclusiveLock))
		return 0;
	rel = try_relation_open(part.relid, NoLock);
	if (rel == NULL)
		return 0;
	refuse_obstacle(rel);

	feedpub_registry_floor(relid, GetActiveSnapshot(), &floor);
	file = (int32) feedpub_initial_fingerprint(rel, &floor);
	if (is_new || (!part.work.stamped && part.file != file))
		begin_unstamped(&part, rel, file);
	part.work.cutoff = cutoff;
	nrows = feedpub_restamp_some(relid, rel, &part.work, max_rows, max_ms);
	relation_close(rel, NoLock);

	*what = part.work.ended && part.work.left && nrows == 0 ?
		FEEDPUB_REPUBLISH_LOCKED :
		FEEDPUB_REPUBLISH_MORE;
	done = part.work.ended && end_pass(&part, all);
	write_part(relid, &part, done);
	write_step(relid, nrows, false);
	return nrows;
}

/*
 * The feeds with rows that are to be stamped in the background, a List of
 * OIDs in the current context.
 */
List *
feedpub_background_list(void)
{
	List	   *feeds = NIL;
	Oid			relid = get_relname_relid("republication",
										  get_namespace_oid(FEEDPUB_SCHEMA, true));
	Relation	table = OidIsValid(relid) ? try_relation_open(relid, AccessShareLock) : NULL;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (table == NULL)
		return NIL;
	feedpub_registry_check_version(table, NATTS_REPUBLICATION);
	scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;
		Datum		state = heap_getattr(tuple, ANUM_REPUBLICATION_STATE,
										 RelationGetDescr(table), &isnull);

		if (strcmp(TextDatumGetCString(state), "running") == 0)
			feeds = lappend_oid(feeds,
								DatumGetObjectId(heap_getattr(tuple, ANUM_REPUBLICATION_FEED,
															  RelationGetDescr(table), &isnull)));
	}
	systable_endscan(scan);
	relation_close(table, AccessShareLock);
	return feeds;
}

/*
 * Write down why a step failed.
 */
void
feedpub_background_note_error(Oid relid, const char *error)
{
	Datum		values[2] = {ObjectIdGetDatum(relid), CStringGetTextDatum(error)};

	(void) write_state(&note_error, values, NULL);
}

/*
 * The tables that have a feed's rows.
 */
static List *
find_parts(Oid relid)
{
	List	   *parts = NIL;
	ListCell   *lc;

	/* what inherits from a plain table is no part of its feed */
	if (get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
		return list_make1_oid(relid);
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		if (get_rel_relkind(lfirst_oid(lc)) == RELKIND_RELATION)
			parts = lappend_oid(parts, lfirst_oid(lc));
	}
	return parts;
}

static void
refuse_obstacle(Relation rel)
{
	const char *name = feedpub_restamp_obstacle(rel);

	if (!OidIsValid(feedpub_guard_index(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no index on (%s, %s)",
						RelationGetRelationName(rel),
						FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
				 errhint("feed_attach() tells the statement that makes it.")));
	if (name != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("rows of feed \"%s\" cannot be republished in the background",
						RelationGetRelationName(rel)),
				 errdetail("\"%s\" is a constraint on the stamp or computed from it.", name),
				 errhint("UPDATE ... SET %s = NULL republishes them at once.", FEEDPUB_XID_COLUMN)));
}

/*
 * The largest position that has been given out.
 */
static int64
last_position(Oid relid)
{
	Oid			seqid = feedpub_guard_sequence(relid);

	if (!OidIsValid(seqid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no sequence", get_rel_name(relid)),
				 errhint("Run feed_check() to see what is missing and feed_repair() to put it back.")));
	return feedpub_guard_last_pos(seqid);
}

/*
 * Lock what is written down about a feed's republication, for this step.
 * Returns false when there is none under way, or when somebody has it.
 */
static bool
lock_republication(Oid relid, bool *all, int64 *cutoff)
{
	Datum		values[1] = {ObjectIdGetDatum(relid)};
	FeedpubRole caller;
	bool		found;
	bool		isnull;

	feedpub_store_begin(&caller);
	found = feedpub_store_run(&lock_job, values, NULL) > 0;
	if (found)
	{
		*all = DatumGetBool(feedpub_store_value(0, 1, &isnull));
		*cutoff = DatumGetInt64(feedpub_store_value(0, 2, &isnull));
	}
	feedpub_store_end(&caller);
	return found;
}

/*
 * The first part that is not done.  Returns false when all are.
 */
static bool
choose_part(Oid relid, List *relids, Part *part, bool *is_new)
{
	Datum	   *oids = palloc_array(Datum, Max(list_length(relids), 1));
	Datum		values[2];
	FeedpubRole caller;
	bool		found;
	ListCell   *lc;

	foreach(lc, relids)
		oids[foreach_current_index(lc)] = ObjectIdGetDatum(lfirst_oid(lc));
	values[0] = ObjectIdGetDatum(relid);
	values[1] = PointerGetDatum(construct_array(oids, list_length(relids), OIDOID,
												sizeof(Oid), true, TYPALIGN_INT));
	MemSet(part, 0, sizeof(Part));
	feedpub_store_begin(&caller);
	found = feedpub_store_run(&first_part, values, NULL) > 0;
	if (found)
	{
		Datum		columns[13];
		bool		nulls[13];

		heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, columns, nulls);
		part->relid = DatumGetObjectId(columns[0]);
		*is_new = nulls[1];
		if (!*is_new)
		{
			part->file = DatumGetInt32(columns[1]);
			part->blocks = (BlockNumber) DatumGetInt64(columns[2]);
			part->passes = DatumGetInt32(columns[3]);
			part->work.stamped = DatumGetBool(columns[4]);
			part->work.after.xid = DatumGetUInt64(columns[5]);
			part->work.after.pos = DatumGetInt64(columns[6]);
			part->work.to.xid = DatumGetUInt64(columns[7]);
			part->work.to.pos = DatumGetInt64(columns[8]);
			part->work.left = !nulls[9];
			if (part->work.left)
			{
				part->work.left_first.xid = DatumGetUInt64(columns[9]);
				part->work.left_first.pos = DatumGetInt64(columns[10]);
				part->work.left_last.xid = DatumGetUInt64(columns[11]);
				part->work.left_last.pos = DatumGetInt64(columns[12]);
			}
		}
	}
	feedpub_store_end(&caller);
	return found;
}

/*
 * Begin with a part's rows without a stamp: at its beginning.  Those that are
 * put behind its end meanwhile have one.
 */
static void
begin_unstamped(Part *part, Relation rel, int32 file)
{
	MemSet(&part->work, 0, sizeof(part->work));
	part->file = file;
	part->blocks = RelationGetNumberOfBlocks(rel);
	part->passes = 0;
	part->work.to.pos = ((int64) part->blocks << 16) - 1;
}

/*
 * A pass has ended: go back to the rows that were left, or on to those with
 * an old stamp if all are to be done.  Returns whether the part is done.
 */
static bool
end_pass(Part *part, bool all)
{
	FeedpubRestamp *work = &part->work;

	work->ended = false;
	if (work->left)
	{
		work->after = work->left_first;
		work->after.pos--;
		work->to = work->left_last;
		work->left = false;
		part->passes++;
		return false;
	}
	if (work->stamped || !all)
		return true;
	work->stamped = true;
	work->after.xid = 0;
	work->after.pos = 0;
	work->to.xid = PG_UINT64_MAX;
	work->to.pos = PG_INT64_MAX;
	part->passes = 0;
	return false;
}

/*
 * Write how far a part has got.
 */
static void
write_part(Oid relid, const Part *part, bool done)
{
	const FeedpubRestamp *work = &part->work;
	const char *phase = done ? "done" : work->stamped ? "stamped" :
														"unstamped";
	Datum		values[14];
	char		nulls[15] = "              ";

	values[0] = ObjectIdGetDatum(relid);
	values[1] = ObjectIdGetDatum(part->relid);
	values[2] = Int32GetDatum(part->file);
	values[3] = Int64GetDatum((int64) part->blocks);
	values[4] = Int32GetDatum(part->passes);
	values[5] = CStringGetTextDatum(phase);
	values[6] = UInt64GetDatum(work->after.xid);
	values[7] = Int64GetDatum(work->after.pos);
	values[8] = UInt64GetDatum(work->to.xid);
	values[9] = Int64GetDatum(work->to.pos);
	values[10] = UInt64GetDatum(work->left_first.xid);
	values[11] = Int64GetDatum(work->left_first.pos);
	values[12] = UInt64GetDatum(work->left_last.xid);
	values[13] = Int64GetDatum(work->left_last.pos);
	if (!work->left)
		memset(nulls + 10, 'n', 4);
	(void) write_state(&save_part, values, nulls);
}

/*
 * Write that a step was done, and whether it was the last.
 */
static void
write_step(Oid relid, int nrows, bool done)
{
	Datum		values[3];

	values[0] = ObjectIdGetDatum(relid);
	values[1] = Int64GetDatum((int64) nrows);
	values[2] = BoolGetDatum(done);
	(void) write_state(&count_step, values, NULL);
}

/*
 * Write our tables, as their owner.  Returns the number of rows.
 */
static uint64
write_state(FeedpubStatement *statement, Datum *values, const char *nulls)
{
	FeedpubRole caller;
	uint64		nrows;

	feedpub_store_begin(&caller);
	nrows = feedpub_store_run(statement, values, nulls);
	feedpub_store_end(&caller);
	return nrows;
}
