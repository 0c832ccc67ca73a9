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

/* in stamp.c */
extern Oid	feedpub_stamp_anew;
extern TriggerData *feedpub_stamp_trigger(FunctionCallInfo fcinfo, TriggerEvent timing,
										  int by_row, int by_statement,
										  const char *name, const char *kind);

/* in message_id.c */
extern Datum feedpub_message_id(void);

/* how many positions can be taken at once: fewer than a record has bytes */
#define FEEDPUB_MAX_POSITIONS	64

/* in position.c */
extern int64 feedpub_position_take(Oid feed, Oid seqid, int n);
extern void feedpub_position_begin(Oid seqid);

/* in wake.c */
extern void feedpub_wake_note(Oid relid, FullTransactionId xid);
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
