/*-------------------------------------------------------------------------
 * admin.h
 *	  The functions for the owner of a feed: create, attach, check, repair.
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_ADMIN_H
#define FEEDPUB_ADMIN_H

#include "job/job.h"

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

/* in attach.c */
extern void feedpub_attach_lock(Oid relid);
extern void feedpub_attach_lock_all(List *relids);

/* in check.c */
extern int	feedpub_check_repair(Oid relid, bool is_new);
extern const char *feedpub_check_state(Relation rel);
extern bool feedpub_check_is_registered(Oid relid);

/* in detach.c */
extern void feedpub_detach_init(void);

/* in repair.c */
extern int	feedpub_repair_registration(Oid relid);

#endif							/* FEEDPUB_ADMIN_H */
