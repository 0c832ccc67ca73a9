/*-------------------------------------------------------------------------
 *
 * feedpub.h
 *	  Types and functions that more than one file of feedpub uses.
 *
 * Layers, each calling only those below it:
 *
 *		feedpub.c								start
 *		feed.c  fetch.c  stats.c  stamp.c		the verbs
 *		guard.c									what a feed is made of
 *		registry.c  horizon.c  guc.c			finding feeds; xids; settings
 *		compat.h								server versions
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_H
#define FEEDPUB_H

#include "access/transam.h"
#include "access/xlogdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "compat.h"

/* SQLSTATEs of our own; everything else uses the server's. */
#define ERRCODE_FEED_FOREIGN_HISTORY	MAKE_SQLSTATE('P','F','0','0','1')
#define ERRCODE_FEED_GUARDED			MAKE_SQLSTATE('P','F','0','0','4')

/* The schema of our tables, views and internal functions. */
#define FEEDPUB_SCHEMA					"feedpub"

/* The columns of the stamp. */
#define FEEDPUB_XID_COLUMN				"feed_xid"
#define FEEDPUB_POS_COLUMN				"feed_pos"

/* How many columns an outbox is made with. */
#define FEEDPUB_OUTBOX_COLUMNS			8

/* What a registered feed is, as the readers need it. */
typedef struct FeedpubFeed
{
	Oid			relid;			/* the table */
	Oid			indexid;		/* its index on (feed_xid, feed_pos) */
	AttrNumber	xid_attno;
	AttrNumber	pos_attno;
	bool		is_outbox;
	bool		history_checked;	/* this backend found no foreign stamps */
} FeedpubFeed;

/* One thing that a feed needs and that its owner has undone. */
typedef struct FeedpubProblem
{
	const char *guard;			/* which guard, one word */
	char	   *problem;		/* what is wrong, a sentence */
	char	   *cure;			/* SQL that puts it right, or NULL */
} FeedpubProblem;

/* in guc.c */
extern int	feedpub_max_page_rows;

extern void feedpub_guc_define(void);

/* in registry.c */
extern void feedpub_registry_init(void);
extern bool feedpub_registry_is_registered(Oid relid);
extern bool feedpub_registry_find(Oid relid, FeedpubFeed *feed);
extern void feedpub_registry_get(Oid relid, FeedpubFeed *feed);
extern void feedpub_registry_note_history(Oid relid);
extern Oid	feedpub_registry_default(void);
extern bool feedpub_registry_add(Oid relid, const char *kind,
								 bool may_be_default);
extern void feedpub_registry_remove(Oid relid);
extern void feedpub_registry_set_default(Oid relid);
extern Oid	feedpub_registry_function(const char *name, int nargs,
									  const Oid *argtypes);
extern char *feedpub_relation_name(Oid relid);
extern void feedpub_require_owner(Oid relid);
extern void feedpub_require_select(Oid relid);

/* in guard.c */
extern Oid	feedpub_guard_sequence(Relation rel);
extern Oid	feedpub_guard_index(Relation rel);
extern bool feedpub_guard_has_default_row_type(Relation rel);
extern int64 feedpub_guard_last_pos(Oid seqid);
extern bool feedpub_guard_default_takes(Relation rel, AttrNumber attno,
										Oid funcid, Oid seqid);
extern List *feedpub_guard_problems(Oid relid);
extern int	feedpub_guard_repair(Oid relid);

/* in horizon.c */
extern FullTransactionId feedpub_horizon(Snapshot snapshot);
extern FullTransactionId feedpub_horizon_widen(TransactionId xid);
extern void feedpub_horizon_refuse_foreign(const FeedpubFeed *feed,
										   FullTransactionId after_xid);
extern bool feedpub_horizon_has_foreign(Relation heap, Relation index,
										Snapshot snapshot,
										FullTransactionId *stamp);
extern void feedpub_horizon_check_history(const FeedpubFeed *feed,
										  Relation heap, Relation index);
extern void feedpub_horizon_make_durable(const FullTransactionId *xids,
										 int nxids,
										 FullTransactionId horizon);
extern void feedpub_horizon_flush_all(void);

#endif							/* FEEDPUB_H */
