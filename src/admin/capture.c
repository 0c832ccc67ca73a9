/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Which tables are captured into change feeds: feed_capture(),
 *	  feed_uncapture().
 *
 * A capture is a row of feedpub._capture and two triggers of the table, which
 * write its changes into the feed (write/capture.c).
 *
 * CREATE TRIGGER locks out writers until the transaction ends.  So a transaction
 * that has written into the table has ended before the capture begins, or is
 * captured whole.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/partition.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "admin/admin.h"

PG_FUNCTION_INFO_V1(feed_capture);
PG_FUNCTION_INFO_V1(feed_uncapture);

static void require_change_feed(Oid feed);
static void refuse_captured(Oid relid, Oid feed);

/*
 * feed_capture(relation regclass, feed regclass, columns name[] DEFAULT NULL,
 * key regclass DEFAULT NULL, old boolean DEFAULT true)
 * returns void, VOLATILE
 *
 * From now on writes each change of a table into a change feed.  key is a
 * unique index on columns that are not null; by default the primary key.
 * columns are those whose values are written, by default all; those of the key
 * always are.  Without old, no old values are written but those of the key.
 *
 * A transaction that has changed the table before the call ends before it; all
 * that begin to change it later are captured.  So the call waits for writers of
 * the table, in attempts, as feed_attach() does.
 *
 * Needs ownership of both, in READ COMMITTED.  Takes SHARE ROW EXCLUSIVE on the
 * table and its partitions until the transaction ends: readers go on.
 *
 * Errors: 25006 on a standby, 42P01, 42809 if feed is no change feed, or
 * relation no ordinary table, or an outbox or a change feed; 0A000 for
 * temporary and unlogged tables, tables with inheritance, other access methods
 * than heap, and higher isolation; 42710 if the table, a partition or the table
 * of which it is one is captured into the feed; 55000 if there is no key; 42703
 * for an unknown column, 42701 for one that is named twice, 22023 for an empty
 * list; 22004, 55P03, 42501.
 */
Datum
feed_capture(PG_FUNCTION_ARGS)
{
	static FeedpubStatement forget = {
		.sql = "DELETE FROM feedpub._capture c WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class r WHERE r.oid = c.relation)",
	};
	static FeedpubStatement insert = {
		.sql = "INSERT INTO feedpub._capture (relation, feed, key, key_attnums, columns, column_attnums, old, numbers_of, trigger)"
			   " SELECT $1, $2, k.names, k.numbers, $4, c.numbers, $5, $1, $6"
			   " FROM (SELECT array_agg(a.attname ORDER BY u.n), array_agg(a.attnum ORDER BY u.n)"
			   "  FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY u (attnum, n), pg_attribute a"
			   "  WHERE i.indexrelid = $3 AND u.n <= i.indnkeyatts"
			   "   AND a.attrelid = i.indrelid AND a.attnum = u.attnum) k (names, numbers),"
			   " (SELECT array_agg(a.attnum ORDER BY u.n)"
			   "  FROM unnest($4::name[]) WITH ORDINALITY u (name, n), pg_attribute a"
			   "  WHERE a.attrelid = $1 AND a.attname = u.name) c (numbers)",
	};
	Oid			relid;
	Oid			feed;
	Oid			key = InvalidOid;
	char	   *name;
	Datum		values[6];

	feedpub_argument_check(fcinfo, 0, 2);
	feedpub_argument_check(fcinfo, 4, 1);
	feedpub_argument_check_latest("feed_capture()");
	relid = PG_GETARG_OID(0);
	feed = PG_GETARG_OID(1);

	/*
	 * Before the table, so that no writer waits for us while we wait for the
	 * feed.  What drops a feed locks the captured tables first, and gives up
	 * their locks if it does not get all.
	 */
	require_change_feed(feed);
	feedpub_require_owner(feed);
	relation_close(feedpub_registry_open(feed), NoLock);
	require_change_feed(feed);

	/* the first time before the lock, which blocks other sessions */
	for (int i = 0; i < 2; i++)
	{
		Relation	rel;

		feedpub_require_owner(relid);
		rel = feedpub_registry_open(relid);
		feedpub_attach_refuse(rel, true);
		refuse_captured(relid, feed);
		key = feedpub_attach_key(rel, PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3), "feed_capture", false);
		if (!PG_ARGISNULL(2))
			(void) feedpub_attach_columns(relid, PG_GETARG_DATUM(2));
		relation_close(rel, i == 0 ? AccessShareLock : NoLock);
		if (i == 0)
			feedpub_lock_tables(list_make1_oid(relid), ShareRowExclusiveLock);
	}
	values[0] = ObjectIdGetDatum(relid);
	values[1] = ObjectIdGetDatum(feed);
	values[2] = ObjectIdGetDatum(key);
	values[3] = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	values[4] = PG_GETARG_DATUM(4);
	(void) feedpub_store_execute(&forget, NULL, NULL);
	feedpub_capture_drop_leftovers(relid);
	name = feedpub_capture_choose_name(relid, feed, true);
	values[5] = CStringGetDatum(name);
	(void) feedpub_store_execute(&insert, values, NULL);

	feedpub_capture_create_triggers(relid, feed, name);
	PG_RETURN_VOID();
}

/*
 * feed_uncapture(relation regclass, feed regclass) returns void, VOLATILE
 *
 * From now on no change of a table is written into a change feed.  The entries
 * that are there stay.
 *
 * For the owner of the table, who could drop its triggers, or of the feed.
 * Takes ACCESS EXCLUSIVE on the table and its partitions until the transaction
 * ends, as feed_attach() does.  Errors: 25006 on a standby, 42704 if the table
 * is not captured into the feed, 22004, 55P03, 42501.
 */
Datum
feed_uncapture(PG_FUNCTION_ARGS)
{
	Oid			relid;
	Oid			feed;

	feedpub_argument_check(fcinfo, 0, 2);
	PreventCommandDuringRecovery("feed_uncapture()");
	relid = PG_GETARG_OID(0);
	feed = PG_GETARG_OID(1);
	for (int i = 0; i < 2; i++)
	{
		if (!list_member_oid(feedpub_capture_list(feed), relid))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("table %s is not captured into feed %s",
							DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(relid))),
							DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(feed))))));
		if (!feedpub_owns_relation(feed, GetUserId()))
			feedpub_require_owner(relid);
		if (i == 0)
			feedpub_lock_tables(list_make1_oid(relid), AccessExclusiveLock);
	}
	feedpub_capture_remove(relid, feed);
	PG_RETURN_VOID();
}

static void
require_change_feed(Oid feed)
{
	if (feedpub_registry_require(feed) != FEEDPUB_KIND_CHANGES)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("feed \"%s\" is not a change feed", get_rel_name(feed)),
				 errhint("feed_create_changes() makes one.")));
}

/*
 * Refuse a table that is captured into the feed already, itself or as part of a
 * partitioned table, or has a partition that is: a change would be written
 * twice.
 */
static void
refuse_captured(Oid relid, Oid feed)
{
	List	   *captured = feedpub_capture_list(feed);
	List	   *tables = feedpub_capture_tables(relid);
	ListCell   *lc;

	if (get_rel_relispartition(relid))
		tables = list_concat(tables, get_partition_ancestors(relid));
	foreach(lc, tables)
	{
		if (list_member_oid(captured, lfirst_oid(lc)))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table \"%s\" is captured into feed \"%s\" already",
							get_rel_name(lfirst_oid(lc)), get_rel_name(feed)),
					 lfirst_oid(lc) != relid ? errdetail("Each change of \"%s\" would be written twice.", get_rel_name(relid)) : 0,
					 errhint("Use feed_uncapture() first.")));
	}
}
