/*-------------------------------------------------------------------------
 *
 * read.h
 *	  Pages of a feed, as rows and as JSON; waiting for them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_READ_H
#define FEEDPUB_READ_H

#include "access/htup.h"
#include "utils/array.h"

#include "publish/publish.h"

/* a page ends when its rows have this many bytes, whatever max_rows */
#define FEEDPUB_MAX_PAGE_BYTES	(64 * 1024 * 1024)

/* how many rows and batches a page may pass without delivering one */
#define FEEDPUB_MAX_PASSED		10000

/* What an entry of a page is. */
typedef enum FeedpubOp
{
	FEEDPUB_OP_UPSERT,
	FEEDPUB_OP_DELETE,			/* entry has the key, and else nulls */
	FEEDPUB_OP_INSERT,			/* this one and the next two: of a change feed only */
	FEEDPUB_OP_UPDATE,
	FEEDPUB_OP_MESSAGE,
	FEEDPUB_OP_TRUNCATE,		/* entry has only nulls */
	FEEDPUB_OP_TRUNCATE_SHARD,	/* the same, to a reader of one shard */
} FeedpubOp;

#define FEEDPUB_NOPS	(FEEDPUB_OP_TRUNCATE_SHARD + 1)

/* One row of a page. */
typedef struct FeedpubPageRow
{
	FeedpubCursor cursor;
	uint64		xid;			/* 0: it has no stamp */
	TimestampTz published_at;	/* its batch; 0: it is in none */
	Oid			partition;		/* and tid: where the executor finds the row */
	ItemPointerData tid;
	FeedpubOp	op;
	bool		moment;			/* ends with it: changes.c */
	HeapTuple	entry;			/* the row, columns out of line as they are */
	const char *error;			/* why a delete has no key, or NULL */
} FeedpubPageRow;

/* Which messages a reader wants: types.c. */
typedef struct FeedpubTypes
{
	AttrNumber	attno;			/* the column that has the type */
	int			n;
	Datum	   *names;
} FeedpubTypes;

/* What a reader asks for. */
typedef struct FeedpubPageRequest
{
	FeedpubCursor after;
	int			max_rows;
	int			shard;			/* only keys of this shard, of so many */
	int			shards;
	FeedpubTypes *types;		/* NULL: all */
	bool		subscribed; /* for a subscription: does not wait for rows to be
								 * published, and needs no proof (proof.c) */
	bool		latest;			/* the caller does not know the cursor */
} FeedpubPageRequest;

/* A page: what was asked for and what was found. */
typedef struct FeedpubPage
{
	FeedpubPageRequest request;
	Relation	heap;			/* the feed's table, which the caller opens */
	FeedpubFeed feed;
	AttrNumber	change[FEEDPUB_CHANGE_NCOLUMNS];	/* the columns of a change feed */
	FeedpubPageRow *rows;
	int			nrows;
	int			maxrows;
	Size		nbytes;
	FeedpubCursor passed;		/* how far the page got */
	FeedpubCursor visible;		/* how far row security hid nothing of it */
	FeedpubFallback fallback;	/* what a table feed's cursors carry */
	bool		more;			/* there may be something after it */
	bool		moment;			/* the last one that it got to is where it ends, ... */
	int			moment_rows;	/* ... after so many rows */
} FeedpubPage;

/* A page that is being read, and how; it lives in one memory context. */
typedef struct FeedpubPageScan
{
	FeedpubPage *page;
	FeedpubPartitions *partitions;	/* where its rows are */
	Snapshot	snapshot;		/* of its rows, without own changes */
	Snapshot	state;			/* the same with them, of our tables */
	bool		direct;			/* no executor needed */
	bool		sees_all;		/* no row security */
	FeedpubFloor floor;			/* before which the page cannot begin */
	FeedpubCursor from;			/* where it begins: the request's, or the floor */
	int64		first;			/* the first batch that is not before it */
	int64		base;			/* and start: what its cursors carry */
	uint32		start;
	bool		went_back;		/* the page begins before the request's cursor */
	int			npassed;		/* rows and batches without a row in the page */
	bool		missed;			/* something was passed that has been removed */
	FeedpubBatch last;			/* the last batch that was looked at */
	FeedpubBatch newest;		/* the last one that the snapshot sees */
	FullTransactionId publisher;	/* of the last batch in the page */
	FeedpubRunReader *reader;
	Relation	key;			/* the index that is a table feed's key */

	/* of a reader of one shard */
	MemoryContext row_context;
	int			nkeys;
	AttrNumber	keys[INDEX_MAX_KEYS];
} FeedpubPageScan;

/* A row of a page in the wire format. */
typedef struct FeedpubJsonEntry
{
	FeedpubPageRow *row;
	StringInfo	json;			/* ends with the entry, an object */
	int			key;			/* where in it the key is */
	int			key_length;		/* 0: it is null */
	int			value;			/* and the row */
	int			value_length;	/* 0: there is none */
	const char *error;			/* why there is no row, or NULL */

	/* of a change: the values of its columns, and which can be delivered */
	Datum		columns[FEEDPUB_CHANGE_NCOLUMNS];
	bool		given[FEEDPUB_CHANGE_NCOLUMNS];
} FeedpubJsonEntry;

typedef bool (*FeedpubJsonTake)(FeedpubJsonEntry *entry, void *arg);

/* how long a read waits in addition for a worker that is being started, in ms */
#define FEEDPUB_START_WAIT			5000

/* a procedure, which can end its transaction; the history has been compared */
#define FEEDPUB_WAIT_IN_PROCEDURE	0x01
#define FEEDPUB_WAIT_CHECKED		0x02
#define FEEDPUB_WAIT_FROM_START		0x04

/* in access.c */
extern Oid	feedpub_access_argument(FunctionCallInfo fcinfo, int arg);
extern void feedpub_access_begin_result(FunctionCallInfo fcinfo);
extern void feedpub_access_check_feed(Oid relid, FeedpubFeed *feed);
extern void feedpub_access_check_columns(Relation heap, TupleDesc planned);
extern bool feedpub_access_is_direct(Relation heap);
extern void feedpub_access_keep_memory(void);
extern Relation feedpub_access_open_key(Relation heap, Oid keyid);
extern void feedpub_access_make_durable(FullTransactionId publisher,
										Snapshot snapshot);
extern void feedpub_access_push_snapshot(Relation heap);

/* in flush.c */
extern bool feedpub_flush_is_published(Oid relid, const FeedpubSnapshot *called);

/* in head.c */
extern text *feedpub_head_of(Oid relid);
extern bool feedpub_head_parse(Oid relid, const text *input,
							   FeedpubCursor *cursor);

/* in initial.c */
extern uint32 feedpub_initial_fingerprint(Relation heap, uint32 history);
extern bool feedpub_initial_read(FeedpubPageScan *scan, FeedpubPartition *partition);

/* in json.c */
extern bool feedpub_json_entries(const FeedpubPage *page, StringInfo out,
								 FeedpubJsonTake take, void *arg);
extern bool feedpub_json_members(const FeedpubPage *page, bool is_sent,
								 StringInfo out, FeedpubJsonTake take,
								 void *arg);
extern char *feedpub_json_refused(const text *json);
extern text *feedpub_json_key(const FeedpubJsonEntry *entry);
extern text *feedpub_json_row(const FeedpubJsonEntry *entry);
extern Datum feedpub_json_change(const FeedpubJsonEntry *entry,
								 FeedpubChangeColumn column);

/* in page.c */
extern void feedpub_page_arguments(FunctionCallInfo fcinfo, Oid relid,
								   FeedpubPageRequest *request);
extern void feedpub_page_read(FeedpubPage *page);

/* in cursor_check.c */
extern bool feedpub_cursor_check_history(FeedpubPageScan *scan);
extern void feedpub_cursor_check_floor(FeedpubPageScan *scan);
extern bool feedpub_cursor_check_batch(FeedpubPageScan *scan,
									   const FeedpubBatch *first);

/* in entry.c */
extern void feedpub_entry_pass(FeedpubPageScan *scan, const FeedpubBatch *batch,
							   int64 pos);
extern void feedpub_entry_pass_initial(FeedpubPageScan *scan, int64 table,
									   int64 pos, uint32 fingerprint);
extern bool feedpub_entry_add(FeedpubPageScan *scan, const FeedpubBatch *batch,
							  const FeedpubRun *run);
extern void feedpub_entry_add_initial(FeedpubPageScan *scan, FeedpubPartition *partition,
									  TupleTableSlot *slot);
extern HeapTuple feedpub_entry_of_key(FeedpubPageScan *scan, const Datum *keys);
extern bool feedpub_entry_has_max(const FeedpubPageScan *scan);
extern bool feedpub_entry_is_full(const FeedpubPageScan *scan);
extern void feedpub_entry_hide_rows(FeedpubPageScan *scan);
extern void feedpub_entry_drop_hidden(FeedpubPage *page);
extern char *feedpub_entry_columns(Relation heap);
extern HeapTuple feedpub_entry_of_columns(Relation heap, HeapTuple tuple,
										  TupleDesc tupdesc, int column);

/* in proof.c */
extern void feedpub_proof_check(FeedpubPageScan *scan);
extern bool feedpub_proof_goes_back(Oid relid, const FeedpubCursor *after,
									Snapshot snapshot);
extern void feedpub_proof_end(FeedpubPageScan *scan);

/* in types.c */
extern FeedpubTypes *feedpub_types_parse(ArrayType *array);
extern bool feedpub_types_is_one(const FeedpubTypes *types);
extern void feedpub_types_begin(FeedpubTypes *types, const FeedpubFeed *feed,
								Relation heap);
extern bool feedpub_types_want(const FeedpubTypes *types, Datum value,
							   bool isnull);

/* in changes.c */
extern const char *const feedpub_changes_op_names[];
extern void feedpub_changes_begin(FeedpubPage *page);
extern bool feedpub_changes_in_shard(const FeedpubPage *page,
									 TupleTableSlot *slot);
extern void feedpub_changes_take(const FeedpubPage *page, FeedpubPageRow *row);
extern void feedpub_changes_note_moment(FeedpubPage *page);
extern void feedpub_changes_end_page(FeedpubPage *page);

/* in page_merge.c */
extern void feedpub_merge_page(FeedpubPageScan *scan);

/* in wait.c */
extern void feedpub_wait_check_feed(Oid relid);
extern void feedpub_wait_sleep_in(ConditionVariable *queue,
								  int64 timeout_ms);
extern bool feedpub_wait_may_sleep(void);
extern bool feedpub_wait_for_batch(Oid relid, const FeedpubCursor *after,
								   int64 timeout_ms, int flags);

#endif							/* FEEDPUB_READ_H */
