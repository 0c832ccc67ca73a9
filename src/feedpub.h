/*-------------------------------------------------------------------------
 *
 * feedpub.h
 *	  Types and functions that more than one file of feedpub uses.
 *
 * Layers, each calling only those below it:
 *
 *		feedpub.c launcher.c worker.c				start, processes
 *		feed.c attach.c fetch.c publish.c read.c
 *		begin_history.c republish.c retention.c stats.c wait.c
 *		flush.c worker_control.c
 *		subscription.c, _poll, _delivery, _ack,
 *		_park, _retry, _lag, _start					the verbs
 *		subscription_lease.c, _receipt, store.c		our tables
 *		maintenance_plan.c maintenance.c restamp.c	rows get a new stamp
 *		json.c page.c entry.c initial.c	a page of a feed
 *		jsonvalue.c									a value as JSON
 *		stamp.c change.c							inside a writer's statement
 *		repair.c check.c check_sequence.c
 *		check_trigger.c history.c					does a feed stand
 *		batch.c run.c key.c tombstone.c
 *		partition.c partition_list.c
 *		cursor.c									what feeds and batches are
 *		registry.c registry_write.c
 *		horizon.c shmem*.c guc.c					finding feeds; xids; settings
 *		relation.c catalog.c role.c					others' tables, other roles
 *		attempt.c argument.c						work that may fail; arguments
 *		compat.h									server versions
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_H
#define FEEDPUB_H

#include "access/htup.h"
#include "access/transam.h"
#include "access/tupconvert.h"
#include "access/xlogdefs.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "nodes/nodes.h"
#include "nodes/pg_list.h"
#include "storage/condition_variable.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "nodes/execnodes.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"

#include "base/compat.h"

/* SQLSTATEs of our own; everything else uses the server's. */
#define ERRCODE_FEED_FOREIGN_HISTORY	MAKE_SQLSTATE('P','F','0','0','1')
#define ERRCODE_FEED_CURSOR_EXPIRED		MAKE_SQLSTATE('P','F','0','0','2')
#define ERRCODE_FEED_LEASE_LOST			MAKE_SQLSTATE('P','F','0','0','3')
#define ERRCODE_FEED_GUARDED			MAKE_SQLSTATE('P','F','0','0','4')
#define ERRCODE_FEED_ALREADY_ACKNOWLEDGED	MAKE_SQLSTATE('P','F','0','0','5')

/* The schema of our tables, views and internal functions. */
#define FEEDPUB_SCHEMA					"feedpub"

/* The columns of the stamp. */
#define FEEDPUB_XID_COLUMN				"feed_xid"
#define FEEDPUB_POS_COLUMN				"feed_pos"

/* The triggers of a feed.  The name of the one that stamps sorts last. */
#define FEEDPUB_STAMP_TRIGGER			"zz_feedpub_stamp"
#define FEEDPUB_GUARD_TRIGGER			"zz_feedpub_guard"	/* of an outbox */
#define FEEDPUB_DELETE_TRIGGER			"zz_feedpub_delete"
#define FEEDPUB_TRUNCATE_TRIGGER		"zz_feedpub_truncate"	/* before it */
#define FEEDPUB_RESTART_TRIGGER			"zz_feedpub_restart"	/* after it */

/* How many columns an outbox is made with. */
#define FEEDPUB_OUTBOX_COLUMNS			9

/* What a registered feed is, as the readers need it. */
typedef struct FeedpubFeed
{
	Oid			relid;			/* the table */
	Oid			indexid;		/* its index on (feed_xid, feed_pos) */
	AttrNumber	xid_attno;
	AttrNumber	pos_attno;
	bool		is_outbox;
	bool		is_partitioned; /* a table feed whose rows are in partitions */
	bool		deletes;		/* a table feed that publishes deletes */
	Oid			keyid;			/* a table feed's key, if it is there */
	bool		history_checked;	/* this backend found no foreign stamps */
} FeedpubFeed;

/* A table that rows of a feed are in: the feed's own, or a partition. */
typedef struct FeedpubLeaf
{
	Relation	heap;
	Relation	index;			/* its index on (feed_xid, feed_pos) */
	AttrNumber	xid_attno;
	Oid			keyid;			/* its index that is the feed's key */
	Relation	key;			/* the same, once it is used */
	uint64		since;			/* rows with smaller xids are not in the feed */
	bool		has_map;		/* map has been looked for */
	TupleConversionMap *map;	/* to the feed's row type, unless it is that */
	TupleTableSlot *slot;		/* of the feed's row type */
} FeedpubLeaf;

/* All of them that are read together, in the order of their OIDs. */
typedef struct FeedpubLeaves
{
	Relation	table;			/* the feed's own table */
	bool		is_partitioned;
	LOCKMODE	unlock;			/* what is given back with them */
	int			n;
	FeedpubLeaf *leaves;
} FeedpubLeaves;

/* A snapshot as batches keep it: 64-bit xids, those running sorted. */
typedef struct FeedpubSnapshot
{
	uint64		xmin;
	uint64		xmax;
	int			nxip;
	uint64	   *xip;
} FeedpubSnapshot;

/* One batch of a feed in published order. */
typedef struct FeedpubBatch
{
	int64		sync_id;		/* 0: the beginning, before the first one */
	FeedpubSnapshot snapshot;
	int64		last_pos;		/* the largest position in it */
	int			transactions;	/* how many are in it */
	uint32		fingerprint;
	uint32		seed;			/* of which the fingerprint was made */
	TimestampTz published_at;
	bool		is_merged;
	int64		merged_from;	/* the number of its oldest part */
	int64		merged_pos;		/* the largest position in its youngest part */
	FullTransactionId publisher;	/* which wrote its row, if known */
} FeedpubBatch;

typedef struct FeedpubBatchScan FeedpubBatchScan;

/* One row's entry in the index. */
typedef struct FeedpubEntry
{
	int64		pos;
	ItemPointerData tid;
} FeedpubEntry;

/* Where runs are: the feed's tombstones; then its tables, each for itself. */
#define FEEDPUB_RUN_TOMBSTONES	0

/* The entries of one transaction, some of which have been read. */
typedef struct FeedpubRun
{
	int			source;
	struct FeedpubRun *sibling; /* publish.c: another of this transaction */
	uint64		xid;
	int64		pos;			/* of the current entry, or not beyond it */
	int			nentries;		/* 0: to be read, from pos on */
	int			current;
	FeedpubEntry *entries;
	bool		more;			/* there are more behind the last one */
} FeedpubRun;

typedef struct FeedpubRunReader FeedpubRunReader;

typedef struct FeedpubInitialScan FeedpubInitialScan;

/* Up to where tombstones have expired, and which life of the feed it is. */
typedef struct FeedpubFloor
{
	int64		sync_id;
	int64		pos;
	uint32		history;		/* random */
} FeedpubFloor;

/* A place in the published order. */
typedef struct FeedpubCursor
{
	bool		given;			/* false: '', the beginning */
	bool		initial;		/* in the initial snapshot, not in a batch */
	bool		merged;			/* in a batch that others were merged into */
	uint32		history;		/* FeedpubFloor.history */
	int64		sync_id;		/* of the batch; initial: which table */
	int64		pos;			/* in it; initial: a row identifier */
	uint32		fingerprint;	/* of the batch; initial: of the file */
	uint64		server_start;	/* of the server that made it */
	int64		base;			/* see check_floor() in page.c */
	uint64		wal;			/* reserved */
} FeedpubCursor;

/* No row of such a partition is in the feed (partition.c). */
#define FEEDPUB_SINCE_NEVER			PG_UINT64_MAX

/* Whom a publisher waits for: others of the feed, and its table's locks. */
typedef enum FeedpubPublishWait
{
	FEEDPUB_WAIT_FOR_NOBODY,
	FEEDPUB_WAIT_FOR_PUBLISHER,
	FEEDPUB_WAIT_FOR_ALL,
} FeedpubPublishWait;

/* What a publisher's step has done, besides its transactions. */
typedef struct FeedpubPublished
{
	int			batches;
	bool		announce;		/* on a channel, when it has committed */
} FeedpubPublished;

/* a page ends when its rows have this many bytes, whatever max_rows */
#define FEEDPUB_MAX_PAGE_BYTES	(64 * 1024 * 1024)

/* What an entry of a page is. */
typedef enum FeedpubOp
{
	FEEDPUB_OP_UPSERT,
	FEEDPUB_OP_DELETE,			/* entry has the key, and else nulls */
	FEEDPUB_OP_TRUNCATE,		/* entry has only nulls */
} FeedpubOp;

/* One row of a page. */
typedef struct FeedpubPageRow
{
	FeedpubCursor cursor;
	uint64		xid;			/* 0: it has no stamp */
	TimestampTz published_at;	/* its batch; 0: it is in none */
	Oid			leaf;			/* and tid: of a row that is read in place */
	ItemPointerData tid;
	FeedpubOp	op;
	HeapTuple	entry; /* the row, columns out of line as they are;
								 * NULL when hidden */
	Datum		texts;			/* a delete whose key is no value any more: it */
} FeedpubPageRow;

/* One page being read; all of it lives in one memory context. */
typedef struct FeedpubPage
{
	FeedpubFeed feed;
	Relation	heap;
	FeedpubLeaves *leaves;		/* where its rows are */
	Snapshot	snapshot;		/* of its rows, without own changes */
	Snapshot	state;			/* the same with them, of our tables */
	bool		direct;			/* no executor needed */
	bool		sees_all;		/* no row security */
	FeedpubCursor after;
	int			max_rows;
	int			shard;			/* only keys of this shard, of so many */
	int			shards;
	FeedpubPageRow *rows;
	int			nrows;
	int			maxrows;
	Size		nbytes;
	FeedpubCursor passed;		/* how far the page got */
	FeedpubFloor floor;			/* before which it cannot begin */
	int64		base;			/* and server_start: what its cursors carry */
	uint64		server_start;
	int			npassed;		/* rows and batches without a row in the page */
	bool		missed;			/* something was passed that somebody removed */
	bool		more;			/* something may lie behind it */
	bool		hurried;		/* does not wait for rows to be published */
	FeedpubBatch last;			/* the last batch that was looked at */
	FullTransactionId publisher;	/* of the last batch in the page */
	FeedpubRunReader *reader;
	Relation	key;			/* the index that is a table feed's key */

	/* of a reader of one shard */
	MemoryContext row_context;
	int			nkeys;
	AttrNumber	keys[INDEX_MAX_KEYS];
} FeedpubPage;

/* Which rows of a table a pass looks for, one kind after the other. */
typedef enum FeedpubRestampKind
{
	FEEDPUB_RESTAMP_UNSTAMPED,	/* without a stamp, or with half of one */
	FEEDPUB_RESTAMP_OLD,		/* with an xid below a bound */
	FEEDPUB_RESTAMP_FOREIGN,	/* with one that this server has not assigned */
	FEEDPUB_RESTAMP_END,
} FeedpubRestampKind;

/* The rows of a table that are to be stamped anew, and how far that has got. */
typedef struct FeedpubRestamp
{
	Oid			relid;
	uint64		below;			/* the bound; 0: there are no old ones */
	bool		foreign;		/* look for them as well, ... */
	bool		only_foreign;	/* ... or for nothing else */

	/* where the pass is */
	FeedpubRestampKind kind;
	Oid			file;			/* which its row identifiers are of */
	uint64		xid;
	int64		pos;
	ItemPointerData tid;
	int64		found;			/* in it, but those that failed */
	int64		moved;			/* of these have been stamped */
	int64		failed;			/* or a trigger has suppressed */
	bool		ended;

	/* of the step */
	int64		stamped;
	int64		left;			/* rows that others have locked, or changed */
	ItemPointerData left_tid;	/* one of them */
	char	   *error;			/* what the last that failed has raised */
	ItemPointerData error_tid;
} FeedpubRestamp;

/* What a step for the partitions of a feed came to. */
typedef enum FeedpubStampingOutcome
{
	FEEDPUB_STAMPING_NOTHING,	/* nothing is to be done, or another is at it */
	FEEDPUB_STAMPING_WAITS,		/* for locks, or transactions that still run */
	FEEDPUB_STAMPING_GOES_ON,
} FeedpubStampingOutcome;

typedef struct FeedpubStamping
{
	FeedpubStampingOutcome outcome;
	int			npending;		/* partitions that have such rows, or may have */
	int64		stamped;
} FeedpubStamping;

/* Length of a cursor as text. */
#define FEEDPUB_CURSOR_LENGTH	99

struct		Latch;

/* What shared memory knows of one database; its fields are shmem.c's. */
typedef struct FeedpubDatabase FeedpubDatabase;

/* A feed that a prepared transaction has written to; InvalidOid: all. */
typedef struct FeedpubPrepared
{
	Oid			feed;
	TransactionId xid;
} FeedpubPrepared;

#define FEEDPUB_MAX_DATABASES	32
#define FEEDPUB_MAX_DIRTY		48
#define FEEDPUB_MAX_PREPARED	16
#define FEEDPUB_MAX_ASKED		8

/* What the workers of a database have done since the server started. */
typedef struct FeedpubWorkerStats
{
	int64		turns;			/* of the loop */
	int64		wakeups;		/* turns because somebody set the latch */
	int64		batches;		/* published */
	int64		transactions;	/* in them */
	int64		stamped;		/* rows, for feed_republish() */
	int64		errors;			/* steps that failed */
	int			failing;		/* feeds whose last attempt failed; no counter */
} FeedpubWorkerStats;

/* Room for a worker's last error. */
#define FEEDPUB_ERROR_LENGTH	256

/* How it stands with the worker of a database. */
typedef enum FeedpubWorkerState
{
	FEEDPUB_WORKER_RUNNING,
	FEEDPUB_WORKER_NONE,		/* the next reader starts it */
	FEEDPUB_WORKER_STOPPED,		/* by hand */
	FEEDPUB_WORKER_REFUSED,		/* the server has no room for one */
} FeedpubWorkerState;

/* One database's entry in shared memory, copied for who looks at it. */
typedef struct FeedpubWorkerInfo
{
	Oid			dbid;
	int			pid;			/* 0: no worker */
	bool		wanted;
	bool		stopped;
	TimestampTz started_at;
	FeedpubWorkerStats stats;
	TimestampTz error_at;		/* 0: there was none */
	Oid			error_feed;
	int			error_encoding;
	char		error[FEEDPUB_ERROR_LENGTH];
} FeedpubWorkerInfo;

/* The columns of a table feed's key, as the registry keeps them. */
typedef struct FeedpubKey
{
	int			ncolumns;
	NameData	names[INDEX_MAX_KEYS];
	AttrNumber	attnos[INDEX_MAX_KEYS];
	bool		numbers_hold;	/* they are of this table, not of a dump's */
} FeedpubKey;

/* What a type's input function does, the worst last. */
typedef enum FeedpubInput
{
	FEEDPUB_INPUT_PLAIN,
	FEEDPUB_INPUT_LOCKS,		/* the relation of a composite type */
	FEEDPUB_INPUT_RUNS_CODE,	/* of a domain's owner, too */
} FeedpubInput;

/* One thing that a feed needs and that its owner has undone. */
typedef struct FeedpubProblem
{
	const char *guard;			/* which guard, one word */
	char	   *problem;		/* what is wrong, a sentence */
	char	   *cure;			/* SQL that puts it right, or NULL */
	bool		by_hand;		/* which only the client can run */
	bool		apart;			/* whatever else is cured */
	bool		as_caller;		/* it makes a relation */
} FeedpubProblem;

/* A statement on our tables; its plan is kept. */
typedef struct FeedpubStatement
{
	const char *sql;
	int			nargs;
	Oid			argtypes[16];
	struct _SPI_plan *plan;
} FeedpubStatement;

/* Who called, while we are another role. */
typedef struct FeedpubRole
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;		/* of the settings */
} FeedpubRole;

/* The shards of a subscription, the place and the lease of each. */
typedef struct FeedpubShard
{
	int			shard;
	text	   *cursor;			/* up to where it has been acknowledged */
	int64		state;			/* subscription_receipt.c */
	char	   *consumer;		/* whose it is, or NULL */
	TimestampTz leased_until;
	int			parked;			/* how many entries are parked */
} FeedpubShard;

typedef struct FeedpubSubscription
{
	text	   *name;
	Oid			feed;
	Oid			owner;
	Interval   *lease;
	int64		lease_ms;
	int			max_attempts;	/* 0: any number */
	TimestampTz seen_until;		/* of the consumer that asks, or 0 */
	int			nshards;
	int			nloaded;		/* those of them that have been read */
	FeedpubShard *shards;
} FeedpubSubscription;

/* What feed_ack() and its kin are given: subscription_receipt.c. */
typedef struct FeedpubReceipt
{
	char		kind;			/* FEEDPUB_RECEIPT_... */
	int			shard;
	int64		state;			/* of the shard, or of the parked entry */
	int64		page;
	text	   *cursor;
	FeedpubCursor place;		/* the same */
} FeedpubReceipt;

#define FEEDPUB_RECEIPT_PLAIN	'p' /* of a page */
#define FEEDPUB_RECEIPT_LEASED	'l' /* of one for a consumer with a name */
#define FEEDPUB_RECEIPT_RETRY	'r' /* of a parked entry */

/* length of a receipt up to its cursor */
#define FEEDPUB_RECEIPT_PREFIX	37

/* What an acknowledgement did. */
typedef enum FeedpubAck
{
	FEEDPUB_ACK_DONE,
	FEEDPUB_ACK_ALREADY,		/* one with the same receipt had done it */
	FEEDPUB_ACK_LOST,
} FeedpubAck;

/* A parked entry that is delivered again. */
typedef struct FeedpubRetried
{
	text	   *cursor;
	FeedpubOp	op;
	uint64		xid;
	int64		pos;
	TimestampTz published_at;	/* 0: not known */
	Datum		key_texts;		/* of a table feed's key; 0 without one */
	bool		unreadable;		/* which is no value any more */
	text	   *key;			/* JSON, as it was parked, or NULL */
	text	   *row;
	bool		discarded;
	int			attempts;		/* how often it has failed */
	int64		state;
} FeedpubRetried;

/* how many shards a subscription may have; receipts have room for them */
#define FEEDPUB_MAX_SHARDS	1024

/* Values as JSON, and how those of a type are written. */
typedef struct FeedpubJsonValues FeedpubJsonValues;
typedef struct FeedpubJsonType FeedpubJsonType;

/* A row of a page in the wire format. */
typedef struct FeedpubJsonEntry
{
	FeedpubPageRow *row;
	StringInfo	json;			/* ends with the entry, an object */
	int			key;			/* where in it the key is */
	int			key_length;		/* 0: it is null */
	int			value;			/* and the row */
	int			value_length;	/* 0: there is none */
	char		xid[24];		/* "" in the initial snapshot */
	const char *error;			/* why there is no row, or NULL */
} FeedpubJsonEntry;

typedef bool (*FeedpubJsonTake)(FeedpubJsonEntry *entry, void *arg);

/* in guc.c */
extern int	feedpub_max_page_rows;

extern int	feedpub_max_batch_transactions;
extern int	feedpub_publish_synchronous_commit;
extern int	feedpub_max_subscription_shards;
extern int	feedpub_naptime;
extern int	feedpub_publish_interval;
extern int	feedpub_read_wait;
extern int	feedpub_max_workers;
extern int	feedpub_batch_retention;
extern int	feedpub_max_unmerged_batches;
extern int	feedpub_tombstone_retention;
extern int	feedpub_stamping_rate;

extern void feedpub_guc_define(void);
extern const char *feedpub_guc_publish_commit_name(void);

/* in registry.c */
extern void feedpub_registry_init(void);
extern bool feedpub_registry_is_registered(Oid relid);
extern Oid	feedpub_registry_relid(void);
extern Oid	feedpub_registry_table(const char *name);
extern void feedpub_registry_check_version(Relation table, int natts);
extern void feedpub_registry_floor(Oid relid, Snapshot snapshot,
								   FeedpubFloor *floor);
extern bool feedpub_registry_is_table(Oid relid);
extern bool feedpub_registry_key(Relation rel, FeedpubKey *key, Oid *keyid,
								 bool *deletes);
extern bool feedpub_registry_stored_key(Oid relid, FeedpubKey *key,
										bool *deletes);
extern bool feedpub_registry_find(Oid relid, FeedpubFeed *feed);
extern void feedpub_registry_get(Oid relid, FeedpubFeed *feed);
extern Relation feedpub_registry_open(Oid relid);
extern void feedpub_registry_note_history(Oid relid);
extern Oid	feedpub_registry_default(void);
extern List *feedpub_registry_list(bool *stale);
extern char *feedpub_registry_channel(Oid relid);

/* in registry_write.c */
extern void feedpub_registry_sweep(void);
extern void feedpub_registry_set_channel(Oid relid, const char *channel);
extern bool feedpub_registry_add(Oid relid, const char *kind,
								 bool may_be_default);
extern void feedpub_registry_remove(Oid relid);
extern void feedpub_registry_refuse_subscribed(Oid relid, const char *what);
extern void feedpub_registry_begin_history(Oid relid);
extern void feedpub_registry_set_key(Relation rel, Oid keyid, bool deletes);
extern void feedpub_registry_set_default(Oid relid);

/* in relation.c */
extern Oid	feedpub_relation_function(const char *name, int nargs,
									  const Oid *argtypes);
extern Oid	feedpub_relation_schema(void);
extern char *feedpub_relation_name(Oid relid);
extern void feedpub_require_owner(Oid relid);
extern bool feedpub_may_select(Oid relid);
extern void feedpub_require_select(Oid relid);
extern Oid	feedpub_relation_sequence(Oid relid);
extern Oid	feedpub_relation_index(Relation rel);
extern bool feedpub_relation_is_index(Relation rel, Oid indexid, bool valid);
extern bool feedpub_relation_has_invalid_index(Relation rel);
extern char *feedpub_relation_index_cure(Relation rel, bool concurrently);
extern int64 feedpub_relation_last_pos(Oid seqid);
extern bool feedpub_relation_has_trigger(Relation rel, const char *function);
extern bool feedpub_relation_has_default_row_type(Relation rel);

/* in role.c */
extern void feedpub_role_begin_owner(Oid owner, FeedpubRole *caller);
extern void feedpub_role_begin_extension(Oid owner, FeedpubRole *caller);
extern void feedpub_role_end(const FeedpubRole *caller);
extern void feedpub_role_run(const char *sql);
extern void feedpub_role_run_as_owner(Oid relid, const char *sql);

/* in catalog.c */
extern Node *feedpub_catalog_index_predicate(Relation index);
extern bool feedpub_catalog_is_stamped_predicate(Relation rel, Relation index);
extern List *feedpub_catalog_partitions(Oid relid);
extern bool feedpub_catalog_has_plain_partition_key(Oid relid);
extern bool feedpub_catalog_route(Relation table, int nkeys,
								  const AttrNumber *attnos,
								  const Datum *values, Oid *leaf);
extern FeedpubInput feedpub_catalog_input(Oid type);

/* in partition.c */
extern Oid	feedpub_partition_feed(Oid relid);
extern List *feedpub_partition_list(Relation rel, bool keep_locks);
extern bool feedpub_partition_sees_tables(const FeedpubLeaves *leaves, Snapshot snapshot);
extern FeedpubLeaves *feedpub_partition_open(const FeedpubFeed *feed,
											 Relation heap, Snapshot snapshot,
											 bool keep_locks);
extern void feedpub_partition_close(FeedpubLeaves *leaves);
extern TupleTableSlot *feedpub_partition_convert(FeedpubLeaves *leaves,
												 FeedpubLeaf *leaf,
												 TupleTableSlot *slot);
extern bool feedpub_partition_route(FeedpubLeaves *leaves, int nkeys,
									const AttrNumber *attnos,
									const Datum *values, FeedpubLeaf **found);
extern bool feedpub_partition_has_new(const FeedpubFeed *feed, Relation heap,
									  Snapshot snapshot);
extern bool feedpub_partition_admit(const FeedpubFeed *feed, Relation heap);
extern uint64 feedpub_partition_since(Oid feed, Relation rel);
extern void feedpub_partition_begin(Relation heap);
extern bool feedpub_partition_history_checked(const FeedpubLeaves *leaves);
extern void feedpub_partition_note_history(const FeedpubLeaves *leaves);

/* in stamp.c */
extern void feedpub_stamp_note(Oid relid, FullTransactionId xid);

/* in key.c */
extern const char *feedpub_key_problem(Relation rel, Relation index);
extern void feedpub_key_load(FeedpubKey *key, Datum names, Datum attnums);
extern Oid	feedpub_key_index(Relation rel, const FeedpubKey *key);
extern int	feedpub_key_attnos(Relation rel, const FeedpubKey *key,
							   AttrNumber *attnos);
extern void feedpub_key_of_partition(Oid relid, Oid leaf, FeedpubKey *key);
extern int	feedpub_key_columns(Oid keyid, AttrNumber *attnos);
extern Datum feedpub_key_texts(TupleDesc desc, int nkeys,
							   const AttrNumber *attnos, TupleTableSlot *slot);
extern FeedpubInput feedpub_key_input(Relation rel, Relation index,
									  AttrNumber *attno);
extern bool feedpub_key_values(Relation rel, Relation index, Datum key,
							   Datum *values, bool *nulls);
extern bool feedpub_key_lives(Relation rel, Relation index, Datum *values,
							  Snapshot snapshot, Datum *living);
extern int	feedpub_key_of_feed(const FeedpubFeed *feed, Relation rel,
								AttrNumber *attnos);
extern void feedpub_key_check_shards(const FeedpubFeed *feed, Relation rel);
extern int	feedpub_key_shard(Datum key, int shards);

/* in tombstone.c */
extern Relation feedpub_tombstone_open(LOCKMODE lockmode, Relation *index);
extern void feedpub_tombstone_write(Oid feed, FullTransactionId xid, int64 pos,
									Datum key);
extern int64 feedpub_tombstone_largest_pos(Oid feed);
extern bool feedpub_tombstone_key(TupleTableSlot *slot, Datum *key);
extern bool feedpub_tombstone_some_unreadable(Relation rel, Relation index);

/* in check.c */
extern bool feedpub_check_has_indexes(Relation rel);
extern List *feedpub_check_problems(Oid relid);
extern const char *feedpub_check_state(Relation rel);
extern bool feedpub_check_is_registered(Oid relid);

/* in repair.c */
extern int	feedpub_repair_feed(Oid relid);

/* in history.c */
extern void feedpub_history_check(const FeedpubFeed *feed,
								  const FeedpubLeaves *leaves);

/* in horizon.c */
extern FullTransactionId feedpub_horizon(Snapshot snapshot);
extern bool feedpub_horizon_sees_table(Snapshot snapshot, Relation rel);
extern void feedpub_horizon_select(struct _SPI_plan *plan, Datum *values,
								   Relation feed);
extern void feedpub_horizon_push(Snapshot snapshot);
extern void feedpub_horizon_refuse_own_ddl(Relation table);
extern FullTransactionId feedpub_horizon_widen(TransactionId xid,
											   FullTransactionId next);
extern void feedpub_horizon_refuse_foreign(const FeedpubFeed *feed,
										   FullTransactionId after_xid);
extern List *feedpub_horizon_prepared(void);
extern bool feedpub_horizon_committed(FullTransactionId xid);
extern bool feedpub_horizon_has_foreign(const FeedpubLeaves *leaves,
										Snapshot snapshot,
										FullTransactionId *stamp);
extern void feedpub_horizon_make_durable(const FullTransactionId *xids,
										 int nxids,
										 FullTransactionId horizon);
extern void feedpub_horizon_flush_all(void);

/* in batch.c */
extern bool feedpub_batch_sees(const FeedpubSnapshot *snapshot, uint64 xid);
extern bool feedpub_batch_is_later(const FeedpubSnapshot *later,
								   const FeedpubSnapshot *earlier);
extern void feedpub_batch_take_snapshot(Snapshot snapshot,
										FeedpubSnapshot *taken);
extern Datum feedpub_batch_snapshot_datum(const FeedpubSnapshot *snapshot);
extern FeedpubBatchScan *feedpub_batch_begin(Oid feed, int64 from,
											 Snapshot snapshot);
extern FeedpubBatchScan *feedpub_batch_begin_backward(Oid feed, int64 below,
													  Snapshot snapshot);
extern void feedpub_batch_seek_below(FeedpubBatchScan *batches, int64 below);
extern bool feedpub_batch_next(FeedpubBatchScan *batches, FeedpubBatch *batch);
extern bool feedpub_batch_knows(const FeedpubBatch *batch,
								const FeedpubCursor *cursor);
extern int64 feedpub_batch_passed(const FeedpubBatch *batch,
								  const FeedpubCursor *cursor);
extern bool feedpub_batch_is_foreign(const FeedpubBatch *batch);
extern void feedpub_batch_refuse_foreign(const FeedpubFeed *feed,
										 const FeedpubBatch *batch);
extern void feedpub_batch_end(FeedpubBatchScan *batches);
extern void feedpub_batch_last(Oid feed, int64 below, Snapshot snapshot,
							   FeedpubBatch *batch);

extern void feedpub_batch_write(Oid feed, FeedpubBatch *batch);
extern void feedpub_batch_merge(Oid feed, int64 first, int64 last,
								Snapshot snapshot);
extern bool feedpub_batch_lock(Oid feed, bool wait);
extern bool feedpub_batch_is_locked_here(Oid feed);

/* in run.c */
extern FeedpubRunReader *feedpub_run_begin(const FeedpubFeed *feed,
										   FeedpubLeaves *leaves,
										   Snapshot snapshot,
										   Snapshot state);
extern TupleTableSlot *feedpub_run_fetch(FeedpubRunReader *reader,
										 const FeedpubRun *run, int i);
extern List *feedpub_run_load(FeedpubRunReader *reader,
							  const FeedpubSnapshot *before,
							  const FeedpubSnapshot *snapshot,
							  int64 after_pos, int max_runs);
extern bool feedpub_run_next(FeedpubRun *run);
extern bool feedpub_run_read(FeedpubRunReader *reader, FeedpubRun *run);
extern int64 feedpub_run_last_pos(FeedpubRunReader *reader, FeedpubRun *run);
extern void feedpub_run_end(FeedpubRunReader *reader);

/* in initial.c */
extern int64 feedpub_initial_pos(ItemPointer tid);
extern uint32 feedpub_initial_fingerprint(Relation heap,
										  const FeedpubFloor *floor);
extern uint32 feedpub_initial_partition_fingerprint(Relation heap,
													const FeedpubFloor *floor);
extern bool feedpub_initial_same_database(uint32 a, uint32 b);
extern FeedpubInitialScan *feedpub_initial_begin(Relation heap,
												 AttrNumber xid_attno,
												 Snapshot snapshot,
												 int64 after_pos);
extern bool feedpub_initial_next(FeedpubInitialScan *initial,
								 TupleTableSlot **slot, int64 *pos,
								 int *npassed);
extern void feedpub_initial_end(FeedpubInitialScan *initial);

/* in change.c */
extern Oid	feedpub_change_stamped_anew;

/* in restamp.c */
extern void feedpub_restamp_check(Relation rel);
extern void feedpub_restamp_begin(FeedpubRestamp *pass, Oid relid,
								  uint64 below, bool foreign);
extern void feedpub_restamp_some(FeedpubRestamp *pass, Relation rel,
								 int max_rows);
extern void feedpub_restamp_all(Relation rel);
extern bool feedpub_restamp_wait(const FeedpubRestamp *pass, Relation rel,
								 int timeout_ms);

/* in maintenance.c */
extern void feedpub_maintenance_step(Oid feed, int max_rows, bool wait,
									 FeedpubStamping *step);
extern void feedpub_maintenance_retry(Oid feed);
extern int64 feedpub_maintenance_failed(Oid feed);
extern void feedpub_maintenance_note_error(Oid feed, const char *error);

/* in maintenance_plan.c */
extern void feedpub_maintenance_plan(FeedpubWorkerStats *stats);
extern long feedpub_maintenance_run(void);
extern void feedpub_maintenance_end(void);

/* in cursor.c */
extern void feedpub_cursor_print(const FeedpubCursor *cursor, char *buffer);
extern text *feedpub_cursor_text(const FeedpubCursor *cursor);
extern int64 feedpub_cursor_batch(const FeedpubCursor *cursor);
extern bool feedpub_cursor_is_of(const FeedpubCursor *cursor, int64 sync_id,
								 bool merged, uint32 fingerprint);
extern int	feedpub_cursor_compare(const FeedpubCursor *a,
								   const FeedpubCursor *b);
extern void feedpub_cursor_parse(const text *input, FeedpubCursor *cursor);

/* in start.c */
extern uint64 feedpub_start_of_page(Snapshot snapshot);
extern uint64 feedpub_start_of_batches(void);
extern void feedpub_start_write(void);

/* in shmem.c */
extern void feedpub_shmem_preload(void);
extern uint64 feedpub_shmem_start(uint64 (*draw)(void));
extern FeedpubDatabase *feedpub_shmem_database(void);
extern FeedpubDatabase *feedpub_shmem_known_database(void);
extern FeedpubDatabase *feedpub_shmem_database_of(Oid dbid);
extern void feedpub_shmem_mark(const Oid *feeds, int nfeeds, bool all);
extern void feedpub_shmem_watch(const Oid *feeds, int nfeeds, bool all,
								TransactionId xid);
extern int	feedpub_shmem_read_marks(Oid *dirty, bool *all);
extern void feedpub_shmem_take_mark(Oid feed);
extern int	feedpub_shmem_ask(Oid feed, uint64 *number);
extern bool feedpub_shmem_is_answered(int place, uint64 number);
extern int	feedpub_shmem_read_asked(Oid *feeds);
extern void feedpub_shmem_take_asked(Oid feed, uint64 *numbers);
extern bool feedpub_shmem_answer(const uint64 *numbers);
extern int	feedpub_shmem_take_watch(FeedpubPrepared *prepared);
extern bool feedpub_shmem_claim_worker(void);
extern void feedpub_shmem_release_worker(void);
extern bool feedpub_shmem_needs_worker(FeedpubDatabase *entry, int retry_ms,
									   bool wake);
extern void feedpub_shmem_set_refused(FeedpubDatabase *entry, bool refused);
extern FeedpubWorkerState feedpub_shmem_worker_state(FeedpubDatabase *entry);
extern int	feedpub_shmem_worker_pid(FeedpubDatabase *entry);
extern void feedpub_shmem_set_wanted(FeedpubDatabase *entry, bool wanted);
extern void feedpub_shmem_set_stopped(FeedpubDatabase *entry, bool stopped);
extern int	feedpub_shmem_unserved(Oid *dbids);
extern void feedpub_shmem_forget_database(FeedpubDatabase *entry, Oid dbid);
extern void feedpub_shmem_set_launcher(struct Latch *latch);
extern int	feedpub_shmem_count_workers(void);
extern void feedpub_shmem_add_stats(FeedpubWorkerStats *delta);
extern void feedpub_shmem_note_error(Oid feed, const char *error);
extern int	feedpub_shmem_read_workers(FeedpubWorkerInfo *workers);
extern ConditionVariable *feedpub_shmem_waiters(Oid feed);

/* in retention.c */
extern int	feedpub_retention_merge(Oid relid, int64 *merged_to, bool *more);
extern int64 feedpub_retention_expire(Oid relid);

/* in worker.c */
extern void feedpub_worker_settings(void);

/* in launcher.c */
extern bool feedpub_launcher_ensure(Oid relid);
extern void feedpub_launcher_warn(Oid relid);
extern bool feedpub_launcher_start_worker(Oid dbid, int elevel);
extern void feedpub_launcher_register(void);

/* in read.c */
extern text *feedpub_read_head(Oid relid);

/* in json.c */
extern bool feedpub_json_entries(const FeedpubPage *page, StringInfo out,
								 FeedpubJsonTake take, void *arg);

/* in jsonvalue.c */
extern FeedpubJsonValues *feedpub_jsonvalue_begin(void);
extern void feedpub_jsonvalue_limit(FeedpubJsonValues *values,
									StringInfo out);
extern FeedpubJsonType *feedpub_jsonvalue_type(FeedpubJsonValues *values,
											   Oid typid);
extern void feedpub_jsonvalue_append(FeedpubJsonValues *values,
									 StringInfo out, FeedpubJsonType *type,
									 Datum value);
extern void feedpub_jsonvalue_string(FeedpubJsonValues *values,
									 StringInfo out, const char *s,
									 Size len);

/* in argument.c */
extern void feedpub_argument_check(FunctionCallInfo fcinfo, int n,
								   const char *const *names);

/* in attempt.c */
extern char *feedpub_attempt(void (*work)(void *arg), void *arg);
extern bool feedpub_attempt_is_of_the_data(int sqlstate);

/* in store.c */
extern void feedpub_store_begin(FeedpubRole *caller);
extern void feedpub_store_end(const FeedpubRole *caller);
extern uint64 feedpub_store_run(FeedpubStatement *statement, Datum *values,
								const char *nulls);
extern Datum feedpub_store_value(uint64 row, int column, bool *isnull);

/* in subscription.c */
extern void feedpub_subscription_load(text *name, const text *consumer,
									  int shard_wanted,
									  FeedpubSubscription *sub);
extern int64 feedpub_subscription_ms(const Interval *interval);
extern void feedpub_subscription_refuse_null(FunctionCallInfo fcinfo, int arg,
											 const char *name);

/* in subscription_start.c */
extern text *feedpub_start_find(Oid feed, const text *start);
extern text *feedpub_start_at(Oid feed, TimestampTz at);

/* in subscription_receipt.c */
extern int64 feedpub_receipt_draw(void);
extern void feedpub_receipt_print(const FeedpubReceipt *receipt, char *buffer);
extern void feedpub_receipt_parse(const text *input, FeedpubReceipt *receipt);

/* in subscription_ack.c */
extern FeedpubAck feedpub_ack_page(const FeedpubSubscription *sub,
								   const FeedpubReceipt *receipt,
								   int64 new_state);
extern void feedpub_ack_check(const text *name, FeedpubAck result);
extern bool feedpub_ack_lock_page(const FeedpubSubscription *sub,
								  const FeedpubReceipt *receipt,
								  text **cursor);
extern bool feedpub_ack_lock_shard(const FeedpubSubscription *sub,
								   const FeedpubReceipt *receipt,
								   text **cursor, bool *is_settled);

/* in subscription_lease.c */
extern bool feedpub_lease_is_of(const FeedpubShard *shard,
								const text *consumer);
extern bool feedpub_lease_is_due(const FeedpubSubscription *sub,
								 const text *consumer);
extern int	feedpub_lease_take(FeedpubSubscription *sub, text *consumer,
							   FeedpubShard **own);
extern int	feedpub_lease_share(FeedpubSubscription *sub, text *consumer);
extern void feedpub_lease_lock_all(const FeedpubSubscription *sub);
extern bool feedpub_lease_is_held(const FeedpubSubscription *sub,
								  const FeedpubShard *shard);

/* in subscription_park.c */
extern void feedpub_park_hide(const FeedpubSubscription *sub,
							  const FeedpubShard *shard, FeedpubPage *page);

/* in subscription_retry.c */
extern FeedpubRetried *feedpub_retry_find_due(const FeedpubSubscription *sub,
											  FeedpubPage *page,
											  const FeedpubShard *shard,
											  bool again);
extern TimestampTz feedpub_retry_next_due(const FeedpubSubscription *sub,
										  const FeedpubShard *shard);
extern bool feedpub_retry_settle(const FeedpubSubscription *sub,
								 const FeedpubReceipt *receipt);
extern bool feedpub_retry_is_parked(const FeedpubSubscription *sub,
									const FeedpubReceipt *receipt,
									bool *by_this);

/* in subscription_delivery.c */
extern void feedpub_delivery_put(ReturnSetInfo *rsinfo,
								 const FeedpubPage *page,
								 const FeedpubShard *shard,
								 const FeedpubRetried *retried);
extern void feedpub_delivery_put_rows(ReturnSetInfo *rsinfo,
									  const FeedpubPage *page,
									  const FeedpubShard *shard,
									  const FeedpubRetried *retried);

/* in wait.c */
extern int64 feedpub_wait_timeout(const Interval *timeout);
extern void feedpub_wait_check_feed(Oid relid);
extern void feedpub_wait_wake(Oid relid);
extern void feedpub_wait_sleep(int64 timeout_ms);
extern void feedpub_wait_sleep_in(ConditionVariable *queue,
								  int64 timeout_ms);
extern bool feedpub_wait_may_sleep(void);
extern bool feedpub_wait_for_batch(Oid relid, const FeedpubCursor *after,
								   int64 timeout_ms, int flags);

/* a procedure, which can end its transaction; the history has been compared */
#define FEEDPUB_WAIT_IN_PROCEDURE	0x01
#define FEEDPUB_WAIT_CHECKED		0x02

/* in fetch.c */
extern Oid	feedpub_fetch_feed_argument(FunctionCallInfo fcinfo);
extern bool feedpub_fetch_may_read_directly(Relation heap);
extern void feedpub_fetch_keep_heap(void);

/* in entry.c */
extern const char *const feedpub_entry_op_names[];
extern void feedpub_entry_pass(FeedpubPage *page, const FeedpubBatch *batch,
							   int64 pos);
extern void feedpub_entry_pass_initial(FeedpubPage *page, int64 table,
									   int64 pos, uint32 fingerprint);
extern void feedpub_entry_add(FeedpubPage *page, const FeedpubBatch *batch,
							  const FeedpubRun *run);
extern void feedpub_entry_add_initial(FeedpubPage *page, FeedpubLeaf *leaf,
									  TupleTableSlot *slot);
extern bool feedpub_entry_key_lives(FeedpubPage *page, Datum *values,
									Datum *living);
extern bool feedpub_entry_is_full(const FeedpubPage *page);
extern void feedpub_entry_hide_rows(FeedpubPage *page);
extern char *feedpub_entry_columns(Relation heap);
extern HeapTuple feedpub_entry_of_columns(Relation heap, HeapTuple tuple,
										  TupleDesc tupdesc, int column);

/* in page.c */
extern void feedpub_page_read(FeedpubPage *page);
extern void feedpub_page_make_durable(FullTransactionId publisher,
									  Snapshot snapshot);
extern void feedpub_page_push_snapshot(Relation heap);
extern void feedpub_page_refuse_cursor(Oid relid);
extern bool feedpub_page_ends_filtered(const FeedpubPage *page);
extern text *feedpub_page_end_of(Oid feed, const FeedpubBatch *batch,
								 Snapshot snapshot);
extern bool feedpub_page_is_expired(Oid feed, const FeedpubCursor *after,
									const FeedpubFloor *floor,
									Snapshot snapshot);

/* in publish.c */
extern int	feedpub_publish_feed(Oid relid, FeedpubPublishWait how,
								 FeedpubPublished *done);
extern bool feedpub_publish_has_news(const FeedpubFeed *feed, Relation heap,
									 Snapshot snapshot,
									 const FeedpubSnapshot *last);
extern void feedpub_publish_notify(Oid relid);

/* feedpub_publish_feed() did not get a lock */
#define FEEDPUB_PUBLISH_BUSY	(-1)

#endif							/* FEEDPUB_H */
