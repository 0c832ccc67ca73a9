/*-------------------------------------------------------------------------
 * admin.h
 *	  The functions for the owner of a feed: create, attach, capture, check,
 *	  repair.
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_ADMIN_H
#define FEEDPUB_ADMIN_H

#include "job/job.h"

/*
 * Defaults of an outbox's stamp.  The trigger replaces what they make, so they
 * count only if there is none: after DROP EXTENSION ... CASCADE, however it
 * comes about, or while the trigger is disabled.  They call only what the server
 * has, so they stay.  No transaction has the id 0, so no reader takes such a row
 * for a message (check.c).  Positions differ, since they are unique.
 */
#define FEEDPUB_XID_DEFAULT	"'0'"
#define FEEDPUB_POS_DEFAULT \
	"(pg_catalog.random() OPERATOR(pg_catalog.*) '-9e18'::pg_catalog.float8)::pg_catalog.int8"

/* The default of message_id, if nothing of ours fills it. */
#define FEEDPUB_ID_DEFAULT	"pg_catalog.gen_random_uuid()::pg_catalog.text"

/* in attach.c */
extern void feedpub_attach_refuse(Relation rel, bool is_capture);
extern const char *feedpub_attach_columns(Oid relid, Datum columns);
extern Oid	feedpub_attach_key(Relation rel, Oid keyid, const char *function,
							   bool deletes);

/* A thing that is wrong with a capture: a row of feedpub._capture_fault. */
typedef struct FeedpubCaptureFault
{
	Oid			relid;			/* the captured table */
	Oid			part;			/* it, or a partition */
	char	   *kind;
	char	   *name;			/* of a trigger, or NULL */
	char	   *argument;		/* of the trigger of rows */
	char		enabled;		/* the trigger, or '\0' */
} FeedpubCaptureFault;

/* in capture_trigger.c */
extern List *feedpub_capture_tables(Oid relid);
extern char *feedpub_capture_choose_name(Oid relid, Oid feed, bool captured);
extern void feedpub_capture_create_triggers(Oid relid, Oid feed, const char *argument);
extern List *feedpub_capture_faults(Oid feed);
extern void feedpub_capture_repair(Oid feed, const FeedpubCaptureFault *fault);
extern List *feedpub_capture_left_tables(void);
extern void feedpub_capture_drop_leftovers(Oid relid);
extern void feedpub_capture_drop_triggers(Oid relid, List *names);
extern void feedpub_capture_remove(Oid relid, Oid feed);

/* in check.c */
extern int	feedpub_check_repair(Oid relid, const char *arguments);
extern const char *feedpub_check_state(Relation rel);
extern bool feedpub_check_is_registered(Oid relid);

/* in lock.c */
extern List *feedpub_capture_list(Oid feed);
extern void feedpub_lock_tables(List *relids, LOCKMODE mode);
extern void feedpub_lock_feeds(List *feeds, List *relids, LOCKMODE mode);

/* in repair.c */
extern int	feedpub_repair_registration(Oid relid);

#endif							/* FEEDPUB_ADMIN_H */
