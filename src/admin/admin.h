/*-------------------------------------------------------------------------
 * admin.h
 *	  The functions for the owner of a feed: create, attach, check, repair.
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_ADMIN_H
#define FEEDPUB_ADMIN_H

#include "republish/republish.h"

/*
 * Defaults of an outbox's stamp and message_id.  The trigger replaces what they
 * make, so they count only if there is none: after DROP EXTENSION ... CASCADE,
 * however it comes about, or while the trigger is disabled.  They call only what
 * the server has, so they stay.  No transaction has the id 0, so no reader takes
 * such a row for a message (check.c).  Positions and ids differ, since they are
 * unique, or may be.
 */
#define FEEDPUB_XID_DEFAULT	"'0'"
#define FEEDPUB_POS_DEFAULT \
	"(pg_catalog.random() OPERATOR(pg_catalog.*) '-9e18'::pg_catalog.float8)::pg_catalog.int8" \
	" OPERATOR(pg_catalog.-) (pg_catalog.random() OPERATOR(pg_catalog.*) '2e3'::pg_catalog.float8)::pg_catalog.int8"
#define FEEDPUB_ID_DEFAULT \
	"'" FEEDPUB_ID_PREFIX "'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.random()::pg_catalog.text"

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
	bool		stamps;			/* the cure is to stamp an outbox's rows */
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
