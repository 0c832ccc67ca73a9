/*-------------------------------------------------------------------------
 *
 * check.h
 *	  What the files of feed_check() share: check.c, check_problem.c,
 *	  check_sequence.c and check_trigger.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_CHECK_H
#define FEEDPUB_CHECK_H

#include "admin/admin.h"

/* what the checks look at */
typedef struct FeedpubCheck
{
	Relation	rel;
	char	   *table;			/* its name, as in SQL */
	bool		is_table;		/* a table feed, not an outbox */
	bool		catalogs_only;	/* no look at rows and index entries */
	FeedpubBatch last;			/* its last batch */
	AttrNumber	xid_attno;
	AttrNumber	pos_attno;
	Oid			seqid;
	List	   *problems;
} FeedpubCheck;

/* in check_problem.c */
extern FeedpubProblem *feedpub_check_add(FeedpubCheck *cxt, const char *guard,
										 char *problem, char *cure);
extern bool feedpub_check_is_partitioned(const FeedpubCheck *cxt);
extern char *feedpub_check_regclass(const char *name);

/* in check_sequence.c */
extern void feedpub_check_sequence(FeedpubCheck *cxt);

/* in check_trigger.c */
extern void feedpub_check_triggers(FeedpubCheck *cxt);
extern void feedpub_check_partitions(FeedpubCheck *cxt);

#endif							/* FEEDPUB_CHECK_H */
