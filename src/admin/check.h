/*-------------------------------------------------------------------------
 *
 * check.h
 *	  What the files of feed_check() share: check.c, check_capture.c,
 *	  check_problem.c and check_trigger.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_CHECK_H
#define FEEDPUB_CHECK_H

#include "admin/admin.h"

/* Whose call runs a cure. */
typedef enum FeedpubCure
{
	FEEDPUB_CURE_AS_CALLER,		/* feed_repair(); it makes a relation */
	FEEDPUB_CURE_AS_OWNER,		/* feed_repair() */
	FEEDPUB_CURE_SHOWN,			/* the same; the owner sees what it is */
	FEEDPUB_CURE_BY_HAND		/* the owner, when it suits */
} FeedpubCure;

/* what the checks look at */
typedef struct FeedpubCheck
{
	Oid			feed;
	Relation	rel;			/* the feed's table, or a partition */
	char	   *table;			/* its name, as in SQL */
	bool		is_partitioned;
	bool		is_table;		/* a table feed, not an outbox */
	FeedpubKey	key;
	Oid			keyid;
	bool		deletes;		/* they are published, by the key */
	const char *arguments;		/* of the trigger that stamps, if it is new */
	bool		catalogs_only;	/* no look at rows and batches */
	bool		repairs;		/* cures are run */
	int			nrepaired;
	const char *first;			/* the guard of the first problem that is left */
	bool		has_cure;		/* there is one for it */
	struct ReturnSetInfo *result;	/* where they are listed, or NULL */
} FeedpubCheck;

/* in check_capture.c */
extern void feedpub_check_captures(FeedpubCheck *cxt);
extern void feedpub_check_changes(FeedpubCheck *cxt);

/* in check_problem.c */
extern bool feedpub_check_add(FeedpubCheck *cxt, const char *guard,
							  const char *problem, char *cure, FeedpubCure who);
extern char *feedpub_check_call(Oid feed, const char *verb, const char *function,
								const char *more_arguments);

/* in check_trigger.c */
extern void feedpub_check_triggers(FeedpubCheck *cxt);

#endif							/* FEEDPUB_CHECK_H */
