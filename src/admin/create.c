/*-------------------------------------------------------------------------
 * create.c
 *	  Making and dropping outboxes and change feeds, and choosing the default
 *	  feed.
 *
 * A feed's table is made with ordinary DDL, through SPI, as the caller.  So
 * the caller owns it, its defaults for tablespace and access method hold, and
 * event triggers and auditing see it.  All names are qualified and quoted, so
 * the caller's search_path does not matter.  Only feedpub._feed is written as
 * its own owner (registry_write.c).
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "admin/admin.h"

/*
 * What autovacuum needs to keep up with retention (job/expire.c), which
 * removes the oldest rows, page after page.
 *
 * Autovacuum begins when a twentieth of the rows is dead, not a fifth: that is
 * space which new rows cannot use yet.  A fiftieth would be too little, for
 * VACUUM leaves the index alone if fewer pages than that have dead rows.
 *
 * It does not give back the pages at the end of the file.  That would take
 * ACCESS EXCLUSIVE on the table: writers would wait, and a standby would cancel
 * its readers.
 *
 * The TOAST table has its own: if it has any, it does not inherit the others.
 */
#define STORAGE_PARAMETERS \
	"autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = off," \
	" toast.autovacuum_vacuum_scale_factor = 0.05, toast.vacuum_truncate = off"

PG_FUNCTION_INFO_V1(feed_create);
PG_FUNCTION_INFO_V1(feed_create_changes);
PG_FUNCTION_INFO_V1(feed_drop);
PG_FUNCTION_INFO_V1(feed_set_default);
PG_FUNCTION_INFO_V1(feed_set_channel);

/*
 * The schema of a new feed, as CREATE TABLE would choose it.
 */
static Oid
choose_namespace(RangeVar *rv)
{
	Oid			namespaceid = RangeVarGetCreationNamespace(rv);

	if (isAnyTempNamespace(namespaceid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("feed \"%s\" cannot be a temporary table", rv->relname)));
	if (namespaceid == get_namespace_oid(FEEDPUB_SCHEMA, true))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("feed \"%s\" cannot be made in schema \"%s\"",
						rv->relname, FEEDPUB_SCHEMA),
				 errdetail("The schema belongs to the extension and is dropped with it."),
				 errhint("Name another schema.")));
	return namespaceid;
}

/*
 * The caller's feed of a name and kind, locked, or InvalidOid if nothing has
 * that name.  One that has lost its registration is registered again.
 */
static Oid
find_feed(const RangeVar *rv, Oid namespaceid, FeedpubKind kind)
{
	bool		is_changes = kind == FEEDPUB_KIND_CHANGES;
	Oid			relid = get_relname_relid(rv->relname, namespaceid);

	if (!OidIsValid(relid))
		return InvalidOid;

	/* before the lock, so that no other role's relation is locked */
	feedpub_require_owner(relid);
	if (feedpub_registry_is_registered(relid) ?
			feedpub_registry_kind(relid) != kind :
			get_attnum(relid, is_changes ? FEEDPUB_CHANGES_COLUMN : "message_id") == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not %s", rv->relname, is_changes ? "a change feed" : "an outbox")));
	relation_close(feedpub_registry_open(relid), NoLock);
	if (feedpub_repair_registration(relid) > 0)
		feedpub_check_repair(relid, NULL);
	return relid;
}

/*
 * Make a feed with these columns after those of the stamp.
 */
static Oid
create(text *name, bool if_not_exists, FeedpubKind kind, const char *columns,
	   bool may_be_default)
{
	RangeVar   *rv = makeRangeVarFromNameList(textToQualifiedNameList(name));
	Oid			namespaceid = choose_namespace(rv);
	Oid			relid;

	if (if_not_exists && OidIsValid(relid = find_feed(rv, namespaceid, kind)))
	{
		ereport(NOTICE,
				(errcode(ERRCODE_DUPLICATE_TABLE),
				 errmsg("feed \"%s\" already exists, skipping", rv->relname)));
		return relid;
	}
	feedpub_role_run(psprintf("CREATE TABLE %s ("
							  " " FEEDPUB_XID_COLUMN " pg_catalog.xid8 NOT NULL DEFAULT " FEEDPUB_XID_DEFAULT ","
							  " " FEEDPUB_POS_COLUMN " pg_catalog.int8 NOT NULL DEFAULT " FEEDPUB_POS_DEFAULT ","
							  " %s) WITH (" STORAGE_PARAMETERS ")",
							  quote_qualified_identifier(get_namespace_name(namespaceid), rv->relname), columns));
	relid = get_relname_relid(rv->relname, namespaceid);

	/* the rest is what feed_repair() would restore */
	feedpub_check_repair(relid, "");
	feedpub_position_begin(feedpub_relation_sequence(relid));
	feedpub_registry_add(relid, kind, may_be_default);
	feedpub_wake_note_new(relid);
	CommandCounterIncrement();
	return relid;
}

/*
 * feed_create(name text, payload_type regtype DEFAULT 'jsonb',
 * if_not_exists boolean DEFAULT false)
 * returns regclass, VOLATILE
 *
 * Makes an outbox: an insert-only table whose rows are messages, stamped as
 * they are written.  name is an SQL name, qualified and quoted as in SQL.
 * payload_type is the type of column data: jsonb, json, text or bytea.  The
 * first jsonb outbox of a database becomes its default feed.
 *
 * If if_not_exists is true and the caller has an outbox of this name, it is
 * returned as it is, with a NOTICE.  As with CREATE TABLE IF NOT EXISTS, its
 * payload may be of another type, and if two sessions make it at once, one
 * gets an error.
 *
 * The table belongs to the caller, who needs CREATE on its schema.  Locks
 * nothing that was there before, but with if_not_exists takes ACCESS SHARE on
 * what it returns.
 *
 * Errors: 42602 and 42601 for a bad name, 42P07 if it is taken, 42809 if
 * if_not_exists is given and what has the name is no outbox, 22023 for another
 * payload_type, 22004, 0A000 for a temporary table or schema feedpub, 42501.
 *
 * The columns are those of the outbox in O. Dudycz, "How Postgres sequences
 * issues can impact your messaging guarantees", 2022, plus stamp, key and
 * headers.
 */
Datum
feed_create(PG_FUNCTION_ARGS)
{
	Oid			type;

	feedpub_argument_check(fcinfo, 0, 3);
	type = PG_GETARG_OID(1);
	if (type != JSONBOID && type != JSONOID && type != TEXTOID &&
		type != BYTEAOID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload type %s is not supported",
						format_type_extended(type, -1, FORMAT_TYPE_ALLOW_INVALID)),
				 errhint("Use jsonb, json, text or bytea.")));

	PG_RETURN_OID(create(PG_GETARG_TEXT_PP(0), PG_GETARG_BOOL(2), FEEDPUB_KIND_OUTBOX,
						 psprintf("publication_id pg_catalog.text NOT NULL DEFAULT '',"
								  " message_id pg_catalog.text,"
								  " message_type pg_catalog.text NOT NULL,"
								  " message_key pg_catalog.text,"
								  " data %s NOT NULL,"
								  " scheduled pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),"
								  " headers pg_catalog.jsonb",
								  format_type_be_qualified(type)),
						 type == JSONBOID));
}

/*
 * feed_create_changes(name text, if_not_exists boolean DEFAULT false)
 * returns regclass, VOLATILE
 *
 * Makes a change feed: an insert-only table of the changes of those tables that
 * feed_capture() names.  An application may insert messages of its own.
 * Everything else, and the errors, are as of feed_create().
 */
Datum
feed_create_changes(PG_FUNCTION_ARGS)
{
	feedpub_argument_check(fcinfo, 0, 2);
	PG_RETURN_OID(create(PG_GETARG_TEXT_PP(0), PG_GETARG_BOOL(1), FEEDPUB_KIND_CHANGES,
						 "op pg_catalog.text NOT NULL DEFAULT 'message',"
						 " relation pg_catalog.text,"
						 " key pg_catalog.json,"
						 " old_key pg_catalog.json,"
						 " \"row\" pg_catalog.json,"
						 " old pg_catalog.json,"
						 " error pg_catalog.text,"
						 " statement pg_catalog.int8",
						 false));
}

/*
 * Raise an error unless the caller may drop what has the name.  Called before
 * it is locked, so that no other role's relation is locked.
 *
 * Dropping a change feed drops triggers of the captured tables.  A writer of
 * such a table locks that first and then the feed, so these are locked here,
 * before the feed or together with it.
 */
static void
check_drop(const RangeVar *rv, Oid relid, Oid former, void *cascade)
{
	FeedpubKind kind;

	if (!OidIsValid(relid))
		return;
	kind = feedpub_registry_require(relid);
	feedpub_require_owner(relid);
	if (kind == FEEDPUB_KIND_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("feed \"%s\" is not an outbox", get_rel_name(relid)),
				 errhint("Use feed_detach() to make it an ordinary table again, or DROP TABLE.")));
	if (!*(bool *) cascade)
		feedpub_registry_refuse_subscribed(relid, "drop");
	if (kind == FEEDPUB_KIND_CHANGES)
		feedpub_lock_feeds(list_make1_oid(relid), NIL, AccessExclusiveLock);
}

/*
 * feed_drop(feed text, if_exists boolean DEFAULT false,
 * cascade boolean DEFAULT false)
 * returns void, VOLATILE
 *
 * Drops an outbox with its rows, as DROP TABLE does, but refuses if it has
 * subscriptions; with cascade, these are removed as well.  If if_exists is
 * true and no relation has this name, it is a NOTICE.
 *
 * feed is an SQL name, qualified and quoted as in SQL, and looked up as
 * regclass does.  It is no regclass: if the relation were missing, the
 * conversion would fail before if_exists could be looked at.
 *
 * For the owner only.  Takes ACCESS EXCLUSIVE on the table.
 * Errors: 42P01 if there is none, 42809 if it is no outbox, 22004, 42501,
 * 2BP01 if there are subscriptions or something else depends on it.
 */
Datum
feed_drop(PG_FUNCTION_ARGS)
{
	RangeVar   *rv;
	bool		cascade;
	Oid			relid;
	ListCell   *lc;

	feedpub_argument_check(fcinfo, 0, 3);
	PreventCommandDuringRecovery("feed_drop()");
	rv = makeRangeVarFromNameList(textToQualifiedNameList(PG_GETARG_TEXT_PP(0)));
	cascade = PG_GETARG_BOOL(2);

	/* looks the name up again after a wait, so what is dropped has the name */
	relid = RangeVarGetRelidExtended(rv, AccessExclusiveLock,
									 PG_GETARG_BOOL(1) ? RVR_MISSING_OK : 0,
									 check_drop, &cascade);
	if (!OidIsValid(relid))
	{
		ereport(NOTICE,
				(errmsg("feed \"%s\" does not exist, skipping", rv->relname)));
		PG_RETURN_VOID();
	}

	/*
	 * meanwhile it may have got another owner or subscriptions, or be no feed
	 */
	check_drop(rv, relid, InvalidOid, &cascade);

	foreach(lc, feedpub_capture_list(relid))
		feedpub_capture_remove(lfirst_oid(lc), relid);
	feedpub_role_run(psprintf("DROP TABLE %s", feedpub_relation_name(relid)));
	feedpub_registry_remove(relid);
	PG_RETURN_VOID();
}

/*
 * feed_set_default(feed regclass) returns void
 *
 * Chooses the feed that feed_fetch(after_xid, after_pos, "limit") reads.  It
 * must be an outbox whose first columns are those of feed_create() with
 * payload jsonb.  The caller must own it, and the present default feed too, or
 * the database.  Errors: 42809 if it is no feed or has other columns, 42501.
 */
Datum
feed_set_default(PG_FUNCTION_ARGS)
{
	Oid			relid;
	Oid			present;
	FeedpubFeed feed;
	Relation	rel;

	feedpub_argument_check(fcinfo, 0, 1);
	relid = PG_GETARG_OID(0);
	rel = feedpub_registry_open(relid);
	feedpub_registry_get(relid, &feed);
	feedpub_require_owner(relid);
	if (!feed.is_outbox || !feedpub_relation_has_default_row_type(rel))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("feed \"%s\" cannot be the default feed",
						RelationGetRelationName(rel)),
				 errdetail("The default feed must have the columns that feed_create() makes, with data of type jsonb.")));

	present = feedpub_registry_default();
	if (OidIsValid(present) && present != relid &&
		!feedpub_owns_relation(present, GetUserId()) &&
		!feedpub_owns_database(MyDatabaseId, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to change the default feed"),
				 errdetail("Only the owner of the present default feed \"%s\", or of the database, may.",
						   get_rel_name(present))));

	feedpub_registry_set_default(relid);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

/*
 * feed_set_channel(feed regclass, channel text) returns void
 *
 * From now on the publisher announces each batch of a feed by one NOTIFY on
 * this channel, with the newest cursor as payload; NULL ends that.  Writers
 * never NOTIFY.  For the owner only.  Waits for a publisher of the feed, and
 * makes others wait until the transaction ends.  Errors: 42809 if it is no
 * feed, 22023 for a channel that NOTIFY would not take, 42501.
 */
Datum
feed_set_channel(PG_FUNCTION_ARGS)
{
	Oid			relid;
	char	   *channel = PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1));
	FeedpubFeed feed;

	feedpub_argument_check(fcinfo, 0, 1);
	PreventCommandDuringRecovery("feed_set_channel()");
	relid = PG_GETARG_OID(0);
	LockRelationOid(relid, AccessShareLock);
	feedpub_registry_get(relid, &feed);
	feedpub_require_owner(relid);
	if (channel != NULL && (channel[0] == '\0' || strlen(channel) >= NAMEDATALEN))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"channel\" must have 1 to %d bytes", NAMEDATALEN - 1)));

	/*
	 * A publisher looks for a channel under this lock, which it holds to the
	 * end of its transaction.  If it has found none, its batch is visible
	 * before the channel is, so a listener that begins to read after this
	 * transaction has committed misses no batch.
	 */
	if (channel != NULL)
		(void) feedpub_batch_lock(relid, true);
	feedpub_registry_set_channel(relid, channel);
	PG_RETURN_VOID();
}
