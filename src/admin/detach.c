/*-------------------------------------------------------------------------
 *
 * detach.c
 *	  Making feeds ordinary tables again: feed_detach(), feed_detach_all(),
 *	  DROP EXTENSION.
 *
 * The rows stay, and so do all columns but those of the stamp.  Applications
 * write into the table as before: what they need not know of feedpub is gone,
 * and a default of ours has been replaced.
 *
 * The server refuses DROP EXTENSION while there are feeds, since their triggers
 * need our functions.  With CASCADE it drops the triggers, and nothing else of a
 * feed's table needs us.  So writers go on, whether this library is loaded
 * where the extension is dropped or not: the columns of a table feed's stamp may
 * be null, and those of an outbox have defaults of the server's (admin.h).  The
 * columns stay; feed_repair() takes an outbox over when the extension is there
 * again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_inherits.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "admin/admin.h"

PG_FUNCTION_INFO_V1(feed_detach);
PG_FUNCTION_INFO_V1(feed_detach_all);

/* A feed that is to be detached. */
typedef struct DetachedFeed
{
	Oid			relid;
	bool		cascade;
} DetachedFeed;

/*
 * Drop the triggers that the feed has on a table, whatever their names are by
 * now.  Those of a partition that are clones go with the table's.
 */
static void
drop_triggers(Oid relid)
{
	static FeedpubStatement find = {
		.sql = "SELECT tgname FROM pg_catalog.pg_trigger WHERE tgrelid = $1::regclass AND tgparentid = 0"
			   " AND tgfoid IN ('feedpub._stamp_message'::regproc, 'feedpub._stamp_row'::regproc,"
			   "  'feedpub._note_delete'::regproc, 'feedpub._note_truncate'::regproc) ORDER BY tgname",
		.latest = true,
	};

	feedpub_capture_drop_triggers(relid, feedpub_store_list(&find, (Datum[]){ObjectIdGetDatum(relid)}));
}

/*
 * The end of an ALTER TABLE that gives message_id a default, if it has none.
 */
static const char *
add_default(Oid relid)
{
	AttrNumber	attno = get_attnum(relid, "message_id");
	Relation	rel;
	bool		lacks;

	if (feedpub_registry_is_table(relid) || get_atttype(relid, attno) != TEXTOID)
		return "";
	rel = relation_open(relid, NoLock);
	lacks = !TupleDescAttr(RelationGetDescr(rel), attno - 1)->atthasdef;
	relation_close(rel, NoLock);
	return lacks ? ", ALTER COLUMN message_id SET DEFAULT " FEEDPUB_ID_DEFAULT : "";
}

static void
detach(void *arg)
{
	DetachedFeed *feed = arg;
	List	   *partitions = NIL;
	ListCell   *lc;

	for (int i = 0; i < 2; i++)
	{
		/* before the lock, which blocks other sessions, and again under it */
		(void) feedpub_registry_require(feed->relid);
		feedpub_require_owner(feed->relid);
		if (!feed->cascade)
			feedpub_registry_refuse_subscribed(feed->relid, "detach");
		if (i == 0)
			feedpub_lock_feeds(list_make1_oid(feed->relid), NIL, AccessExclusiveLock);
	}
	foreach(lc, feedpub_capture_list(feed->relid))
		feedpub_capture_remove(lfirst_oid(lc), feed->relid);
	drop_triggers(feed->relid);

	/* not of a table that inherits from it, nor of a feed of its own */
	if (get_rel_relkind(feed->relid) == RELKIND_PARTITIONED_TABLE)
		partitions = find_all_inheritors(feed->relid, NoLock, NULL);
	foreach(lc, partitions)
	{
		if (!feedpub_registry_is_registered(lfirst_oid(lc)))
			drop_triggers(lfirst_oid(lc));
	}
	feedpub_role_run_as_owner(feed->relid, psprintf("ALTER TABLE %s DROP COLUMN IF EXISTS " FEEDPUB_XID_COLUMN ", DROP COLUMN IF EXISTS " FEEDPUB_POS_COLUMN "%s", feedpub_relation_name(feed->relid), add_default(feed->relid)));
	feedpub_registry_remove(feed->relid);
}

/*
 * feed_detach(feed regclass, cascade boolean DEFAULT false)
 * returns void, VOLATILE
 *
 * Makes a feed an ordinary table again.  Removes its triggers, the columns of
 * the stamp with their index and sequence, its batches and tombstones.  In an
 * outbox, message_id gets gen_random_uuid() as default, if it has ours.  The
 * rows stay.  Refuses if there are subscriptions; with cascade, these are
 * removed as well.
 *
 * For the owner only.  Locks as feed_attach() does.
 * Errors: 42809 if it is no feed, 22004, 2BP01 if there are subscriptions or
 * something else depends on the columns, 55P03, 42501.
 */
Datum
feed_detach(PG_FUNCTION_ARGS)
{
	DetachedFeed feed;

	feedpub_argument_check(fcinfo, 0, 2);
	PreventCommandDuringRecovery("feed_detach()");
	feed.relid = PG_GETARG_OID(0);
	feed.cascade = PG_GETARG_BOOL(1);
	detach(&feed);
	PG_RETURN_VOID();
}

/*
 * feed_detach_all(cascade boolean DEFAULT false)
 * returns TABLE (feed regclass, problem text), VOLATILE
 *
 * Detaches all feeds of the database, in one transaction, and returns a row
 * for each: problem is NULL, or the reason why the feed stays as it is, for
 * example that the caller is not its owner.
 *
 * Locks and errors are those of feed_detach(); errors of the lock, 55P03, are
 * raised.
 */
Datum
feed_detach_all(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *feeds = feedpub_registry_list();
	List	   *own = NIL;
	List	   *left;
	ListCell   *lc;

	feedpub_argument_check(fcinfo, 0, 1);
	PreventCommandDuringRecovery("feed_detach_all()");
	InitMaterializedSRF(fcinfo, 0);

	/* one after the other, writers could run into deadlocks */
	foreach(lc, feeds)
	{
		if (feedpub_owns_relation(lfirst_oid(lc), GetUserId()))
			own = lappend_oid(own, lfirst_oid(lc));
	}
	left = feedpub_capture_left_tables();
	if (own != NIL || left != NIL)
		feedpub_lock_feeds(own, left, AccessExclusiveLock);
	foreach(lc, feeds)
	{
		DetachedFeed feed = {.relid = lfirst_oid(lc), .cascade = PG_GETARG_BOOL(0)};
		char	   *problem = feedpub_attempt(detach, &feed);
		Datum		values[2];
		bool		nulls[2] = {false, problem == NULL};

		values[0] = ObjectIdGetDatum(feed.relid);
		values[1] = problem != NULL ? CStringGetTextDatum(problem) : (Datum) 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}

	/* triggers of captures whose feed was dropped, or partition detached */
	foreach(lc, left)
		feedpub_capture_drop_leftovers(lfirst_oid(lc));
	return (Datum) 0;
}
