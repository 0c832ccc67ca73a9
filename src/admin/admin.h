/*-------------------------------------------------------------------------
 *
 * admin.h
 *	  What the owner of a feed calls: create, attach, check, repair.
 *
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
	char	   *cure;			/* SQL that puts it right, or NULL */
	bool		by_hand;		/* which only the client can run */
	bool		apart;			/* whatever else is cured */
	bool		as_caller;		/* it makes a relation */
} FeedpubProblem;

/* in check.c */
extern bool feedpub_check_has_indexes(Relation rel);
extern List *feedpub_check_problems(Oid relid);
extern const char *feedpub_check_state(Relation rel);
extern bool feedpub_check_is_registered(Oid relid);

/* in repair.c */
extern int	feedpub_repair_feed(Oid relid);

#endif							/* FEEDPUB_ADMIN_H */
