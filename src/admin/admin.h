/*-------------------------------------------------------------------------
 * admin.h
 *	  The functions for the owner of a feed: create, attach, check, repair.
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_ADMIN_H
#define FEEDPUB_ADMIN_H

#include "republish/republish.h"

/* One thing that a feed needs and that its owner has undone. */
typedef struct FeedpubProblem
{
	const char *guard;			/* which guard, one word */
	char	   *problem;		/* what is wrong, a sentence */
	char	   *cure;			/* SQL that repairs it, or NULL */
	bool		by_hand;		/* only a client can run the cure */
	bool		apart;			/* its cure changes no other problem */
	bool		as_caller;		/* the cure makes a relation */
	bool		unstamped;		/* rows may have been written without a stamp */
} FeedpubProblem;

/* in attach.c */
extern void feedpub_attach_lock(Oid relid);
extern void feedpub_attach_lock_all(List *relids);

/* in check.c */
extern bool feedpub_check_has_indexes(Relation rel);
extern List *feedpub_check_problems(Oid relid);
extern const char *feedpub_check_state(Relation rel);
extern bool feedpub_check_is_registered(Oid relid);

/* in detach.c */
extern void feedpub_detach_init(void);

/* in repair.c */
extern int	feedpub_repair_registration(Oid relid);
extern int	feedpub_repair_feed(Oid relid);

#endif							/* FEEDPUB_ADMIN_H */
