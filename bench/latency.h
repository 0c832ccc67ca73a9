/*-------------------------------------------------------------------------
 *
 * latency.h
 *	  What latency.c, which has writers and turns, and latency_read.c, which
 *	  has readers, share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef LATENCY_H
#define LATENCY_H

#define _GNU_SOURCE
#include <libpq-fe.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_VARIANTS	256
#define MAX_WRITERS		64
#define MAX_PARAMS		4
#define MAX_SQL			5
#define VALUE_SIZE		128
#define BUFFER_SIZE		65536
#define NOT_COUNTED		10		/* the first messages of a turn */
#define PATIENCE		60.0	/* seconds */

typedef enum
{
	POLL,
	LISTEN,
	NOTIFY,
	WAIT,
	PGQ,
	STREAM,
	COMMIT,
	DISK
} Method;

/* A connection, and what it is doing. */
typedef struct Session
{
	PGconn	   *conn;
	PGresult   *result;			/* of the statement under way */
	int			step;			/* which one that is; 0: none */
	long		message;		/* a writer's */
} Session;

typedef struct Variant
{
	char	   *label;
	char	   *database;
	Method		method;
	double		interval;
	int			id_column;
	int			nparams;
	char		params[MAX_PARAMS][VALUE_SIZE];
	int			columns[MAX_PARAMS];
	int			nsql;
	char	   *sql[MAX_SQL];

	Session		writers[MAX_WRITERS];
	Session		reader;
	Session		ticker;
	pid_t		pid;			/* method stream: the command, and its output */
	int			fd;
	int			filled;
	char	   *buffer;
	char	   *payloads;		/* method notify: those not read yet */
	int			news;			/* notified since the page was asked for */
	double		next_poll;
	double		next_tick;
	long		wakeups;
	long		rows;
} Variant;

/* the messages of a turn, and whether something new is to be waited for */
extern int follow;
extern int stopping;
extern long long first_id;
extern long nsent;
extern long narrived;
extern double *sent;
extern double *latency;

/* connections */
extern void die(const char *format, ...)
			__attribute__((format(printf, 1, 2), noreturn));
extern double now(void);
extern void *get_memory(void *old, size_t size);
extern PGresult *checked(PGconn *conn, PGresult *result);
extern PGconn *open_connection(const char *database, const char *options);
extern void prepare(Variant *v, PGconn *conn, int statement);
extern void send_prepared(Session *s, int statement, int nparams, const char *const *params);
extern int receive(Session *s);
extern void forget_result(Session *s);

/* readers */
extern void start_stream(Variant *v);
extern void stop_stream(Variant *v);
extern void take_stream(Variant *v);
extern void open_reader(Variant *v);
extern void read_in_time(Variant *v, double when);
extern void hear(Variant *v);

#endif
