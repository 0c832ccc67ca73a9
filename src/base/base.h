/*-------------------------------------------------------------------------
 *
 * base.h
 *	  Server versions, arguments, settings, other roles, work that may fail.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_BASE_H
#define FEEDPUB_BASE_H

#include "access/tupdesc.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "lib/stringinfo.h"

#include "base/compat.h"

/* SQLSTATEs of our own; everything else uses the server's. */
#define ERRCODE_FEED_FOREIGN_HISTORY	MAKE_SQLSTATE('P','F','0','0','1')
#define ERRCODE_FEED_CURSOR_EXPIRED		MAKE_SQLSTATE('P','F','0','0','2')
#define ERRCODE_FEED_LEASE_LOST			MAKE_SQLSTATE('P','F','0','0','3')
#define ERRCODE_FEED_GUARDED			MAKE_SQLSTATE('P','F','0','0','4')
#define ERRCODE_FEED_ALREADY_ACKNOWLEDGED	MAKE_SQLSTATE('P','F','0','0','5')

/* The schema of our tables, views and internal functions. */
#define FEEDPUB_SCHEMA					"feedpub"

/* The channel on which feed_listen() has batches announced. */
#define FEEDPUB_CHANNEL					"feedpub"

/* The columns of the stamp. */
#define FEEDPUB_XID_COLUMN				"feed_xid"
#define FEEDPUB_POS_COLUMN				"feed_pos"

/* The largest number of databases that can have workers. */
#define FEEDPUB_MAX_DATABASES	32

/*
 * In the security context while an owner's code may run in the session of
 * another role, or a statement of _restricted(): a bit that the server does not
 * use.
 */
#define FEEDPUB_OWNER_CODE				0x10000

/* The same while it runs in the session of another role. */
#define FEEDPUB_OTHERS_SESSION			0x20000

/* The caller, while the code runs as another role. */
typedef struct FeedpubRole
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;		/* of the settings */
} FeedpubRole;

/* Values as JSON, and how those of a type are written. */
typedef struct FeedpubJsonValues FeedpubJsonValues;
typedef struct FeedpubJsonType FeedpubJsonType;

/* Which columns of a row make an object. */
typedef struct FeedpubJsonShape
{
	int			natts;
	struct FeedpubJsonColumn
	{
		AttrNumber	attno;		/* in the table */
		char	   *label;		/* "a": */
		int			label_length;
		FeedpubJsonType *type;
	} * columns;
} FeedpubJsonShape;

/* in argument.c */
extern void feedpub_argument_check(FunctionCallInfo fcinfo, int from, int n);
extern void feedpub_argument_least(FunctionCallInfo fcinfo, int arg, int64 value, int least);
extern void feedpub_argument_check_call(FunctionCallInfo fcinfo, const char *name);
extern void feedpub_argument_check_latest(const char *name);
extern Datum feedpub_argument_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls);
extern int64 feedpub_argument_ms(const Interval *interval);
extern int64 feedpub_argument_timeout(FunctionCallInfo fcinfo, int arg);

/* in attempt.c */
extern ErrorData *feedpub_attempt_error(void (*work)(void *arg), void *arg, bool keep);
extern char *feedpub_attempt(void (*work)(void *arg), void *arg);
extern bool feedpub_attempt_is_of_the_data(int sqlstate);

/* in guc.c */
extern int	feedpub_max_page_rows;
extern int	feedpub_max_batch_transactions;
extern int	feedpub_publish_synchronous_commit;
extern int	feedpub_max_subscription_shards;
extern int	feedpub_naptime;
extern int	feedpub_publish_interval;
extern int	feedpub_removal_rate;
extern int	feedpub_read_wait;
extern int	feedpub_max_workers;
extern int	feedpub_batch_retention;
extern int	feedpub_max_unmerged_batches;
extern int	feedpub_tombstone_retention;
extern int	feedpub_stamping_rate;
extern void feedpub_guc_define(void);
extern void feedpub_guc_pin(void);

/* in json_value.c */
extern FeedpubJsonValues *feedpub_jsonvalue_begin(bool in_utc);
extern void feedpub_jsonvalue_limit(FeedpubJsonValues *values,
									StringInfo out);
extern void feedpub_jsonvalue_shape(FeedpubJsonValues *values, TupleDesc desc, int natts,
									const AttrNumber *attnos, FeedpubJsonShape *shape);
extern bool feedpub_jsonvalue_is_safe(const FeedpubJsonShape *shape);
extern bool feedpub_jsonvalue_is_small(const FeedpubJsonShape *shape, const Datum *columns, const bool *nulls);
extern void feedpub_jsonvalue_object(FeedpubJsonValues *values, StringInfo out,
									 const FeedpubJsonShape *shape, const bool *skip,
									 const Datum *columns, const bool *nulls,
									 MemoryContext context);
extern void feedpub_jsonvalue_append(FeedpubJsonValues *values, StringInfo out,
									 Oid typid, Datum value);
extern void feedpub_jsonvalue_string(FeedpubJsonValues *values,
									 StringInfo out, const char *s,
									 Size len);

/* in leftover.c */
extern void feedpub_leftover_init(void);
extern void feedpub_leftover_clear(void);

/* in role.c */
extern void feedpub_role_begin_owner(Oid owner, FeedpubRole *caller);
extern void feedpub_role_begin_extension(Oid owner, FeedpubRole *caller);
extern void feedpub_role_end(const FeedpubRole *caller);
extern void feedpub_role_run(const char *sql);
extern void feedpub_role_run_as_owner(Oid relid, const char *sql);

#endif							/* FEEDPUB_BASE_H */
