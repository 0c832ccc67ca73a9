/*-------------------------------------------------------------------------
 *
 * database.h
 *	  Connections to the database that nothing waits for: a pool of them that
 *	  runs tasks, and one that listens for news of feeds.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_DATABASE_H
#define FEEDPUB_DATABASE_H

#include <libpq-fe.h>

#include "base/base.h"

typedef struct DbSettings
{
	char	   *conninfo;
	int			pool;			/* connections that run tasks */
	int			statement_timeout;	/* s */
	int			lock_timeout;	/* s */
	char	   *anonymous_role; /* this one may be the login role */
} DbSettings;

#define DB_MAX_ARGUMENTS 6

typedef struct DbResult DbResult;

/*
 * What a task runs: one SELECT, INSERT, UPDATE or DELETE.  Its parameters are
 * of type text, the first column of its rows is the result.  %1$s is the
 * extension's schema, so a % of its own is %%.  What it names is qualified, the
 * operators too.
 */
typedef struct DbStatement
{
	const char *text;
	int			nargs;
	bool		writes;			/* then it is run once */

	/*
	 * for those who may wait for another result: the feed that was read, and
	 * whether there was nothing yet; or NULL
	 */
	Oid (*feed)(const DbResult *result, bool *empty);
} DbStatement;

/* The outcome of a task, which those who use it count in refs. */
struct DbResult
{
	int			refs;
	bool		of_standby;		/* a server that announces nothing */
	PGresult   *rows;			/* or NULL, and then: */
	char		sqlstate[6];	/* "" if the database was not to be had */
	PGresult   *error;

	size_t		size;			/* that is counted: db_result_count() */

	/* what its users have made of it, once for all of them */
	uint64_t	started;		/* see job.c */
	BaseText	body;
	uint64_t	hash;			/* of the body; 0: not yet */
};

/* A statement, and as whom it is run; "" is the login role, without claims. */
typedef struct DbTask DbTask;
struct DbTask
{
	const DbStatement *statement;
	char	   *role;
	char	   *claims;
	char	   *arguments[DB_MAX_ARGUMENTS];
	char	   *share;			/* those with the same text have no whole pool */
	bool		listens;		/* feed_listen($1) is called before it */
	int			tries;			/* on connections that were lost */
	DbTask	   *next;			/* of the queue of its share */

	/* just before its snapshot is taken; also when it is run once more */
	void (*begins)(DbTask *task, DbResult *result);
	void (*ended)(DbTask *task, DbResult *result);	/* it has one reference */
	bool (*wanted)(const DbTask *task); /* is somebody there for its result? */
};

typedef enum DbSessionState
{
	DB_SESSION_CLOSED,
	DB_SESSION_CONNECTING,
	DB_SESSION_OPEN
} DbSessionState;

/* A connection to the database, and what its owner does with it. */
typedef struct DbSession DbSession;
struct DbSession
{
	BaseSource	source;			/* the first member */
	const char *application;
	DbSessionState state;
	PGconn	   *connection;
	int			syncs;			/* that have not been received */
	int64_t		deadline;		/* ms; when to close it, or to connect; 0: none */
	bool		has_failed;		/* the last attempt */
	bool		is_late;		/* its deadline has come: why it is closed */
	void (*opened)(DbSession *session);
	void (*received)(DbSession *session, PGresult *result);
	void (*closed)(DbSession *session);
	void (*heard)(const char *payload); /* of a NOTIFY; or NULL */
};

/* Whom the listener tells what it hears. */
typedef struct DbHearer
{
	void (*news)(Oid feed);
	void (*news_of_all)(void);	/* of any feed, also of some that were missed */
	void (*lost)(void);			/* the next server knows no feed_listen() */
} DbHearer;

/* in listener.c */
extern void db_listener_start(const DbHearer *hearer);
extern bool db_listener_ready(void);
extern void db_listener_renew(void);
extern void db_listener_terminate(int pid);
extern int64_t db_listener_sweep(int64_t now);

/* in pool.c */
extern const DbSettings *db_settings;	/* the program sets it */
extern void db_pool_start(void);
extern int	db_pool_connected(void);
extern void db_pool_connect(void);
extern void db_pool_add(DbTask *task);
extern void db_pool_work(void);
extern int64_t db_pool_sweep(int64_t now);
extern bool db_result_failed(const DbResult *result);
extern void db_result_release(DbResult *result);
extern void db_result_count(DbResult *result);
extern size_t db_results_held(void);

/* in session.c */
extern void db_session_open(DbSession *session);
extern void db_session_begin(DbSession *session);
extern const char *db_session_extension(const PGresult *result, char **schema);
extern void db_session_close(DbSession *session, const char *reason);
extern int64_t db_session_sweep(DbSession *session, int64_t now);
extern void db_session_hurry(DbSession *session);
extern bool db_session_hopes(const DbSession *session);
extern void db_session_send(DbSession *session, const char *text,
							int nargs, const char *const *arguments);
extern void db_session_prepare(DbSession *session, const char *name,
							   const char *text, int nargs);
extern void db_session_run(DbSession *session, const char *name, int nargs,
						   const char *const *arguments);
extern void db_session_sync(DbSession *session);
extern void db_session_flush(DbSession *session);
extern bool db_session_is_standby(const DbSession *session);

#endif							/* FEEDPUB_DATABASE_H */
