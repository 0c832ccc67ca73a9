/*-------------------------------------------------------------------------
 *
 * retention.h
 *	  Retention: the floor is moved, and what is before it is removed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RETENTION_H
#define FEEDPUB_RETENTION_H

#include "republish/republish.h"

/* What a step of a removal has come to. */
typedef enum FeedpubRemovalOutcome
{
	FEEDPUB_REMOVAL_NOTHING,	/* nothing is before the floor, or others do it */
	FEEDPUB_REMOVAL_GOES_ON,
	FEEDPUB_REMOVAL_ENDED,		/* the pass is over; see locked and failed */
} FeedpubRemovalOutcome;

/* The removal of the rows before the floor of an outbox: a pass over them. */
typedef struct FeedpubRemoval
{
	int64		sync_id;		/* the floor; 0: no pass has begun */
	uint64		xid;			/* the stamp that the pass has got to */
	int64		pos;
	uint64		xmin;			/* of the floor's snapshot */
	int64		removed;
	int64		saved;			/* of these, written into feedpub._removal */
	int64		locked;			/* rows that others had locked */
	int64		failed;			/* rows whose DELETE failed */
	char		error[FEEDPUB_ERROR_LENGTH];
} FeedpubRemoval;

/* in expire.c */
extern bool feedpub_expire_is_due(Oid feed, const FeedpubBatch *batch);
extern uint64 feedpub_expire_remove(Oid feed, const FeedpubBatch *batch);

/* in policy.c */
extern int64 feedpub_retention_of_deletes(const FeedpubFeed *feed);

/* in remove.c */
extern FeedpubRemovalOutcome feedpub_removal_step(FeedpubRemoval *removal, Oid feed,
												  int max_rows, bool wait);
extern void feedpub_removal_save(FeedpubRemoval *removal, Oid feed, bool ended);
extern void feedpub_removal_begin_turn(Oid feed);
extern void feedpub_removal_end_turn(Oid feed, const char *error);

/* in retain.c */
extern int64 feedpub_retain_step(Oid feed);
extern bool feedpub_retain_move_to(Oid feed, const FeedpubCursor *before, int64 *removed);
extern List *feedpub_retain_list(void);
extern char *feedpub_retain_holder(Oid feed, const FeedpubFloor *floor, Snapshot snapshot);

#endif							/* FEEDPUB_RETENTION_H */
