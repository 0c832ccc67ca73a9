/*-------------------------------------------------------------------------
 *
 * latency_read.c
 *	  The readers of latency.c, and its connections.
 *
 *-------------------------------------------------------------------------
 */
#include "latency.h"

void
die(const char *format, ...)
{
	va_list		args;

	va_start(args, format);
	fprintf(stderr, "latency: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(1);
}

double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec * 1e-9;
}

void *
get_memory(void *old, size_t size)
{
	void	   *p = realloc(old, size);

	if (p == NULL)
		die("out of memory");
	return p;
}

PGresult *
checked(PGconn *conn, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	return result;
}

PGconn *
open_connection(const char *database, const char *options)
{
	const char *keywords[] = {"dbname", "options", NULL};
	const char *values[] = {database, options, NULL};
	PGconn	   *conn = PQconnectdbParams(keywords, values, 0);

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	return conn;
}

void
prepare(Variant *v, PGconn *conn, int statement)
{
	char		name[2] = {(char) ('a' + statement), 0};

	PQclear(checked(conn, PQprepare(conn, name, v->sql[statement], 0, NULL)));
}

void
send_prepared(Session *s, int statement, int nparams, const char *const *params)
{
	char		name[2] = {(char) ('a' + statement), 0};

	s->step = statement;
	if (!PQsendQueryPrepared(s->conn, name, nparams, params, NULL, NULL, 0))
		die("%s", PQerrorMessage(s->conn));
}

/* Take what has come; true when the statement is done, its result is kept. */
int
receive(Session *s)
{
	if (!PQconsumeInput(s->conn))
		die("%s", PQerrorMessage(s->conn));
	while (!PQisBusy(s->conn))
	{
		PGresult   *next = PQgetResult(s->conn);

		if (next == NULL)
			return 1;
		if (!stopping)
			checked(s->conn, next);
		PQclear(s->result);
		s->result = next;
	}
	return 0;
}

void
forget_result(Session *s)
{
	PQclear(s->result);
	s->result = NULL;
}

/*
 * Readers
 */

static void
arrived(Variant *v, long long id, double when)
{
	long		message = (long) (id - first_id);

	v->rows++;
	if (message < 0 || message >= nsent)
		return;
	if (latency[message] >= 0)
		die("%s: message %lld arrived twice", v->label, id);
	latency[message] = when - sent[message];
	narrived++;
}

/* The rows of a page; its last one has the next cursor. */
static int
take_page(Variant *v, PGresult *page)
{
	double		when = now();
	int			rows = PQntuples(page);

	for (int i = 0; i < rows; i++)
		if (v->id_column >= 0 && !PQgetisnull(page, i, v->id_column))
			arrived(v, atoll(PQgetvalue(page, i, v->id_column)), when);
	if (rows > 0 && v->method != PGQ && v->method != NOTIFY)
		for (int i = 0; i < v->nparams; i++)
			snprintf(v->params[i], VALUE_SIZE, "%s",
					 PQgetvalue(page, rows - 1, v->columns[i]));
	return rows;
}

static void
send_with_cursor(Variant *v, int statement)
{
	const char *params[MAX_PARAMS];

	for (int i = 0; i < v->nparams; i++)
		params[i] = v->params[i];
	send_prepared(&v->reader, statement,
				  strstr(v->sql[statement], "$1") ? v->nparams : 0, params);
}

/* The first statement of the reader's round. */
static void
start_reading(Variant *v)
{
	v->news = 0;
	switch (v->method)
	{
		case POLL:
		case WAIT:
			send_with_cursor(v, 1);
			break;
		case LISTEN:
			send_with_cursor(v, 2);
			break;
		case NOTIFY:
		{
			const char *params[1] = {v->payloads};

			strcat(v->payloads, "}");
			send_prepared(&v->reader, 2, 1, params);
			strcpy(v->payloads, "{");
			break;
		}
		case PGQ:
			send_prepared(&v->reader, 2, 0, NULL);
			break;
		default:
			break;
	}
}

static void
take_notifications(Variant *v)
{
	PGnotify   *notify;

	while ((notify = PQnotifies(v->reader.conn)) != NULL)
	{
		v->wakeups++;
		v->news = 1;
		if (v->method == NOTIFY && v->nsql > 2)
		{
			if (strlen(v->payloads) + strlen(notify->extra) + 3 > BUFFER_SIZE)
				die("too many notifications");
			if (v->payloads[1])
				strcat(v->payloads, ",");
			strcat(v->payloads, notify->extra);
		}
		PQfreemem(notify);
	}
}

/* A statement of the reader is done. */
static void
go_on_reading(Variant *v)
{
	Session    *s = &v->reader;
	int			step = s->step;
	int			rows = 0;

	s->step = 0;
	if (v->method == WAIT && step == 1)
	{
		v->wakeups++;
		if (v->nsql > 2 && !stopping)
			send_with_cursor(v, 2);
	}
	else if (v->method == PGQ && step == 2)
	{
		if (!PQgetisnull(s->result, 0, 0))
		{
			const char *params[1] = {v->params[0]};

			snprintf(v->params[0], VALUE_SIZE, "%s",
					 PQgetvalue(s->result, 0, 0));
			send_prepared(s, 3, 1, params);
		}
	}
	else if (v->method == PGQ && step == 3)
	{
		const char *params[1] = {v->params[0]};

		take_page(v, s->result);
		send_prepared(s, 4, 1, params);
	}
	else if (v->method == PGQ)
		rows = 1;
	else
		rows = take_page(v, s->result);
	forget_result(s);
	take_notifications(v);

	if (s->step == 0 && !stopping &&
		(v->method == WAIT || v->news || (rows > 0 && v->method == PGQ)))
		start_reading(v);
}

void
start_stream(Variant *v)
{
	int			fds[2];

	if (pipe(fds) != 0)
		die("pipe: %s", strerror(errno));
	v->pid = fork();
	if (v->pid < 0)
		die("fork: %s", strerror(errno));
	if (v->pid == 0)
	{
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		dup2(fds[1], 1);
		close(fds[0]);
		close(fds[1]);
		execl("/bin/sh", "sh", "-c", v->sql[1], (char *) NULL);
		_exit(127);
	}
	close(fds[1]);
	v->fd = fds[0];
	v->filled = 0;
}

void
stop_stream(Variant *v)
{
	kill(v->pid, SIGTERM);
	close(v->fd);
	v->fd = -1;
	waitpid(v->pid, NULL, 0);
}

void
take_stream(Variant *v)
{
	static const char key[] = " message_id[text]:'";
	ssize_t		n = read(v->fd, v->buffer + v->filled, BUFFER_SIZE - 1 - v->filled);
	double		when = now();
	char	   *line = v->buffer;
	char	   *end;

	if (n <= 0)
		die("%s: its command has ended", v->label);
	v->filled += n;
	v->buffer[v->filled] = 0;
	while ((end = strchr(line, '\n')) != NULL)
	{
		char	   *id;

		*end = 0;
		id = strstr(line, key);
		if (id != NULL)
			arrived(v, atoll(id + strlen(key)), when);
		line = end + 1;
	}
	v->filled -= line - v->buffer;
	memmove(v->buffer, line, v->filled);
	if (v->filled == BUFFER_SIZE - 1)
		die("%s: a line is too long", v->label);
}

/* Open the reader, and read what is there already. */
void
open_reader(Variant *v)
{
	const char *params[MAX_PARAMS];
	int			page = v->method == POLL ? 1 : 2;
	PGresult   *result;
	int			rows;

	if (v->method == STREAM)
		v->buffer = get_memory(NULL, BUFFER_SIZE);
	if (v->method >= STREAM)
		return;
	v->reader.conn = open_connection(v->database, "");
	for (int i = 1; i < v->nsql; i++)
		if (i > 1 || v->method == POLL || v->method == WAIT)
			prepare(v, v->reader.conn, i);
	if (v->method == LISTEN || v->method == NOTIFY)
		PQclear(checked(v->reader.conn, PQexec(v->reader.conn, v->sql[1])));
	if (v->method == NOTIFY)
	{
		v->payloads = get_memory(NULL, BUFFER_SIZE);
		strcpy(v->payloads, "{");
		return;
	}
	if (v->method == PGQ)
	{
		v->ticker.conn = open_connection(v->database, "");
		prepare(v, v->ticker.conn, 1);
		return;
	}
	if (page >= v->nsql)
		return;
	do
	{
		char		name[2] = {(char) ('a' + page), 0};

		for (int i = 0; i < v->nparams; i++)
			params[i] = v->params[i];
		result = checked(v->reader.conn,
						 PQexecPrepared(v->reader.conn, name,
										strstr(v->sql[page], "$1") ? v->nparams : 0,
										params, NULL, NULL, 0));
		rows = take_page(v, result);
		PQclear(result);
	} while (rows > 0 && !follow);
}

/* What the reader has to do at this time. */
void
read_in_time(Variant *v, double when)
{
	if ((v->method == POLL || v->method == PGQ) && when >= v->next_poll)
	{
		double		step = v->method == PGQ ? v->interval / 10 : v->interval;

		v->next_poll += step;
		if (v->next_poll <= when)
			v->next_poll = when + step;
		if (v->reader.step == 0)
			start_reading(v);
	}
	if (v->method == PGQ && when >= v->next_tick)
	{
		v->next_tick += v->interval;
		if (v->next_tick <= when)
			v->next_tick = when + v->interval;
		if (v->ticker.step == 0)
			send_prepared(&v->ticker, 1, 0, NULL);
	}
	if (v->method == WAIT && v->reader.step == 0 && !stopping)
		start_reading(v);
}

/* Something has come for the reader. */
void
hear(Variant *v)
{
	if (v->reader.step == 0)
	{
		if (!PQconsumeInput(v->reader.conn))
			die("%s: %s", v->label, PQerrorMessage(v->reader.conn));
		take_notifications(v);
		if (v->news && v->nsql > 2)
			start_reading(v);
		v->news = 0;
	}
	else if (receive(&v->reader))
		go_on_reading(v);
}
