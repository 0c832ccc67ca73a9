/*-------------------------------------------------------------------------
 *
 * registry_write.c
 *	  Writing feedpub._feed, and what our other tables have on a feed when it
 *	  is created, begins another history, or is removed.
 *
 * It writes through SPI, as the extension's owner.  Each write invalidates the
 * relcache entry of feedpub._feed, and with it what every backend has cached
 * of feeds (registry.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "feed/feed.h"

/*
 * Our tables with a column "feed".  The registry comes last: its row tells what
 * is to be removed.
 */
static const char *const tables[] = {"_batch", "_tombstone", "_lost_change", "_partition",
									 "_job", "_floor", "_capture", "_feed"};
#define NPUBLISHED		(lengthof(tables) - 2)	/* those of what was published */

/* A table feed's key, and its mark. */
static FeedpubStatement set_key = {
	.sql = "UPDATE feedpub._feed SET key = $2, key_attnums = $3, key_types = $4, key_table = $1,"
		   "  deletes = $5, key_mark = $6"
		   " WHERE feed = $1",
};

static FeedpubStatement set_mark = {
	.sql = "WITH free AS MATERIALIZED (SELECT feed FROM feedpub._feed"
		   "  WHERE feed = $1 FOR UPDATE SKIP LOCKED)"
		   " UPDATE feedpub._feed f SET key_mark = $2"
		   " FROM free WHERE f.feed = free.feed",
};

static uint64
execute(FeedpubStatement *statement, Datum *values, const char *nulls)
{
	uint64		nrows = feedpub_store_execute(statement, values, nulls);

	CacheInvalidateRelcacheByRelid(feedpub_cache_registry());
	return nrows;
}

/*
 * Run one statement, whose parameters are the feed and a text.  Returns the
 * number of rows that it wrote.
 */
static uint64
write_registry(const char *sql, Oid relid, const char *text)
{
	FeedpubStatement statement = {.sql = sql};
	uint64		nrows = execute(&statement,
								(Datum[]){ObjectIdGetDatum(relid), text ? CStringGetTextDatum(text) : (Datum) 0},
								NULL);

	SPI_freeplan(statement.plan);
	return nrows;
}

/*
 * Remove the subscriptions of dropped tables, and rows that are left of
 * removed subscriptions, at most max_rows of each table.  Rows that another
 * session has locked stay.  Returns whether there are more.
 *
 * A row that is deleted here was seen without its subscription.  It is not a
 * row of a newer subscription of the same name: feed_subscribe() has deleted
 * such rows and written its own.
 */
static bool
sweep_subscriptions(int max_rows)
{
	static const char *const tables[] = {"_shard", "_consumer", "_parked_entry"};
	bool		more = false;

	write_registry("WITH gone AS MATERIALIZED (SELECT s.name FROM feedpub._subscription s"
				   "  WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c"
				   "   WHERE c.oid = s.feed)"
				   "  FOR UPDATE SKIP LOCKED)"
				   " DELETE FROM feedpub._subscription s USING gone"
				   " WHERE s.name = gone.name",
				   InvalidOid, NULL);
	for (int i = 0; i < lengthof(tables) && !more; i++)
		more = write_registry(psprintf("WITH gone AS MATERIALIZED (SELECT t.ctid FROM feedpub.%s t"
									   "  WHERE NOT EXISTS (SELECT FROM feedpub._subscription s"
									   "   WHERE s.name = t.subscription)"
									   "  LIMIT %d FOR UPDATE SKIP LOCKED)"
									   " DELETE FROM feedpub.%s t USING gone"
									   " WHERE t.ctid = gone.ctid",
									   tables[i], max_rows, tables[i]),
							  InvalidOid, NULL) == max_rows;
	return more;
}

/*
 * Forget the subscriptions of a feed.  This does not wait for a consumer that
 * has acknowledged and not committed: rows that it has locked are swept later.
 */
static void
forget_subscriptions(Oid relid)
{
	write_registry("DELETE FROM feedpub._subscription"
				   " WHERE feed = $1",
				   relid, NULL);
	(void) sweep_subscriptions(INT_MAX);
}

/*
 * Register a feed, as the default feed if may_be_default is set and there is
 * none yet.  Rows of dropped tables are removed first, so that the new row
 * conflicts with none of them.
 *
 * Two sessions may create their first feeds at once.  The unique index on the
 * default makes the later one wait, and ON CONFLICT then adds its feed as an
 * ordinary one.
 */
void
feedpub_registry_add(Oid relid, FeedpubKind kind, bool may_be_default)
{
	const char *name = feedpub_registry_kinds[kind];

	if (feedpub_registry_sweep(FEEDPUB_SWEEP_ROWS))
		write_registry("UPDATE feedpub._feed f SET is_default = false"
					   " WHERE is_default AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c"
					   "  WHERE c.oid = f.feed)",
					   InvalidOid, NULL);
	if (!may_be_default ||
		write_registry("INSERT INTO feedpub._feed (feed, kind, is_default)"
					   " SELECT $1, $2, true"
					   " WHERE NOT EXISTS (SELECT FROM feedpub._feed WHERE is_default)"
					   " ON CONFLICT DO NOTHING",
					   relid, name) == 0)
		write_registry("INSERT INTO feedpub._feed (feed, kind) VALUES ($1, $2)"
					   " ON CONFLICT (feed) DO NOTHING",
					   relid, name);

	/*
	 * If the OID was another table's before, its batches are not this feed's.
	 */
	feedpub_registry_begin_history(relid);
	forget_subscriptions(relid);
}

/*
 * Forget what the first of our tables have of a feed.
 */
static void
forget(Oid relid, int ntables)
{
	for (int i = 0; i < ntables; i++)
		write_registry(psprintf("DELETE FROM feedpub.%s WHERE feed = $1", tables[i]), relid, NULL);
}

/*
 * Forget a feed.
 */
void
feedpub_registry_remove(Oid relid)
{
	forget(relid, lengthof(tables));
	forget_subscriptions(relid);
}

/*
 * Raise 2BP01 if a feed has subscriptions.  what is a verb for the message.  A
 * caller that holds ACCESS EXCLUSIVE on the table can rely on the answer:
 * feed_subscribe() keeps ACCESS SHARE on the table until its transaction ends,
 * and the count sees what has committed by now, whatever the transaction's
 * snapshot is.
 */
void
feedpub_registry_refuse_subscribed(Oid relid, const char *what)
{
	static FeedpubStatement count = {
		.sql = "SELECT pg_catalog.count(*) FROM feedpub._subscription WHERE feed = $1",
		.latest = true,
	};
	int			n = (int) feedpub_store_number(&count, (Datum[]){ObjectIdGetDatum(relid)}, 0);

	if (n > 0)
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot %s feed \"%s\" because subscriptions depend on it",
						what, get_rel_name(relid)),
				 errdetail_plural("%d subscription reads it.",
								  "%d subscriptions read it.", n, n),
				 errhint("Use cascade => true to remove them too.")));
}

/*
 * Lock a feed's history until the transaction ends: with ROW EXCLUSIVE before
 * a row of feedpub._shard is added or locked, with EXCLUSIVE while another
 * history begins.  If these ran at the same time, a subscription would keep a
 * cursor of the history before.  Returns whether the lock was taken; without
 * wait it is not if another transaction has or wants a conflicting one.
 *
 * With ROW SHARE while rows before the floor are removed.
 */
bool
feedpub_registry_lock_history(Oid relid, LOCKMODE lockmode, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_shard"), relid, 0);
	return LockAcquire(&tag, lockmode, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Begin another history: forget batches, tombstones and partitions, and draw a
 * new number.
 */
void
feedpub_registry_begin_history(Oid relid)
{
	int32		history;
	int64		state;
	FeedpubFloor floor;

	if (!pg_strong_random(&history, sizeof(history)) ||
		!pg_strong_random(&state, sizeof(state)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));

	/*
	 * Rows that keep their stamps keep their order of xids.  So there a cursor
	 * before a row that was removed is refused as before, unless that row had
	 * a stamp of another server.
	 */
	feedpub_floor_read(relid, GetLatestSnapshot(), &floor);
	if (floor.removed_xid >= U64FromFullTransactionId(ReadNextFullTransactionId()))
		floor.removed_xid = floor.removed_pos = 0;
	forget(relid, NPUBLISHED);
	write_registry(psprintf("INSERT INTO feedpub._floor (feed, history, removed_xid, removed_pos)"
							" SELECT feed, %d, '" UINT64_FORMAT "', " INT64_FORMAT
							" FROM feedpub._feed WHERE feed = $1",
							history, floor.removed_xid, floor.removed_pos),
				   relid, NULL);

	/*
	 * Subscriptions keep their cursor, in the old history, and are refused
	 * until feed_seek(): where they go on cannot be decided here.  In a copy
	 * of a database, made for tests, a consumer that began again by itself
	 * would send all messages again that the original's has dealt with; one
	 * that went on from here would lose what it has not.  And a consumer of a
	 * table feed that did not notice would keep rows whose deletes are
	 * forgotten.
	 */
	write_registry(psprintf("UPDATE feedpub._shard h SET state = (" INT64_FORMAT "), page = NULL,"
							" consumer = NULL, leased_until = NULL, parked = 0, n = h.n + 1"
							" FROM feedpub._subscription s"
							" WHERE s.feed = $1"
							" AND h.subscription = s.name",
							state),
				   relid, NULL);
	write_registry("DELETE FROM feedpub._parked_entry p USING feedpub._subscription s"
				   " WHERE s.feed = $1"
				   " AND p.subscription = s.name",
				   relid, NULL);
}

/*
 * A key's mark as it is now, as an int8[].
 */
static Datum
read_mark(Relation rel, Oid keyid)
{
	int64		mark[FEEDPUB_KEY_MARK_LENGTH];
	Datum		values[FEEDPUB_KEY_MARK_LENGTH];
	int			nmark = feedpub_mark_read(rel, keyid, mark);

	for (int i = 0; i < nmark; i++)
		values[i] = Int64GetDatum(mark[i]);
	return PointerGetDatum(construct_array(values, nmark, INT8OID, sizeof(int64),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * Write the mark of a table feed's key again: the key is the same, and what the
 * mark consists of has changed.
 *
 * The caller has looked the feed up under the lock that it holds on the table,
 * so no ALTER TABLE has come since.  It is a publisher and may have a
 * transaction id, so it waits for nothing: another transaction may keep the
 * feed's row locked, or the registry.  Then a later step does it.
 */
void
feedpub_registry_note_key(Relation rel, Oid keyid)
{
	if (ConditionalLockRelationOid(feedpub_cache_registry(), RowExclusiveLock))
		(void) execute(&set_mark, (Datum[]){ObjectIdGetDatum(RelationGetRelid(rel)), read_mark(rel, keyid)}, NULL);
}

/*
 * Set a table feed's key, an index or InvalidOid if it is not known, with the
 * types that it has now, and whether its deletes are published.
 */
void
feedpub_registry_set_key(Relation rel, Oid keyid, bool deletes)
{
	AttrNumber	attnos[INDEX_MAX_KEYS];
	int			nkeys = OidIsValid(keyid) ? feedpub_key_columns(keyid, attnos) : 0;
	Datum		names[INDEX_MAX_KEYS];
	Datum		numbers[INDEX_MAX_KEYS];
	Datum		types[INDEX_MAX_KEYS];
	Datum		values[6];

	for (int i = 0; i < nkeys; i++)
	{
		names[i] = NameGetDatum(&TupleDescAttr(RelationGetDescr(rel), attnos[i] - 1)->attname);
		numbers[i] = Int16GetDatum(attnos[i]);
		types[i] = ObjectIdGetDatum(feedpub_key_type(rel, attnos[i]));
	}
	values[0] = ObjectIdGetDatum(RelationGetRelid(rel));
	values[1] = PointerGetDatum(construct_array(names, nkeys, NAMEOID, NAMEDATALEN,
												false, TYPALIGN_CHAR));
	values[2] = PointerGetDatum(construct_array(numbers, nkeys, INT2OID, sizeof(int16),
												true, TYPALIGN_SHORT));
	values[3] = PointerGetDatum(construct_array(types, nkeys, REGTYPEOID, sizeof(Oid),
												true, TYPALIGN_INT));
	values[4] = BoolGetDatum(deletes);
	values[5] = OidIsValid(keyid) ? read_mark(rel, keyid) : (Datum) 0;
	(void) execute(&set_key, values, OidIsValid(keyid) ? NULL : "     n");
}

/*
 * Note whether rows of a table feed may have been written without the trigger
 * that stamps.  Nothing else tells: in the table they look like rows of the
 * initial snapshot, or like rows that were published before.
 */
void
feedpub_registry_set_unstamped(Oid relid, bool unstamped)
{
	write_registry("UPDATE feedpub._feed SET unstamped = NOT unstamped"
				   " WHERE feed = $1 AND unstamped <> $2::text::pg_catalog.bool",
				   relid, unstamped ? "true" : "false");
}

bool
feedpub_registry_is_unstamped(Oid relid)
{
	static FeedpubStatement find = {
		.sql = "SELECT FROM feedpub._feed WHERE feed = $1 AND unstamped",
	};
	Datum		values[1] = {ObjectIdGetDatum(relid)};

	return feedpub_store_execute(&find, values, NULL) > 0;
}

/*
 * Make a registered feed the default.  The lock keeps a second caller out
 * until the transaction ends; without it the two updates would conflict on the
 * unique index.
 */
void
feedpub_registry_set_default(Oid relid)
{
	LockRelationOid(feedpub_cache_registry(), ShareRowExclusiveLock);
	write_registry("UPDATE feedpub._feed SET is_default = false"
				   " WHERE is_default AND feed <> $1",
				   relid, NULL);
	write_registry("UPDATE feedpub._feed SET is_default = true"
				   " WHERE NOT is_default AND feed = $1",
				   relid, NULL);
}

/*
 * Set the channel on which a feed's batches are announced; NULL for none.
 */
void
feedpub_registry_set_channel(Oid relid, const char *channel)
{
	write_registry("UPDATE feedpub._feed SET channel = NULLIF($2, '') WHERE feed = $1",
				   relid, channel != NULL ? channel : "");
}

/*
 * Remove rows of dropped tables, at most max_rows of each of our tables.  Does
 * not wait for another session that does the same.  Returns whether there are
 * more.
 */
bool
feedpub_registry_sweep(int max_rows)
{
	bool		more = sweep_subscriptions(max_rows);

	for (int i = 0; i < lengthof(tables) && !more; i++)
		more = write_registry(psprintf("WITH gone AS MATERIALIZED (SELECT f.feed FROM feedpub._feed f"
									   "  WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c"
									   "   WHERE c.oid = f.feed)"
									   "  FOR UPDATE SKIP LOCKED)"
									   " DELETE FROM feedpub.%s WHERE ctid = ANY (ARRAY("
									   "  SELECT t.ctid FROM gone, LATERAL (SELECT r.ctid FROM feedpub.%s r"
									   "   WHERE r.feed = gone.feed LIMIT %d) t LIMIT %d))",
									   tables[i], tables[i], max_rows, max_rows),
							  InvalidOid, NULL) == max_rows;
	return more;
}
