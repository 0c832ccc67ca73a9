/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  Finding feeds: the table feedpub._feed, and a cache of it in each
 *	  backend.
 *
 * This file and registry_write.c know the columns of feedpub._feed.  It is
 * read with direct scans, so that neither the caller's rights nor its
 * search_path matter.
 *
 * Cache: one entry for each feed that this backend has used.  Relcache
 * invalidation of the feed's table makes it invalid.  Invalidation of
 * feedpub._feed itself, which every write in registry_write.c causes, makes
 * all entries invalid.  "Not a feed" is never cached.  So rows that a restore
 * COPYs into feedpub._feed, which invalidates nothing, need no invalidation.
 * Entries are returned as copies: an invalidation may come whenever a relation
 * is opened.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "feed/feed.h"

/* columns of feedpub._feed */
#define ANUM_FEED_FEED			1
#define ANUM_FEED_KIND			2
#define ANUM_FEED_IS_DEFAULT	3
#define ANUM_FEED_CHANNEL		4
#define ANUM_FEED_KEY			5
#define ANUM_FEED_KEY_ATTNUMS	6
#define ANUM_FEED_KEY_TYPES		7
#define ANUM_FEED_DELETES		8
#define ANUM_FEED_KEY_TABLE		9
#define ANUM_FEED_KEY_MARK		14
#define NATTS_FEED				15

/* What the registry says of a feed. */
typedef struct RegistryRow
{
	FeedpubKind kind;
	bool		deletes;
	char	   *channel;
	FeedpubKey	key;
} RegistryRow;

typedef struct CachedFeed
{
	FeedpubCached head;
	FeedpubFeed feed;
} CachedFeed;

/* Their names in feedpub._feed. */
const char *const feedpub_registry_kinds[] = {"", "outbox", "changes", "table"};

static FeedpubCache feeds = {"feedpub feeds", sizeof(CachedFeed)};

/* the default feed, if it has been looked up since the last invalidation */
static Oid	default_relid = InvalidOid;
static uint64 default_found = 0;

/*
 * Raise 55000 unless one of our tables has as many columns as this library
 * knows.  It has not if the library was replaced by another version's and the
 * extension was not updated, or if the extension was updated and this session
 * has the library of before.
 *
 * A writer's statement must not fail because of that.  So what it reads and
 * writes only has to have the columns that it needs, all of which version 0.1
 * has.  A version adds columns at the end, and those that it adds can be null.
 * Then the row is stamped, and a delete leaves its tombstone, whichever library
 * the writer has; readers and publishers of the right version find both.
 */
void
feedpub_registry_check_version(Relation table, int natts)
{
	if (RelationGetDescr(table)->natts != natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" is of another version than the library",
						FEEDPUB_SCHEMA, RelationGetRelationName(table)),
				 errdetail("The library is of version %s.", FEEDPUB_VERSION),
				 errhint("Run ALTER EXTENSION feedpub UPDATE, then connect again; if that does not help, restart the server.")));
}

/*
 * The same for a table that writers use, which may have more.
 */
void
feedpub_registry_check_columns(Relation table, int natts)
{
	if (RelationGetDescr(table)->natts < natts)
		feedpub_registry_check_version(table, natts);
}

/*
 * Read the registry's row of a feed, or of the default feed if relid is
 * InvalidOid.  Returns the feed, or InvalidOid.  The row of a dropped table
 * means nothing; the next registration removes it.
 */
static Oid
scan_registry(Oid relid, RegistryRow *row)
{
	Relation	registry = table_open(feedpub_cache_registry(), AccessShareLock);
	Oid			indexid = InvalidOid;
	Datum		values[MaxHeapAttributeNumber];
	bool		nulls[MaxHeapAttributeNumber];
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	Oid			found = InvalidOid;

	feedpub_registry_check_columns(registry, ANUM_FEED_KEY_TABLE);
	if (OidIsValid(relid))
	{
		indexid = get_relname_relid("_feed_pkey", RelationGetNamespace(registry));
		ScanKeyInit(&key, ANUM_FEED_FEED, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(relid));
	}
	else
		ScanKeyInit(&key, ANUM_FEED_IS_DEFAULT, BTEqualStrategyNumber,
					F_BOOLEQ, BoolGetDatum(true));

	/* A NULL snapshot is a fresh one. */
	scan = systable_beginscan(registry, indexid, OidIsValid(indexid), NULL, 1, &key);
	nulls[ANUM_FEED_KEY_MARK - 1] = true;	/* an older table lacks it */
	while (!OidIsValid(found) && (tuple = systable_getnext(scan)) != NULL)
	{
		heap_deform_tuple(tuple, RelationGetDescr(registry), values, nulls);
		if (get_rel_name(DatumGetObjectId(values[ANUM_FEED_FEED - 1])) != NULL)
			found = DatumGetObjectId(values[ANUM_FEED_FEED - 1]);
	}
	if (OidIsValid(found))
	{
		row->kind = FEEDPUB_KIND_OUTBOX;
		while (strcmp(TextDatumGetCString(values[ANUM_FEED_KIND - 1]), feedpub_registry_kinds[row->kind]) != 0)
			row->kind++;
		row->deletes = DatumGetBool(values[ANUM_FEED_DELETES - 1]);
		row->channel = nulls[ANUM_FEED_CHANNEL - 1] ? NULL :
													  TextDatumGetCString(values[ANUM_FEED_CHANNEL - 1]);
		row->key.ncolumns = 0;
		if (!nulls[ANUM_FEED_KEY - 1])
			feedpub_key_load(&row->key, values[ANUM_FEED_KEY - 1], values[ANUM_FEED_KEY_ATTNUMS - 1],
							 values[ANUM_FEED_KEY_TYPES - 1],
							 nulls[ANUM_FEED_KEY_MARK - 1] ? (Datum) 0 : values[ANUM_FEED_KEY_MARK - 1]);
		row->key.numbers_hold = !nulls[ANUM_FEED_KEY_TABLE - 1] &&
			DatumGetObjectId(values[ANUM_FEED_KEY_TABLE - 1]) == found;
	}
	systable_endscan(scan);
	table_close(registry, AccessShareLock);
	return found;
}

/*
 * Another of our tables, or an index of one.
 */
Oid
feedpub_registry_table(const char *name)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid(FEEDPUB_SCHEMA, false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" does not exist", FEEDPUB_SCHEMA, name),
				 errhint("Run ALTER EXTENSION feedpub UPDATE.")));
	return relid;
}

/*
 * Does the registry have a row for this table, whatever state the table is in?
 */
bool
feedpub_registry_is_registered(Oid relid)
{
	return feedpub_registry_kind(relid) != FEEDPUB_KIND_NONE;
}

/*
 * What kind of feed is a table?
 */
FeedpubKind
feedpub_registry_kind(Oid relid)
{
	RegistryRow row;

	return OidIsValid(relid) && scan_registry(relid, &row) == relid ? row.kind : FEEDPUB_KIND_NONE;
}

/*
 * Is a table a table feed?
 */
bool
feedpub_registry_is_table(Oid relid)
{
	return feedpub_registry_kind(relid) == FEEDPUB_KIND_TABLE;
}

/*
 * The key of a table feed, and whether its deletes are published.  Returns
 * false if the table is not registered; *keyid is InvalidOid if the key is
 * gone.  The caller has the table open.
 */
bool
feedpub_registry_key(Relation rel, FeedpubKey *key, Oid *keyid, bool *deletes)
{
	bool		found = feedpub_registry_stored_key(RelationGetRelid(rel), key, deletes);

	*keyid = found ? feedpub_key_index(rel, key) : InvalidOid;
	return found;
}

/*
 * The same without a look at the table: its key as the registry has it.
 */
bool
feedpub_registry_stored_key(Oid relid, FeedpubKey *key, bool *deletes)
{
	RegistryRow row = {0};
	bool		found = scan_registry(relid, &row) == relid;

	*deletes = found && row.deletes;
	*key = row.key;
	return found;
}

/*
 * Raise 25000 in a parallel query.
 *
 * Its processes can take no snapshot, set nothing and begin no subtransaction.
 * So they could not tell a cursor that must be refused from one whose batch is
 * not here yet, and an empty page looks as if all had been read.  The functions
 * that read feeds are PARALLEL UNSAFE, so the planner makes no such query of
 * them.  It does if they are called by a function that is labelled otherwise.
 */
static void
refuse_parallel(Oid relid)
{
	if (IsInParallelMode())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot read feed \"%s\" in a parallel query",
						get_rel_name(relid) ? get_rel_name(relid) : "?"),
				 errdetail("A function that is labelled PARALLEL SAFE or RESTRICTED has called one that is PARALLEL UNSAFE."),
				 errhint("Label it PARALLEL UNSAFE, or read the page in a statement of its own, into a table.")));
}

/*
 * Find a feed.  The caller holds a lock on the table.  Returns false if it is
 * no feed; raises 55000 if it is one that cannot be read.  All functions that
 * read feeds come here.
 */
bool
feedpub_registry_find(Oid relid, FeedpubFeed *feed)
{
	CachedFeed *entry;
	FeedpubFeed fresh = {0};
	RegistryRow row;
	Relation	registry;
	Relation	rel;

	refuse_parallel(relid);
	entry = feedpub_cache_find(&feeds, relid);
	if (entry && entry->head.valid)
	{
		*feed = entry->feed;
		return true;
	}

	if (!OidIsValid(relid) || scan_registry(relid, &row) != relid)
		return false;
	registry = table_open(feedpub_cache_registry(), AccessShareLock);
	feedpub_registry_check_version(registry, NATTS_FEED);
	table_close(registry, AccessShareLock);

	rel = relation_open(relid, AccessShareLock);
	fresh.is_outbox = row.kind != FEEDPUB_KIND_TABLE;
	fresh.is_changes = row.kind == FEEDPUB_KIND_CHANGES;
	fresh.is_partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	fresh.deletes = row.deletes;
	fresh.keyid = fresh.is_outbox ? InvalidOid : feedpub_key_index(rel, &row.key);
	if (OidIsValid(fresh.keyid))
		fresh.key_state = feedpub_mark_compare(rel, fresh.keyid, &row.key);
	fresh.relid = relid;
	fresh.indexid = feedpub_relation_index(rel);
	fresh.xid_attno = get_attnum(relid, FEEDPUB_XID_COLUMN);
	fresh.pos_attno = get_attnum(relid, FEEDPUB_POS_COLUMN);
	relation_close(rel, AccessShareLock);

	if (!OidIsValid(fresh.indexid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no index on (%s, %s)",
						get_rel_name(relid),
						FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
				 fresh.is_outbox ?
					 errhint("Run feed_check() to see what is missing and feed_repair() to put it back.") :
					 errhint("feed_attach() returns the statement that creates it.")));

	/*
	 * Enter it last.  During the look-ups an invalidation may have come, but
	 * one that matters would have needed a lock that conflicts with the
	 * caller's.
	 */
	entry = feedpub_cache_enter(&feeds, relid);
	entry->feed = fresh;
	entry->head.valid = true;
	*feed = fresh;
	return true;
}

static void
refuse_other(Oid relid)
{
	if (OidIsValid(relid) && get_rel_name(relid) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a feed", get_rel_name(relid)),
				 errhint("feed_create() creates a feed, feed_attach() turns a table into one.")));
	else
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("feed with OID %u does not exist", relid)));
}

/*
 * Find a feed.  Raises 42809 if the table is no feed, 42P01 if there is none.
 */
void
feedpub_registry_get(Oid relid, FeedpubFeed *feed)
{
	if (!feedpub_registry_find(relid, feed))
		refuse_other(relid);
}

/*
 * The kind of a feed that may lack what readers need.  Raises the same errors.
 */
FeedpubKind
feedpub_registry_require(Oid relid)
{
	FeedpubKind kind = feedpub_registry_kind(relid);

	if (kind == FEEDPUB_KIND_NONE)
		refuse_other(relid);
	return kind;
}

/*
 * Open a feed's table.  Raises 42P01 if it was dropped while the call waited
 * for the lock.
 */
Relation
feedpub_registry_open(Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);

	if (rel == NULL)
		refuse_other(relid);
	return rel;
}

/*
 * The feed that feed_fetch() reads if none is named, or InvalidOid.
 */
Oid
feedpub_registry_default(void)
{
	RegistryRow row;

	/* another session may have set another one since our transaction began */
	AcceptInvalidationMessages();
	if (OidIsValid(default_relid) && feedpub_cache_end(default_found))
		return default_relid;

	default_found = feedpub_cache_begin();
	default_relid = scan_registry(InvalidOid, &row);
	return default_relid;
}

/*
 * All feeds whose tables exist, a List of OIDs in the current context.
 */
List *
feedpub_registry_list(void)
{
	static FeedpubStatement find = {
		.sql = "SELECT f.feed FROM feedpub._feed f WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = f.feed)",
		.latest = true,
	};

	return feedpub_store_list(&find, NULL);
}

/*
 * The channel on which a feed's batches are announced, or NULL.  It is read as
 * it is now, not cached.
 */
char *
feedpub_registry_channel(Oid relid)
{
	RegistryRow row = {0};

	(void) scan_registry(relid, &row);
	return row.channel;
}
