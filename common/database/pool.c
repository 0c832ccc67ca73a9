/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The connections to the database that run tasks.
 *
 * A task is one statement of feedpub._request(), a transaction of its own, of
 * which nothing is left in the session that the next task could meet.
 *
 * If the connection is lost, a read is made once more, on another one.  What
 * writes is not, because the first attempt may have succeeded.
 *
 * Tasks with the same share never have the whole pool, and shares take turns.
 * So a feed that is locked, or whose policies are slow, does not delay others.
 * A task that runs for longer than --statement-timeout allows, because an
 * owner's code catches what would end it, and a read that nobody waits for any
 * more, are ended with their process of the database, by the listener's
 * connection; neither is made once more.
 *
 *-------------------------------------------------------------------------
 */
#include "database/database.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ms that the server may take to end a statement at --statement-timeout */
#define GRACE 5000

/* ms after which, and how often, it is asked whether a read is still wanted */
#define UNWANTED 1000

#define SHARE_BUCKETS 256

#define REQUEST "request"		/* a prepared statement */

typedef enum WorkerState
{
	WORKER_CHECKS,				/* the extension */
	WORKER_IDLE,
	WORKER_LISTENS,				/* feed_listen(), before the statement of its task */
	WORKER_RUNS
} WorkerState;

/* Tasks with the same text, as long as there are some. */
typedef struct Share Share;
struct Share
{
	char	   *name;
	DbTask	   *first;			/* of the queue */
	DbTask	  **last;
	int			running;		/* tasks */
	bool		is_ready;		/* it is in the list of those that may run one */
	Share	   *next_ready;
	Share	   *next;			/* of the bucket */
};

/* A session of the pool, and what it does. */
typedef struct Worker
{
	DbSession	session;		/* the first member */
	WorkerState state;			/* if the session is open */
	char	   *schema;			/* of the extension's functions, quoted */
	int			pid;			/* of the server's process */
	DbTask	   *task;
	Share	   *share;			/* of the task */
	DbResult   *result;			/* of the task */
	int64_t		unwanted_at;	/* ms; when to ask */
	bool		failed;			/* the check */
} Worker;

static Worker *workers;
static int	worker_count;
static int	connected;			/* those that have been checked */
static size_t results_held;
static Share *shares[SHARE_BUCKETS];
static Share *first_ready;
static Share **last_ready = &first_ready;

static void opened(DbSession *session);
static void received(DbSession *session, PGresult *result);
static void closed(DbSession *session);
static const char *check_extension(Worker *worker, const PGresult *result);
static void log_problem(const char *problem);
static Share **find_share(const char *name);
static void make_ready(Share *share);
static DbTask *take_task(Share **share);
static void leave_share(Share *share);
static void stop_unwanted(Worker *worker, int64_t now);
static void end_task(DbTask *task, DbResult *result);
static void start_task(Worker *worker, DbTask *task);
static void send_statement(Worker *worker, const char *text, int nargs);
static bool may_be_taken(Worker *worker, const char *role);
static void take_result(Worker *worker, PGresult *result);
static void end_transaction(Worker *worker);

void
db_pool_start(void)
{
	int			count = db_settings->pool;

	workers = base_alloc(count * sizeof(Worker));
	for (worker_count = 0; worker_count < count; worker_count++)
	{
		DbSession  *session = &workers[worker_count].session;

		session->application = FEEDPUB_PROGRAM;
		session->opened = opened;
		session->received = received;
		session->closed = closed;
		db_session_open(session);
	}
}

/* How many connections are there, to an extension of the right version? */
int
db_pool_connected(void)
{
	return connected;
}

/*
 * Another connection to the database has just been made again: so can those of
 * the pool, also if they have failed a moment ago.  Without this what waits for
 * news, which is queued now, would find none that may be there soon, and fail.
 */
void
db_pool_connect(void)
{
	for (int i = 0; i < worker_count; i++)
		if (workers[i].session.state == DB_SESSION_CLOSED)
			db_session_open(&workers[i].session);
}

/* The rows of a statement that was not committed are no result either. */
bool
db_result_failed(const DbResult *result)
{
	return result->sqlstate[0] != '\0' || result->rows == NULL;
}

void
db_result_release(DbResult *result)
{
	if (result == NULL || --result->refs > 0)
		return;
	results_held -= result->size;
	PQclear(result->rows);
	PQclear(result->error);
	free(result->body.data);
	free(result);
}

/* Count the memory of a result, again if it may have grown. */
void
db_result_count(DbResult *result)
{
	size_t		size;

	if (result == NULL)
		return;
	size = PQresultMemorySize(result->rows) + PQresultMemorySize(result->error) + result->body.size;
	results_held += size - result->size;
	result->size = size;
}

/* The bytes of the results that have been counted, each of them once. */
size_t
db_results_held(void)
{
	return results_held;
}

/* The link to a share, which is NULL if there is none of that name. */
static Share **
find_share(const char *name)
{
	unsigned	hash = 0;
	Share	  **link;

	for (const char *c = name; *c != '\0'; c++)
		hash = hash * 31 + (unsigned char) *c;
	link = &shares[hash % SHARE_BUCKETS];
	while (*link != NULL && strcmp((*link)->name, name) != 0)
		link = &(*link)->next;
	return link;
}

/* Let a share run a task when its turn comes, if it has one and may. */
static void
make_ready(Share *share)
{
	int			most = worker_count > 1 ? worker_count - 1 : 1;

	if (share->is_ready || share->first == NULL || share->running >= most)
		return;
	share->is_ready = true;
	share->next_ready = NULL;
	*last_ready = share;
	last_ready = &share->next_ready;
}

/* Run a task when a session is free. */
void
db_pool_add(DbTask *task)
{
	Share	  **link = find_share(task->share);
	Share	   *share = *link;

	if (share == NULL)
	{
		share = *link = base_alloc(sizeof(Share));
		share->name = base_copy(task->share);
		share->last = &share->first;
	}
	task->next = NULL;
	*share->last = task;
	share->last = &task->next;
	make_ready(share);
}

/* The next task; there is a share that is ready. */
static DbTask *
take_task(Share **from)
{
	Share	   *share = *from = first_ready;
	DbTask	   *task = share->first;

	first_ready = share->next_ready;
	if (first_ready == NULL)
		last_ready = &first_ready;
	share->is_ready = false;
	share->first = task->next;
	if (share->first == NULL)
		share->last = &share->first;
	share->running++;
	make_ready(share);
	return task;
}

/* A task of a share runs no more. */
static void
leave_share(Share *share)
{
	Share	  **link;

	share->running--;
	make_ready(share);
	if (share->running > 0 || share->first != NULL)
		return;
	link = find_share(share->name);
	*link = share->next;
	free(share->name);
	free(share);
}

/* Give the tasks that are queued to sessions that are free. */
void
db_pool_work(void)
{
	bool		hope = false;	/* is there a session, or will there be? */
	Share	   *share;

	for (int i = 0; i < worker_count && first_ready != NULL; i++)
	{
		Worker	   *worker = &workers[i];

		db_session_hurry(&worker->session);
		if (db_session_hopes(&worker->session))
			hope = true;
		if (worker->session.state == DB_SESSION_OPEN &&
			worker->state == WORKER_IDLE)
		{
			DbTask	   *task = take_task(&share);

			worker->share = share;
			start_task(worker, task);
		}
	}
	if (hope)
		return;
	while (first_ready != NULL)
	{
		DbTask	   *task = take_task(&share);
		DbResult   *result = base_alloc(sizeof(DbResult));

		task->begins(task, result);
		leave_share(share);
		end_task(task, result);
	}
}

static void
end_task(DbTask *task, DbResult *result)
{
	result->refs = 1;
	task->tries = 0;
	task->ended(task, result);
}

/* Returns when to be called again. */
int64_t
db_pool_sweep(int64_t now)
{
	int64_t		next = INT64_MAX;

	for (int i = 0; i < worker_count; i++)
	{
		Worker	   *worker = &workers[i];
		int64_t		at;

		stop_unwanted(worker, now);
		at = db_session_sweep(&worker->session, now);
		if (at < next)
			next = at;
		if (worker->task != NULL && worker->unwanted_at < next)
			next = worker->unwanted_at;
	}
	return next;
}

/* A read that takes long, and that nobody waits for any more, is ended. */
static void
stop_unwanted(Worker *worker, int64_t now)
{
	const DbTask *task = worker->task;

	if (task == NULL || now < worker->unwanted_at)
		return;
	worker->unwanted_at = now + UNWANTED;
	if (task->statement->writes || task->wanted(task))
		return;
	worker->session.is_late = true;
	db_session_close(&worker->session, NULL);
}

/*
 * Look at the extension: it must be of this program's version.  Have the server
 * end statements that take too long.
 */
static void
opened(DbSession *session)
{
	Worker	   *worker = (Worker *) session;

	worker->state = WORKER_CHECKS;
	worker->failed = false;
	worker->pid = PQbackendPID(session->connection);
	db_session_begin(session);
	db_session_prepare(session, REQUEST,
					   "SELECT feedpub._request($1, $2, $3::pg_catalog.bool, $4,"
					   " $5, $6, $7, $8, $9, $10)",
					   DB_MAX_ARGUMENTS + 4);
	db_session_sync(session);
	db_session_flush(session);
}

/* Returns what is wrong, or NULL. */
static const char *
check_extension(Worker *worker, const PGresult *result)
{
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		return PQresultErrorMessage(result);
	return db_session_extension(result, &worker->schema);
}

/*
 * Log why the database cannot be used, or NULL if it can: each session looks,
 * at each attempt, so it is logged once, until it is something else.
 */
static void
log_problem(const char *problem)
{
	static char *logged;

	if (problem != NULL && (logged == NULL || strcmp(problem, logged) != 0))
		base_log(BASE_LOG_ERROR, "could not use the database: %s", problem);
	free(logged);
	logged = base_copy(problem);
}

/* The connection is lost: so is what it did. */
static void
closed(DbSession *session)
{
	Worker	   *worker = (Worker *) session;
	DbTask	   *task = worker->task;
	DbResult   *result = worker->result;

	if (worker->state != WORKER_CHECKS)
		connected--;
	worker->state = WORKER_CHECKS;
	worker->task = NULL;
	worker->result = NULL;
	if (session->is_late)
		db_listener_terminate(worker->pid);
	if (task == NULL)
		return;
	leave_share(worker->share);
	if (!task->statement->writes && !session->is_late && task->tries++ == 0)
	{
		db_result_release(result);
		db_pool_add(task);
		return;
	}
	PQclear(result->rows);
	result->rows = NULL;
	result->sqlstate[0] = '\0';
	end_task(task, result);
}

static void
start_task(Worker *worker, DbTask *task)
{
	DbSession  *session = &worker->session;

	if (*task->role != '\0' && !may_be_taken(worker, task->role))
		base_log(BASE_LOG_INFO, "role \"%s\" is the login role, which a request may not take", task->role);
	worker->task = task;
	worker->result = base_alloc(sizeof(DbResult));
	worker->result->of_standby = db_session_is_standby(session);
	task->begins(task, worker->result);
	worker->state = WORKER_RUNS;
	worker->unwanted_at = base_now() + UNWANTED;
	session->deadline = base_now() + db_settings->statement_timeout * INT64_C(1000) + GRACE;
	if (task->listens && !worker->result->of_standby)
	{
		worker->state = WORKER_LISTENS;
		send_statement(worker, "SELECT %1$s.feed_listen($1::pg_catalog.regclass)", 1);
	}
	send_statement(worker, task->statement->text, task->statement->nargs);
	db_session_sync(session);
	db_session_flush(session);
}

/*
 * Send a statement with the first arguments of the task.  Code of users that it
 * runs cannot leave the role: feedpub._request().
 */
static void
send_statement(Worker *worker, const char *text, int nargs)
{
	const DbTask *task = worker->task;
	const char *values[DB_MAX_ARGUMENTS + 4] = {NULL};
	BaseText	statement = {0};

	base_text_print(&statement, text, worker->schema);
	values[0] = *task->role == '\0'		 ? NULL :
		may_be_taken(worker, task->role) ? task->role :
										   "";
	values[1] = *task->claims != '\0' ? task->claims : NULL;
	values[2] = task->statement->writes ? "f" : "t";
	values[3] = statement.data;
	for (int i = 0; i < nargs; i++)
		values[i + 4] = task->arguments[i];
	db_session_run(&worker->session, REQUEST, lengthof(values), values);
	free(statement.data);
}

/*
 * Every role that the server may take, but the login role, which needs no grant
 * to be itself: only --anonymous-role may name it.  No role is named "", so that
 * is refused as another one is.
 */
static bool
may_be_taken(Worker *worker, const char *role)
{
	return strcmp(role, PQuser(worker->session.connection)) != 0 ||
		strcmp(role, db_settings->anonymous_role) == 0;
}

/* Something has come: a result, or NULL at the end of a statement's. */
static void
received(DbSession *session, PGresult *result)
{
	Worker	   *worker = (Worker *) session;
	const char *problem;

	if (PQresultStatus(result) == PGRES_PIPELINE_SYNC)
	{
		PQclear(result);
		end_transaction(worker);
		return;
	}
	switch (worker->state)
	{
		case WORKER_CHECKS:
			/* the first problem is told */
			if (result == NULL || worker->failed ||
				(PQresultStatus(result) != PGRES_TUPLES_OK &&
				 PQresultStatus(result) != PGRES_FATAL_ERROR))
				break;
			problem = check_extension(worker, result);
			worker->failed = problem != NULL;
			if (problem != NULL)
				log_problem(problem);
			break;
		case WORKER_LISTENS:
			if (result == NULL)
				worker->state = WORKER_RUNS;
			else
				take_result(worker, result);
			return;
		case WORKER_RUNS:
			if (result != NULL)
				take_result(worker, result);
			return;
		case WORKER_IDLE:
			break;
	}
	PQclear(result);
}

/* Take the rows of a task, or the first error, which rules the rows out. */
static void
take_result(Worker *worker, PGresult *rows)
{
	DbResult   *result = worker->result;
	const char *sqlstate = PQresultErrorField(rows, PG_DIAG_SQLSTATE);

	if (PQresultStatus(rows) == PGRES_TUPLES_OK && worker->state == WORKER_RUNS)
		result->rows = rows;
	else if (PQresultStatus(rows) == PGRES_FATAL_ERROR && result->error == NULL)
	{
		snprintf(result->sqlstate, sizeof(result->sqlstate), "%s",
				 sqlstate != NULL ? sqlstate : "");
		result->error = rows;
	}
	else
		PQclear(rows);
}

static void
end_transaction(Worker *worker)
{
	DbSession  *session = &worker->session;
	DbTask	   *task = worker->task;
	DbResult   *result = worker->result;

	if (worker->failed)
	{
		db_session_close(session, NULL);
		return;
	}
	if (worker->state == WORKER_CHECKS)
	{
		connected++;
		log_problem(NULL);
	}
	worker->state = WORKER_IDLE;
	session->deadline = 0;
	if (task == NULL)
		return;
	worker->task = NULL;
	worker->result = NULL;
	leave_share(worker->share);
	end_task(task, result);
}
