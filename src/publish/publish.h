/*-------------------------------------------------------------------------
 *
 * publish.h
 *	  Published order: batches, the runs in them, cursors.
 *
 * A batch is a snapshot with a number.  The publisher writes one after the
 * other to feedpub._batch (publish.c; batch.c has the table).  A batch holds
 * the rows that its snapshot sees and the snapshot of the batch before does
 * not.  So each committed row is in exactly one batch, however late it was
 * committed, and a batch never changes.  A page is in principle
 *
 *		SELECT b.sync_id, f.*
 *		FROM feedpub._batch b
 *		JOIN feedpub._batch before ON before.sync_id = b.sync_id - 1
 *		JOIN my_feed f ON pg_visible_in_snapshot(f.feed_xid, b.snapshot)
 *			AND NOT pg_visible_in_snapshot(f.feed_xid, before.snapshot)
 *		WHERE (b.sync_id, f.feed_pos) > (cursor's sync_id, cursor's pos)
 *		ORDER BY b.sync_id, f.feed_pos LIMIT max_rows
 *
 * The index on (feed_xid, feed_pos) finds the rows of a batch.  Their
 * transactions were running when the batch before was made, and are listed in
 * its snapshot, or have begun since, and are in the range from its xmax to the
 * xmax of this one (run.c).
 *
 * The rest bounds the cost: a large backlog is cut into several batches
 * (cut.c), old batches are merged into one (merge_batches.c).  A cursor is the
 * text of sync_id and pos, with what proves them (cursor.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_PUBLISH_H
#define FEEDPUB_PUBLISH_H

#include "access/xlogdefs.h"
#include "storage/itemptr.h"

#include "write/write.h"

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
	int64		sync_id;		/* 0: the beginning, before the first batch */
	FeedpubSnapshot snapshot;
	int64		last_pos;		/* the largest position in it */
	int			transactions;	/* how many are in it */
	int64		publication;	/* the first batch of its publisher's transaction */
	uint32		seed;			/* of the server start that made it */
	uint32		fingerprint;	/* a hash of seed, merged_from and sync_id */
	TimestampTz published_at;
	bool		is_part;		/* its snapshot was cut: cut.c */
	bool		is_merged;
	int64		merged_from;	/* the number of the oldest batch in it */
	int64		merged_pos;		/* the largest position of the youngest one */
	uint32		site;			/* see feedpub_cursor_start() */
	FullTransactionId publisher;	/* which wrote its row, if known */
} FeedpubBatch;

/* Up to where the batches of a feed, of this history of it, have been merged. */
typedef struct FeedpubMerged
{
	uint32		history;
	int64		to;
} FeedpubMerged;

typedef struct FeedpubBatchScan FeedpubBatchScan;

/* One row's entry in the index. */
typedef struct FeedpubEntry
{
	int64		pos;
	ItemPointerData tid;
} FeedpubEntry;

/* The sources of runs: the feed's tombstones, then each of its tables. */
#define FEEDPUB_RUN_TOMBSTONES	0

/* The entries of one transaction, some of which have been read. */
typedef struct FeedpubRun
{
	int			source;
	uint64		xid;
	int64		pos;			/* of the current entry, or before it */
	int			nentries;		/* 0: they have to be read, from pos on */
	int			current;
	FeedpubEntry *entries;
	bool		more;			/* there are more after the last one */
} FeedpubRun;

typedef struct FeedpubRunReader FeedpubRunReader;

/*
 * Which batch proves that what came before it has not been taken back: one that
 * was made with this seed, and has this number or a larger one; or, if it is to
 * come, one that was published after the one that gets this number.
 */
typedef struct FeedpubProof
{
	int64		batch;			/* 0: nothing has to be proved */
	bool		is_to_come;
	uint32		seed;
} FeedpubProof;

/* A position in published order. */
typedef struct FeedpubCursor
{
	bool		given;			/* false: '', the beginning */
	bool		initial;		/* in the initial snapshot, not in a batch */
	bool		merged;			/* in a batch that others were merged into */
	uint32		history;		/* FeedpubFloor.history */
	int64		sync_id;		/* of the batch; initial: which table */
	int64		pos;			/* in it; initial: a row identifier */
	uint32		fingerprint;	/* of the batch; initial: of the file */
	uint32		start;			/* the seed of the server start that made it */
	int64		base;			/* see feedpub_cursor_check_floor() */
	const struct FeedpubFallback *fallback; /* of a table feed's page, else NULL */
} FeedpubCursor;

/* What a cursor of a table feed's page carries besides (read/proof.c). */
typedef struct FeedpubFallback
{
	FeedpubProof proof;			/* with it the cursor is as good as it says */
	bool		is_final;		/* else it is refused, or: */
	FeedpubCursor back; /* its consumer goes back to before here: a
								 * batch; initial: a page of a table */
	FeedpubProof back_proof;	/* with this */
} FeedpubFallback;

/*
 * What a publisher waits for: other publishers of the feed, its table's locks.
 */
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
	bool		more;			/* than one step publishes: another is due */
	bool		announce;		/* on a channel, after the commit */
	bool		unguarded;		/* feedpub_publish_guard() is to be called */
} FeedpubPublished;

/* Length of a cursor as text; the latter with a fallback */
#define FEEDPUB_CURSOR_LENGTH		44
#define FEEDPUB_CURSOR_MAX_LENGTH	64

/* feedpub_publish_feed() did not get a lock */
#define FEEDPUB_PUBLISH_BUSY	(-1)

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
extern bool feedpub_batch_next(FeedpubBatchScan *batches, FeedpubBatch *batch);
extern bool feedpub_batch_knows(const FeedpubBatch *batch,
								const FeedpubCursor *cursor);
extern int64 feedpub_batch_passed(const FeedpubBatch *batch,
								  const FeedpubCursor *cursor);
extern bool feedpub_batch_is_foreign(const FeedpubBatch *batch);
extern void feedpub_batch_refuse_foreign(const FeedpubFeed *feed,
										 const FeedpubBatch *batch);
extern void feedpub_batch_end(FeedpubBatchScan *batches);
extern bool feedpub_batch_has_arrived(Oid feed, const FeedpubCursor *cursor,
									  Snapshot snapshot);
extern void feedpub_batch_last(Oid feed, int64 below, Snapshot snapshot,
							   FeedpubBatch *batch);
extern void feedpub_batch_write(Oid feed, FeedpubBatch *batch);
extern bool feedpub_batch_lock(Oid feed, bool wait);
extern bool feedpub_batch_is_locked_here(Oid feed);
extern bool feedpub_batch_is_proof(const FeedpubBatch *batch,
								   const FeedpubProof *proof);
extern bool feedpub_batch_proves(Oid feed, const FeedpubProof *proof,
								 Snapshot snapshot);
extern bool feedpub_batch_has_cursor(const FeedpubCursor *cursor, int64 sync_id,
									 bool merged, uint32 fingerprint);

/* in cursor.c */
extern bool feedpub_cursor_same_partitions(uint32 a, uint32 b);
extern int	feedpub_cursor_print(const FeedpubCursor *cursor, char *buffer);
extern int	feedpub_cursor_print_next(const FeedpubCursor *cursor,
									  const FeedpubCursor *before, char *buffer);
extern text *feedpub_cursor_text(const FeedpubCursor *cursor);
extern int64 feedpub_cursor_batch(const FeedpubCursor *cursor);
extern int	feedpub_cursor_compare(const FeedpubCursor *a,
								   const FeedpubCursor *b);
extern bool feedpub_cursor_moves(const FeedpubCursor *a,
								 const FeedpubCursor *b);
extern uint32 feedpub_cursor_start(Oid feed, uint32 history, Snapshot snapshot);
extern void feedpub_cursor_parse(const text *input, FeedpubCursor *cursor);
extern void feedpub_cursor_refuse(Oid relid);
extern void feedpub_cursor_at_end(Oid feed, const FeedpubBatch *batch,
								  Snapshot snapshot, FeedpubCursor *cursor);
extern void feedpub_cursor_at_floor(Oid feed, const FeedpubFloor *floor,
									Snapshot snapshot, FeedpubCursor *cursor);
extern void feedpub_cursor_refuse_expired(Oid feed, const FeedpubCursor *after,
										  const FeedpubFloor *floor,
										  Snapshot snapshot);
extern bool feedpub_cursor_is_expired(Oid feed, const FeedpubCursor *after,
									  const FeedpubFloor *floor,
									  Snapshot snapshot);

/* in cut.c */
extern int	feedpub_cut_batches(const FeedpubFeed *feed,
								const FeedpubBatch *last,
								const FeedpubSnapshot *snapshot,
								FeedpubRunReader *reader,
								FeedpubPublished *done);

/* in merge_batches.c */
extern int	feedpub_merge_step(Oid relid, FeedpubMerged *merged, bool *more);

/* in seed.c */
extern uint32 feedpub_seed_make(Oid feed, uint32 history, bool is_batch);
extern uint32 feedpub_seed_site(TimeLineID timeline);

/* in unpublished.c */
extern bool feedpub_unpublished_exists(const FeedpubFeed *feed, Relation heap,
									   Snapshot snapshot,
									   const FeedpubSnapshot *last);
extern bool feedpub_unpublished_some_live(FeedpubRunReader *reader, List *runs);

/* in notify.c */
extern void feedpub_publish_notify(Oid relid);

/* in publish.c */
extern int	feedpub_publish_feed(Oid relid, FeedpubPublishWait how,
								 FeedpubPublished *done);
extern void feedpub_publish_together(int nfeeds, const Oid *relids,
									 FeedpubPublished *done);
extern bool feedpub_publish_guard(Oid relid);

/* in run.c */
extern FeedpubRunReader *feedpub_run_begin(const FeedpubFeed *feed,
										   FeedpubPartitions *partitions,
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
extern uint64 feedpub_run_next_xid(FeedpubRunReader *reader, uint64 xid);
extern int64 feedpub_run_last_pos(FeedpubRunReader *reader, FeedpubRun *run);
extern void feedpub_run_end(FeedpubRunReader *reader);

#endif							/* FEEDPUB_PUBLISH_H */
