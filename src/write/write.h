/*-------------------------------------------------------------------------
 *
 * write.h
 *	  What runs inside a writer's statement: stamps and tombstones.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_WRITE_H
#define FEEDPUB_WRITE_H

#include "commands/trigger.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "feed/feed.h"

/* Tombstones that are written together. */
typedef struct FeedpubTombstones FeedpubTombstones;

/* what a trigger may be called for */
#define FEEDPUB_BY_INSERT		(1 << TRIGGER_EVENT_INSERT)
#define FEEDPUB_BY_UPDATE		(1 << TRIGGER_EVENT_UPDATE)
#define FEEDPUB_BY_DELETE		(1 << TRIGGER_EVENT_DELETE)
#define FEEDPUB_BY_TRUNCATE		(1 << TRIGGER_EVENT_TRUNCATE)

/* The columns of a change feed that are written. */
typedef enum FeedpubChangeColumn
{
	FEEDPUB_CHANGE_XID,
	FEEDPUB_CHANGE_POS,
	FEEDPUB_CHANGE_OP,
	FEEDPUB_CHANGE_RELATION,
	FEEDPUB_CHANGE_KEY,
	FEEDPUB_CHANGE_OLD_KEY,
	FEEDPUB_CHANGE_ROW,
	FEEDPUB_CHANGE_OLD,
	FEEDPUB_CHANGE_ERROR,
	FEEDPUB_CHANGE_STATEMENT,
	FEEDPUB_CHANGE_NCOLUMNS,
} FeedpubChangeColumn;

typedef struct FeedpubChangeColumnType
{
	const char *name;
	Oid			type;
} FeedpubChangeColumnType;

typedef struct FeedpubChangeIndex
{
	Oid			indexid;
	struct IndexInfo *info;
	LocalTransactionId locked_by;
} FeedpubChangeIndex;

/* How to write into a change feed. */
typedef struct FeedpubChangeFeed
{
	Oid			relid;
	Oid			seqid;
	AttrNumber	attnos[FEEDPUB_CHANGE_NCOLUMNS];
	struct TupleTableSlot *slot;
	int			nindexes;
	FeedpubChangeIndex *indexes;
} FeedpubChangeFeed;

/* An entry that this transaction has written. */
typedef struct FeedpubWritten
{
	ItemPointerData tid;
	int64		pos;			/* 0: none */
} FeedpubWritten;

/* A version of a row, in a feed. */
typedef struct FeedpubVersion
{
	Oid			feed;
	Oid			table;
	Oid			file;			/* a rewritten table has other versions */
	ItemPointerData tid;
} FeedpubVersion;

/* A row that was deleted since it moves to another partition. */
typedef struct FeedpubMoved
{
	Oid			feed;
	Oid			root;			/* the captured table */
	Oid			partition;
	CommandId	command;		/* that moves it */
	HeapTuple	old;
	FeedpubWritten written;		/* the delete */
} FeedpubMoved;

/* in change.c */
extern const FeedpubChangeColumnType feedpub_change_columns[];
extern const char *feedpub_change_index_problem(Relation index);
extern bool feedpub_change_learn(FeedpubChangeFeed *to, Oid relid);
extern void feedpub_change_write(FeedpubChangeFeed *to, const Datum *values, const bool *nulls,
								 FeedpubWritten *written);
extern void feedpub_change_link(FeedpubChangeFeed *to, Relation old_rel, HeapTuple old,
								Relation new_rel, HeapTuple new,
								const FeedpubWritten *written, List **versions);
extern void feedpub_changes_begin_move(FeedpubChangeFeed *to, Oid root, Relation rel,
									   HeapTuple old, const FeedpubWritten *written);
extern FeedpubMoved *feedpub_change_end_move(FeedpubChangeFeed *to, Oid root, HeapTuple new);

/* in stamp.c */
extern Oid	feedpub_stamp_anew;
extern TriggerData *feedpub_stamp_trigger(FunctionCallInfo fcinfo, TriggerEvent timing,
										  int by_row, int by_statement,
										  const char *name, const char *kind);

extern bool feedpub_stamp_values_differ(TupleTableSlot *a, TupleTableSlot *b, AttrNumber aattno,
										AttrNumber battno);

/* in message_id.c */
extern Datum feedpub_message_id(void);

/* how many positions can be taken at once: fewer than a record has bytes */
#define FEEDPUB_MAX_POSITIONS	64

/* in position.c */
extern int64 feedpub_position_take(Oid feed, Oid seqid, int n);
extern void feedpub_position_begin(Oid seqid);
extern void feedpub_position_lock(Oid relid, LocalTransactionId *locked_by);

/* in truncate.c */
extern int64 *feedpub_truncate_note(Oid relid, bool enter);
extern void feedpub_truncate_each(Relation rel, void (*leave)(TupleTableSlot *slot, void *arg), void *arg);

/* in wake.c */
extern void feedpub_wake_note(Oid relid);
extern void feedpub_wake_note_new(Oid relid);

/* in tombstone.c */
extern Relation feedpub_tombstone_open(LOCKMODE lockmode, Relation *index);
extern void feedpub_tombstone_write(Oid feed, FullTransactionId xid, int64 pos,
									Datum key);
extern FeedpubTombstones *feedpub_tombstone_begin(Oid feed, Oid seqid,
												  FullTransactionId xid);
extern void feedpub_tombstone_add(FeedpubTombstones *tombstones,
								  Datum key);
extern void feedpub_tombstone_end(FeedpubTombstones *tombstones);
extern bool feedpub_tombstone_key(TupleTableSlot *slot, Datum *key);

#endif							/* FEEDPUB_WRITE_H */
