/*-------------------------------------------------------------------------
 *
 * retention.h
 *	  Retention: the floor is moved, and what is before it is removed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RETENTION_H
#define FEEDPUB_RETENTION_H

#include "job/job.h"

/* in retain.c */
extern int64 feedpub_retention_of_deletes(const FeedpubFeed *feed);
extern int64 feedpub_retain_step(Oid feed);
extern bool feedpub_retain_move_to(Oid feed, const FeedpubCursor *before);
extern List *feedpub_retain_list(void);
extern char *feedpub_retain_holder(Oid feed, const FeedpubFloor *floor,
								   Snapshot snapshot, bool is_owner);

#endif							/* FEEDPUB_RETENTION_H */
