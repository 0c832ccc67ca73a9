/*-------------------------------------------------------------------------
 *
 * feed.h
 *	  What a feed is: its registration, its table, key and partitions; xids.
 *
 * The order of locks, of all that feeds have.  A function that waits for one
 * of them has taken none of those after it:
 *
 * 1. the role whose shards are counted, then the name of a subscription, which
 *	  is its row in feedpub._subscription;
 * 2. the feed's history (feedpub_registry_lock_history());
 * 3. the feed's floor (feedpub_floor_lock());
 * 4. rows of feedpub._shard by number, then parked entries;
 * 5. the tables that are captured into the feed, then the feed's table;
 * 6. the publishing lock (feedpub_batch_lock());
 * 7. the table's partitions by OID, and the indexes of each table by OID,
 *	  as the planner and REINDEX TABLE lock them.
 *
 * feedpub_publish_together() locks several feeds, by OID: it waits for the
 * publishing locks only, and not for long.
 *
 * There are three exceptions.  feed_begin_history() needs ACCESS SHARE on the
 * table before it knows whether it needs EXCLUSIVE: readers and publishers do
 * not conflict with that.  What drops or detaches a feed locks the table
 * first, and then skips rows that are locked.  feed_capture() has ACCESS SHARE
 * on the feed before it locks the table, in attempts: only what drops or
 * detaches the feed conflicts with that, in attempts as well.
 *
 * A transaction of several statements may poll, which locks the table, and
 * acknowledge later.  Only DDL on that table conflicts with it.  So a
 * transaction that acknowledges and then alters the table can meet it in a
 * deadlock, as one that updates a row and then alters the table can.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_FEED_H
#define FEEDPUB_FEED_H

#include "access/genam.h"
#include "access/transam.h"
#include "access/tupconvert.h"
#include "executor/tuptable.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "server/server.h"

/* The triggers of a feed.  The name of the stamping one sorts last. */
#define FEEDPUB_STAMP_TRIGGER			"zz_feedpub_stamp"
#define FEEDPUB_GUARD_TRIGGER			"zz_feedpub_guard"	/* of an outbox */
#define FEEDPUB_DELETE_TRIGGER			"zz_feedpub_delete"
#define FEEDPUB_TRUNCATE_TRIGGER		"zz_feedpub_truncate"

/* That of a captured table. */
#define FEEDPUB_CAPTURE_TRUNCATE		"zz_feedpub_capture_truncate"

/* A column that a change feed has, and an outbox has not. */
#define FEEDPUB_CHANGES_COLUMN			"old_key"

/* The number of columns with which an outbox is created. */
#define FEEDPUB_OUTBOX_COLUMNS			9

/* How many rows of dropped feeds are removed in a session of another one. */
#define FEEDPUB_SWEEP_ROWS				10000

/* What has become of a table feed's key since its history began. */
typedef enum FeedpubKeyState
{
	FEEDPUB_KEY_SAME,
	FEEDPUB_KEY_UNMARKED,		/* but its mark is to be written again */
	FEEDPUB_KEY_CHANGED
} FeedpubKeyState;

/* The kinds of feeds. */
typedef enum FeedpubKind
{
	FEEDPUB_KIND_NONE,			/* no feed */
	FEEDPUB_KIND_OUTBOX,
	FEEDPUB_KIND_CHANGES,
	FEEDPUB_KIND_TABLE,
} FeedpubKind;

/* What a registered feed is, as the readers need it. */
typedef struct FeedpubFeed
{
	Oid			relid;			/* the table */
	Oid			indexid;		/* its index on (feed_xid, feed_pos) */
	AttrNumber	xid_attno;
	AttrNumber	pos_attno;
	bool		is_outbox;		/* or a change feed: no row of it changes */
	bool		is_changes;
	bool		is_partitioned; /* a table feed whose rows are in partitions */
	bool		deletes;		/* a table feed that publishes deletes */
	Oid			keyid;			/* a table feed's key, if it is there */
	FeedpubKeyState key_state;
} FeedpubFeed;

/* A table with rows of a feed: the feed's own, or a partition. */
typedef struct FeedpubPartition
{
	Relation	heap;
	Relation	index;			/* its index on (feed_xid, feed_pos) */
	AttrNumber	xid_attno;
	Oid			keyid;			/* its index that is the feed's key */
	Relation	key;			/* the same, opened when it is used */
	uint64		since;			/* rows with smaller xids are not in the feed */
	bool	   *history_checked;	/* this backend found no foreign stamps */
	bool		has_map;		/* map has been looked for */
	TupleConversionMap *map;	/* to the feed's row type, unless it is that */
	TupleTableSlot *slot;		/* of the feed's row type */
} FeedpubPartition;

/* All of them that are read together, in the order of their OIDs. */
typedef struct FeedpubPartitions
{
	Relation	table;			/* the feed's own table */
	bool		is_partitioned;
	LOCKMODE	unlock;			/* the lock that is given back with them */
	int			n;
	FeedpubPartition *partitions;
} FeedpubPartitions;

/* Up to where rows or deletes have been removed: the end of a batch. */
typedef struct FeedpubFloor
{
	uint32		history;		/* the feed's random number */
	int64		sync_id;		/* its number; 0: nothing has been removed */
	int64		pos;			/* its last position */
	bool		merged;
	uint32		fingerprint;
	uint64		removed_xid;	/* of an outbox: the largest stamp removed */
	int64		removed_pos;
	TimestampTz moved_at;
} FeedpubFloor;

/* No row of such a partition is in the feed (partition_join.c). */
#define FEEDPUB_SINCE_NEVER			PG_UINT64_MAX

/* The largest mark of a key (key_mark.c). */
#define FEEDPUB_KEY_MARK_LENGTH		(4 + INDEX_MAX_KEYS)

/* The columns of a table feed's key, as the registry keeps them. */
typedef struct FeedpubKey
{
	int			ncolumns;
	NameData	names[INDEX_MAX_KEYS];
	AttrNumber	attnos[INDEX_MAX_KEYS];
	Oid			types[INDEX_MAX_KEYS];	/* since the history began */
	bool		numbers_hold;	/* of this table, not of a dump's */
	int			nmark;
	int64		mark[FEEDPUB_KEY_MARK_LENGTH];
} FeedpubKey;

/* What every entry of a cache begins with. */
typedef struct FeedpubCached
{
	Oid			relid;			/* the table; the hash key */
	bool		valid;
	Oid			feed;			/* other relations whose invalidation counts */
	Oid			seqid;
	Oid			table;
	Oid			root;
} FeedpubCached;

/* What a backend knows of tables, for the file that defines it. */
typedef struct FeedpubCache
{
	const char *name;
	Size		entry_size;
	struct HTAB *entries;		/* NULL: none yet */
	struct FeedpubCache *next;
} FeedpubCache;

/* A statement on our tables; its plan is kept. */
typedef struct FeedpubStatement
{
	const char *sql;
	bool		latest;			/* with a new snapshot in any isolation level */

	/* when it has been prepared */
	struct _SPI_plan *plan;
	int			nargs;
	bool		by_value[21];	/* the types of its arguments */
} FeedpubStatement;

/* in cache.c */
extern void feedpub_cache_init(void);
extern void *feedpub_cache_find(FeedpubCache *cache, Oid relid);
extern void *feedpub_cache_enter(FeedpubCache *cache, Oid relid);
extern uint64 feedpub_cache_begin(void);
extern bool feedpub_cache_end(uint64 begun);
extern Oid	feedpub_cache_registry(void);

/* in catalog.c */
extern bool feedpub_catalog_is_stamped_predicate(Relation rel, Relation index);
extern List *feedpub_catalog_partitions(Oid relid);
extern bool feedpub_catalog_has_plain_partition_key(Oid relid);
extern bool feedpub_catalog_route(Relation table, int nkeys,
								  const AttrNumber *attnos,
								  const Datum *values, Oid *partition);

/* in durable.c */
extern void feedpub_durable_commits(const FullTransactionId *xids,
									int nxids,
									FullTransactionId horizon);
extern void feedpub_durable_all(void);

/* in floor.c */
extern void feedpub_floor_read(Oid feed, Snapshot snapshot,
							   FeedpubFloor *floor);
extern uint32 feedpub_floor_history(Oid feed, Snapshot snapshot);
extern bool feedpub_floor_lock(Oid feed, LOCKMODE lockmode, bool wait);
extern char *feedpub_floor_subscriber(Oid feed);

/* in foreign.c */
extern void feedpub_foreign_refuse_cursor(const FeedpubFeed *feed,
										  FullTransactionId after_xid);
extern bool feedpub_foreign_exists(const FeedpubPartitions *partitions,
								   FullTransactionId *stamp);
extern bool feedpub_foreign_has_unstamped(Relation rel);

/* in history.c */
extern void feedpub_history_check(const FeedpubFeed *feed,
								  const FeedpubPartitions *partitions);
extern bool feedpub_history_has_foreign(Relation rel, FullTransactionId *stamp);
extern void feedpub_history_check_changes(const FeedpubFeed *feed, Relation table,
										  Snapshot snapshot);

/* in horizon.c */
extern FullTransactionId feedpub_horizon(Snapshot snapshot);
extern FullTransactionId feedpub_horizon_widen(TransactionId xid,
											   FullTransactionId next);
extern bool feedpub_horizon_committed(FullTransactionId xid);

/* in key.c */
extern const char *feedpub_key_problem(Relation rel, Relation index);
extern Oid	feedpub_key_primary(Relation rel);
extern void feedpub_key_load(FeedpubKey *key, Datum names, Datum attnums,
							 Datum types, Datum mark);
extern Oid	feedpub_key_type(Relation rel, AttrNumber attno);
extern Oid	feedpub_key_index(Relation rel, const FeedpubKey *key);
extern int	feedpub_key_attnos(Relation rel, const FeedpubKey *key,
							   AttrNumber *attnos);
extern void feedpub_key_of_partition(Oid relid, Oid partition, FeedpubKey *key);
extern int	feedpub_key_columns(Oid keyid, AttrNumber *attnos);
extern int	feedpub_key_pin(TupleDesc desc, int nkeys, const AttrNumber *attnos);
extern int	feedpub_key_pin_settings(void);
extern void feedpub_key_unpin(int pinned);
extern Datum feedpub_key_pinned_texts(TupleDesc desc, int nkeys,
									  const AttrNumber *attnos,
									  TupleTableSlot *slot);
extern Datum feedpub_key_texts(TupleDesc desc, int nkeys,
							   const AttrNumber *attnos, TupleTableSlot *slot);
extern AttrNumber feedpub_key_runs_code(Relation rel, Relation index);
extern const char *feedpub_key_values(Relation rel, Relation index, Datum key,
									  Datum *values);
extern TupleTableSlot *feedpub_key_find(Relation rel, Relation index, Datum *values,
										Snapshot snapshot);
extern bool feedpub_key_lives(Relation rel, Relation index, Datum *values,
							  Snapshot snapshot, Datum *living);
extern int	feedpub_key_of_feed(const FeedpubFeed *feed, Relation rel,
								AttrNumber *attnos);
extern void feedpub_key_check_shards(const FeedpubFeed *feed, Relation rel);
extern int	feedpub_key_shard(Datum key, int shards);

/* in key_mark.c */
extern int	feedpub_mark_read(Relation rel, Oid keyid, int64 *mark);
extern FeedpubKeyState feedpub_mark_compare(Relation rel, Oid keyid,
											const FeedpubKey *key);
/* in lost.c */
extern void feedpub_lost_note(Oid feed);
extern bool feedpub_lost_exists(Oid feed, Snapshot snapshot);

/* in own_changes.c */
extern void feedpub_own_changes_hide(Snapshot snapshot);
extern bool feedpub_own_changes_has_lock(Oid relid);
extern void feedpub_own_changes_refuse(Relation table);

/* in partition.c */
extern Oid	feedpub_partition_feed(Oid relid);
extern List *feedpub_partition_list(Relation rel, bool keep_locks);
extern bool feedpub_partition_has_indexes(Relation rel);
extern bool feedpub_partition_sees_tables(const FeedpubPartitions *partitions, Snapshot snapshot);
extern FeedpubPartitions *feedpub_partition_open(const FeedpubFeed *feed,
												 Relation heap, Snapshot snapshot,
												 bool keep_locks);
extern void feedpub_partition_close(FeedpubPartitions *partitions);
extern TupleTableSlot *feedpub_partition_convert(FeedpubPartitions *partitions,
												 FeedpubPartition *partition,
												 TupleTableSlot *slot);

/* in partition_join.c */
extern bool feedpub_partition_has_new(const FeedpubFeed *feed, Relation heap,
									  Snapshot snapshot);
extern FeedpubPartitions *feedpub_partition_admit(const FeedpubFeed *feed, Relation heap,
												  bool *admitted, bool *guarded);
extern void feedpub_partition_begin(Oid feed);

/* in partition_list.c */
extern uint64 feedpub_partition_since(Oid feed, Relation rel);
extern bool feedpub_partition_had_guard(Oid feed, Oid partition);

/* in partition_truncate.c */
extern bool feedpub_partition_guard(Oid feed);
extern void feedpub_partition_guard_captured(void);
extern void feedpub_partition_create_trigger(Oid relid, const char *name, const char *function);

/* in registry.c */
extern bool feedpub_registry_is_registered(Oid relid);
extern Oid	feedpub_registry_table(const char *name);
extern void feedpub_registry_check_version(Relation table, int natts);
extern void feedpub_registry_check_columns(Relation table, int natts);
extern const char *const feedpub_registry_kinds[];
extern FeedpubKind feedpub_registry_kind(Oid relid);
extern bool feedpub_registry_is_table(Oid relid);
extern FeedpubKind feedpub_registry_require(Oid relid);
extern bool feedpub_registry_key(Relation rel, FeedpubKey *key, Oid *keyid,
								 bool *deletes);
extern bool feedpub_registry_stored_key(Oid relid, FeedpubKey *key,
										bool *deletes);
extern bool feedpub_registry_find(Oid relid, FeedpubFeed *feed);
extern void feedpub_registry_get(Oid relid, FeedpubFeed *feed);
extern Relation feedpub_registry_open(Oid relid);
extern Oid	feedpub_registry_default(void);
extern List *feedpub_registry_list(void);
extern char *feedpub_registry_channel(Oid relid);

/* in registry_write.c */
extern bool feedpub_registry_sweep(int max_rows);
extern void feedpub_registry_set_channel(Oid relid, const char *channel);
extern void feedpub_registry_add(Oid relid, FeedpubKind kind,
								 bool may_be_default);
extern void feedpub_registry_remove(Oid relid);
extern void feedpub_registry_refuse_subscribed(Oid relid, const char *what);
extern bool feedpub_registry_lock_history(Oid relid, LOCKMODE lockmode,
										  bool wait);
extern void feedpub_registry_begin_history(Oid relid);
extern void feedpub_registry_set_key(Relation rel, Oid keyid, bool deletes);
extern void feedpub_registry_note_key(Relation rel, Oid keyid);
extern void feedpub_registry_set_unstamped(Oid relid, bool unstamped);
extern bool feedpub_registry_is_unstamped(Oid relid);
extern void feedpub_registry_set_default(Oid relid);

/* in relation.c */
extern Oid	feedpub_relation_function(const char *name, int nargs,
									  const Oid *argtypes);
extern Oid	feedpub_relation_schema(void);
extern char *feedpub_relation_name(Oid relid);
extern void feedpub_require_owner(Oid relid);
extern bool feedpub_may_select(Oid relid);
extern void feedpub_require_select(Oid relid);
extern void feedpub_refuse_select(Oid relid);
extern Oid	feedpub_relation_sequence(Oid relid);
extern Oid	feedpub_relation_index(Relation rel);
extern bool feedpub_relation_has_invalid_index(Relation rel);
extern char *feedpub_relation_index_cure(Relation rel, bool concurrently);
extern int64 feedpub_relation_last_pos(Oid seqid);
extern Oid	feedpub_relation_trigger(Relation rel, const char *function);
extern bool feedpub_relation_has_default_row_type(Relation rel);
extern Size feedpub_relation_row_size(TupleTableSlot *slot, Size (*size_of)(Datum value));

/* in snapshot.c */
extern bool feedpub_snapshot_sees_table(Snapshot snapshot, Oid relid);
extern void feedpub_snapshot_check_index(Snapshot snapshot, Oid indexid);
extern IndexScanDesc feedpub_snapshot_begin_scan(Relation heap, Relation index,
												 Snapshot snapshot, int nkeys);
extern void feedpub_snapshot_select(struct _SPI_plan *plan, Datum *values,
									Relation feed);

/* in store.c */
extern void feedpub_store_begin(FeedpubRole *caller);
extern void feedpub_store_end(const FeedpubRole *caller);
extern uint64 feedpub_store_run(FeedpubStatement *statement, Datum *values,
								const char *nulls);
extern uint64 feedpub_store_execute(FeedpubStatement *statement, Datum *values,
									const char *nulls);
extern int64 feedpub_store_number(FeedpubStatement *statement, Datum *values,
								  int64 none);
extern Datum feedpub_store_value(uint64 row, int column, bool *isnull);
extern void *feedpub_store_copy(uint64 row, int column);
extern List *feedpub_store_list(FeedpubStatement *statement, Datum *values);

#endif							/* FEEDPUB_FEED_H */
