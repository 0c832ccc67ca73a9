/*-------------------------------------------------------------------------
 *
 * cache.c
 *	  What this backend knows of tables, until their definitions change.
 *
 * A cache is a hash table by the OID of a table.  registry.c keeps feeds in
 * one, partition.c partitions, write/stamp.c the tables whose rows it stamps.
 * Relcache invalidation makes an entry invalid: of its table, of a relation
 * that the entry depends on, or of feedpub._feed, which each change of the
 * registry invalidates, but for the floor, which is not cached.  Entries are
 * never freed, so a pointer to one stays good.  If an entry is not valid, what
 * it says has to be looked up again.
 *
 * An invalidation can come during the look-up of an entry, which opens
 * relations.  So feedpub_cache_begin() is called before the look-up, and after
 * it feedpub_cache_end(), which says whether none came, so that the entry is
 * valid.  (registry.c keeps what it has found in any case, and says why.)  An
 * entry that is not valid serves its caller, whose lock on the table keeps
 * what matters from changing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "feed/feed.h"

static FeedpubCache *caches = NULL;
static Oid	registry_relid = InvalidOid;	/* feedpub._feed, once looked up */
static uint64 generation = 0;	/* how many invalidations have come */

/*
 * Relcache callback: it marks entries and looks nothing up.  relid is
 * InvalidOid if the whole relcache is reset.
 */
static void
invalidate(Datum arg, Oid relid)
{
	bool		all = !OidIsValid(relid) || relid == registry_relid;

	generation++;
	if (all)
		registry_relid = InvalidOid;
	for (FeedpubCache *cache = caches; cache != NULL; cache = cache->next)
	{
		HASH_SEQ_STATUS status;
		FeedpubCached *entry;

		hash_seq_init(&status, cache->entries);
		while ((entry = hash_seq_search(&status)) != NULL)
		{
			if (all || entry->relid == relid || entry->feed == relid ||
				entry->seqid == relid || entry->table == relid || entry->root == relid)
				entry->valid = false;
		}
	}
}

static void
invalidate_all(Datum arg, int cacheid, uint32 hash)
{
	invalidate(arg, InvalidOid);
}

/*
 * Watch for invalidations.  _PG_init() calls this once.  A schema's name is part
 * of the names of its tables.
 */
void
feedpub_cache_init(void)
{
	CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, invalidate_all, (Datum) 0);
}

/*
 * The entry of a table, or NULL if there is none.
 */
void *
feedpub_cache_find(FeedpubCache *cache, Oid relid)
{
	return cache->entries == NULL ? NULL :
									hash_search(cache->entries, &relid, HASH_FIND, NULL);
}

/*
 * The entry of a table.  A new one is zero but for the OID, so it is not
 * valid.
 */
void *
feedpub_cache_enter(FeedpubCache *cache, Oid relid)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = cache->entry_size, .hcxt = TopMemoryContext};
	FeedpubCached *entry;
	bool		found;

	if (cache->entries == NULL)
	{
		cache->entries = hash_create(cache->name, 16, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		cache->next = caches;
		caches = cache;
	}
	entry = hash_search(cache->entries, &relid, HASH_ENTER, &found);
	if (!found)
	{
		MemSet(entry, 0, cache->entry_size);
		entry->relid = relid;
	}
	return entry;
}

/*
 * Begin a look-up.
 */
uint64
feedpub_cache_begin(void)
{
	uint64		before = generation;

	/* whose invalidation is to be known from now on */
	(void) feedpub_cache_registry();
	return before;
}

/*
 * End it: may what has been found be kept?
 */
bool
feedpub_cache_end(uint64 begun)
{
	return begun == generation;
}

/*
 * feedpub._feed.  Its schema is a member of the extension, so a table of this
 * name cannot be another role's.
 */
Oid
feedpub_cache_registry(void)
{
	if (!OidIsValid(registry_relid))
	{
		registry_relid = get_relname_relid("_feed",
										   get_namespace_oid(FEEDPUB_SCHEMA, false));
		if (!OidIsValid(registry_relid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("extension \"feedpub\" is not installed in this database")));
	}
	return registry_relid;
}
