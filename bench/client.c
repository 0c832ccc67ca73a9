/*-------------------------------------------------------------------------
 *
 * client.c
 *	  Times statements of several variants side by side.
 *
 * Reads a list of variants from standard input, opens connections for each,
 * and lets them take turns: a few calls of one, a few of the next, all of
 * them in each turn, in an order that changes, so that whatever else the
 * machine does hits all of them alike.  Prints a line of CSV for each.
 *
 * A variant is a line of fields separated by tabs:
 *
 *	label	database	method	parameters	columns	SQL ...
 *
 * The database is a name, or a connection string: variants may be in several
 * servers.
 *
 *	page	one statement that reads a page; others before it are run once, when
 *			the connection is opened.  parameters, separated by semicolons, are
 *			the values of $1, ... for the first call; with -a the next call takes
 *			them from the given columns (from 0) of the last row of this one.
 *			'' is the empty value.
 *	json	the same with feed_page(): the rows are counted, and the cursor
 *			found, in the JSON.
 *	write	a transaction of one or more statements, run by several clients at
 *			once.  The parameters go to the statements that have any; "?" is a
 *			new number of twelve digits for each.
 *	pgq		next_batch, get_batch_events, finish_batch; $1 of the latter two
 *			is the batch.
 *	pgmq	read, delete; $1 of the latter is the array of the ids read, which
 *			are in column 0.
 *	ack		statements of which one returns the page; those that have $1 follow
 *			it, and take their parameters from the given columns of its last row
 *	once	the last SQL is timed, those before it are not.
 *
 * Statements are prepared, parameters and results are text.
 *
 *	-a			advance: each variant goes on to its end (drain)
 *	-n calls	calls in a turn, of each client
 *	-C clients	clients of a variant, for write (1)
 *	-t turns	turns (until all variants are at their end or their limit)
 *	-s seconds	no variant is timed for longer than this, but for the call
 *				that it is in; cut ones are marked
 *	-w calls	calls before, of each variant, that are not timed
 *	-r rate		no variant has more calls a second than this: turns wait
 *	-c cpu		runs this client and its backends on one processor: without
 *				it wake-ups across processors decide what is measured
 *	-e option	options of each session, as in PGOPTIONS
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <libpq-fe.h>

#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_VARIANTS	64
#define MAX_PARAMS		4
#define MAX_SQL			4
#define MAX_CLIENTS		64
#define VALUE_SIZE		512

typedef enum
{
	PAGE,
	JSON,
	WRITE,
	PGQ,
	PGMQ,
	ACK,
	ONCE
} Method;

typedef struct Variant
{
	char	   *label;
	Method		method;
	PGconn	   *conns[MAX_CLIENTS];
	PGconn	   *conn;			/* the first of them */
	int			nconns;
	int			nsql;
	char	   *sql[MAX_SQL];
	int			nparams;
	char		params[MAX_PARAMS][VALUE_SIZE];
	int			columns[MAX_PARAMS];

	int			done;			/* drained, or out of time */
	int			cut;			/* out of time */
	long		calls;
	long		rows;
	long		bytes;			/* of all values */
	double		seconds;
	double		cpu;			/* seconds of its backends */
	double		wal;			/* bytes, methods write and once */
	double	   *times;			/* of each call */
	long		maxtimes;
} Variant;

static Variant variants[MAX_VARIANTS];
static int	nvariants = 0;
static int	advance = 0;
static unsigned long long seed = 88172645463325252ULL;

static void
die(const char *format, ...)
{
	va_list		args;

	va_start(args, format);
	fprintf(stderr, "client: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(1);
}

static double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec * 1e-9;
}

/* Marsaglia's xorshift: the same order in each run. */
static unsigned long long
next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/*
 * Seconds that a process has run, from the scheduler's count of nanoseconds;
 * 0 where the kernel does not tell.
 */
static double
cpu_of(int pid)
{
	char		path[64];
	FILE	   *f;
	unsigned long long ns = 0;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", pid);
	f = fopen(path, "r");
	if (f)
	{
		if (fscanf(f, "%llu", &ns) != 1)
			ns = 0;
		fclose(f);
	}
	return ns * 1e-9;
}

static double
cpu_of_variant(Variant *v)
{
	double		cpu = 0;

	for (int i = 0; i < v->nconns; i++)
		cpu += cpu_of(PQbackendPID(v->conns[i]));
	return cpu;
}

static void
pin(int pid, int cpu)
{
	cpu_set_t	set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(pid, sizeof(set), &set) != 0)
		perror("client: sched_setaffinity");
}

static PGresult *
checked(Variant *v, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s: %s", v->label, PQerrorMessage(v->conn));
	return result;
}

static PGresult *
execute(Variant *v, int statement, int nparams, const char *const *params)
{
	char		name[2] = {(char) ('a' + statement), 0};

	return checked(v, PQexecPrepared(v->conn, name, nparams, params, NULL, NULL, 0));
}

/* The next field of a line, which is cut there. */
static char *
field(char **line)
{
	char	   *f = strsep(line, "\t");

	if (f == NULL)
		die("a field is missing");
	return f;
}

static PGconn *
open_connection(Variant *v, const char *database, const char *options, int cpu)
{
	const char *keywords[] = {"dbname", "options", NULL};
	const char *values[] = {database, options, NULL};
	PGconn	   *conn = PQconnectdbParams(keywords, values, 1);

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	if (cpu >= 0)
		pin(PQbackendPID(conn), cpu);
	for (int i = 0; i < v->nsql && v->method != ONCE; i++)
	{
		int			before = v->method == PAGE ? v->nsql - 1 : 0;
		char		name[2] = {(char) ('a' + i - before), 0};
		PGresult   *result = i < before ? PQexec(conn, v->sql[i]) :
			PQprepare(conn, name, v->sql[i], 0, NULL);

		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			die("%s: %s", v->label, PQerrorMessage(conn));
		PQclear(result);
	}
	return conn;
}

static void
read_variant(char *line, int clients, const char *options, int cpu)
{
	static const char *const names[] = {"page", "json", "write", "pgq", "pgmq",
										"ack", "once"};
	Variant    *v = &variants[nvariants++];
	char	   *database;
	char	   *method;
	char	   *list;
	char	   *item;
	int			n = 0;

	if (nvariants > MAX_VARIANTS)
		die("too many variants");
	v->label = field(&line);
	database = field(&line);
	method = field(&line);
	while (strcmp(method, names[v->method]) != 0)
		if (v->method++ == ONCE)
			die("%s: no such method: %s", v->label, method);

	list = field(&line);
	while ((item = strsep(&list, ";")) != NULL && *item)
	{
		if (v->nparams == MAX_PARAMS || strlen(item) >= VALUE_SIZE)
			die("%s: bad parameters", v->label);
		strcpy(v->params[v->nparams++], strcmp(item, "''") == 0 ? "" : item);
	}
	list = field(&line);
	while ((item = strsep(&list, ",")) != NULL && *item && n < MAX_PARAMS)
		v->columns[n++] = atoi(item);
	while ((item = strsep(&line, "\t")) != NULL && v->nsql < MAX_SQL)
		v->sql[v->nsql++] = item;

	v->nconns = v->method == WRITE ? clients : 1;
	for (int i = 0; i < v->nconns; i++)
		v->conns[i] = open_connection(v, database, options, cpu);
	v->conn = v->conns[0];
}

/* Count what came, as a consumer would look at each value. */
static long
count_result(Variant *v, PGresult *result)
{
	int			rows = PQntuples(result);
	int			fields = PQnfields(result);

	for (int i = 0; i < rows; i++)
		for (int j = 0; j < fields; j++)
			v->bytes += PQgetlength(result, i, j);
	v->rows += rows;
	return rows;
}

static long
call_page(Variant *v)
{
	const char *params[MAX_PARAMS];
	PGresult   *result;
	long		rows;

	for (int i = 0; i < v->nparams; i++)
		params[i] = v->params[i];
	result = execute(v, 0, v->nparams, params);
	rows = count_result(v, result);
	if (advance && rows > 0)
		for (int i = 0; i < v->nparams; i++)
			snprintf(v->params[i], VALUE_SIZE, "%s",
					 PQgetvalue(result, (int) rows - 1, v->columns[i]));
	PQclear(result);
	return rows;
}

/* A page in JSON; before 0.1 an entry began with publication_id or op. */
static long
call_json(Variant *v)
{
	static const char entry[] = "{\"cursor\": ";
	static const char outbox[] = "{\"publication_id\":";
	static const char table[] = "{\"op\": ";
	static const char key[] = "\"cursor\": \"";
	const char *params[1] = {v->params[0]};
	PGresult   *result = execute(v, 0, 1, params);
	const char *json = PQgetvalue(result, 0, 0);
	const char *first = strstr(json, entry) ? entry :
		strstr(json, outbox) ? outbox : table;
	const char *cursor = NULL;
	const char *p;
	long		rows = 0;

	v->bytes += PQgetlength(result, 0, 0);
	for (p = json; (p = strstr(p, first)) != NULL; p += strlen(first))
		rows++;
	v->rows += rows;

	/* the last one: a message may have a member of that name */
	p = json + PQgetlength(result, 0, 0);
	while (cursor == NULL && --p >= json)
		if (strncmp(p, key, strlen(key)) == 0)
			cursor = p + strlen(key);
	if (cursor == NULL)
		die("%s: there is no cursor", v->label);
	if (advance)
		snprintf(v->params[0], VALUE_SIZE, "%.*s",
				 (int) strcspn(cursor, "\""), cursor);
	PQclear(result);
	return rows;
}

static long
call_pgq(Variant *v)
{
	char		batch[VALUE_SIZE];
	const char *params[1] = {batch};
	PGresult   *result = execute(v, 0, 0, NULL);
	long		rows;

	if (PQgetisnull(result, 0, 0))
	{
		PQclear(result);
		return 0;
	}
	snprintf(batch, sizeof(batch), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	result = execute(v, 1, 1, params);
	rows = count_result(v, result);
	PQclear(result);
	PQclear(execute(v, 2, 1, params));
	return rows + 1;			/* an empty batch is not the end */
}

static long
call_pgmq(Variant *v)
{
	PGresult   *result = execute(v, 0, 0, NULL);
	long		rows = count_result(v, result);

	if (rows > 0)
	{
		char	   *ids = malloc(rows * 24 + 3);
		char	   *p = ids;
		const char *params[1] = {ids};

		for (int i = 0; i < rows; i++)
			p += sprintf(p, "%c%s", i ? ',' : '{', PQgetvalue(result, i, 0));
		strcpy(p, "}");
		PQclear(execute(v, 1, 1, params));
		free(ids);
	}
	PQclear(result);
	return rows;
}

/* A page, and what is done when it has been dealt with. */
static long
call_ack(Variant *v)
{
	char		values[MAX_PARAMS][VALUE_SIZE];
	const char *params[MAX_PARAMS];
	long		rows = 0;

	for (int i = 0; i < v->nsql; i++)
	{
		int			nparams = strstr(v->sql[i], "$2") ? 2 : strstr(v->sql[i], "$1") ? 1 : 0;
		PGresult   *result;

		if (nparams > 0 && rows == 0)
			continue;
		for (int j = 0; j < nparams; j++)
			params[j] = values[j];
		result = execute(v, i, nparams, params);
		if (nparams == 0 && PQnfields(result) > 0)
		{
			rows = count_result(v, result);
			for (int j = 0; j < MAX_PARAMS && rows > 0; j++)
				snprintf(values[j], VALUE_SIZE, "%s",
						 PQgetvalue(result, (int) rows - 1, v->columns[j]));
		}
		PQclear(result);
	}
	return rows;
}

static double
wal_position(Variant *v)
{
	PGresult   *result = checked(v, PQexec(v->conn, "SELECT pg_current_wal_insert_lsn() - '0/0'"));
	double		position = atof(PQgetvalue(result, 0, 0));

	PQclear(result);
	return position;
}

static long
call(Variant *v)
{
	switch (v->method)
	{
		case JSON:
			return call_json(v);
		case PGQ:
			return call_pgq(v);
		case PGMQ:
			return call_pgmq(v);
		case ACK:
			return call_ack(v);
		default:
			return call_page(v);
	}
}

static void
note_time(Variant *v, double seconds)
{
	if (v->calls == v->maxtimes)
	{
		v->maxtimes = v->maxtimes ? v->maxtimes * 2 : 1024;
		v->times = realloc(v->times, v->maxtimes * sizeof(double));
		if (v->times == NULL)
			die("out of memory");
	}
	v->times[v->calls++] = seconds;
}

static void
send_statement(Variant *v, PGconn *conn, int statement)
{
	const char *params[MAX_PARAMS];
	char		name[2] = {(char) ('a' + statement), 0};
	char		number[16];
	int			nparams = strstr(v->sql[statement], "$1") ? v->nparams : 0;

	snprintf(number, sizeof(number), "%llu",
			 100000000000ULL + next_random() % 900000000000ULL);
	for (int i = 0; i < nparams; i++)
		params[i] = strcmp(v->params[i], "?") == 0 ? number : v->params[i];
	if (!PQsendQueryPrepared(conn, name, nparams, params, NULL, NULL, 0))
		die("%s: %s", v->label, PQerrorMessage(conn));
}

/* So many transactions by each client of a variant, all at once. */
static void
write_all(Variant *v, int calls, int timed)
{
	struct pollfd fds[MAX_CLIENTS];
	double		starts[MAX_CLIENTS];
	int			left[MAX_CLIENTS];
	int			statement[MAX_CLIENTS];
	int			open = v->nconns;

	for (int i = 0; i < v->nconns; i++)
	{
		fds[i].fd = PQsocket(v->conns[i]);
		fds[i].events = POLLIN;
		left[i] = calls;
		statement[i] = 0;
		starts[i] = now();
		send_statement(v, v->conns[i], 0);
	}
	while (open > 0)
	{
		if (poll(fds, v->nconns, -1) < 0)
			die("poll failed");
		for (int i = 0; i < v->nconns; i++)
		{
			PGconn	   *conn = v->conns[i];
			PGresult   *result = NULL;

			if (fds[i].fd < 0 || fds[i].revents == 0)
				continue;
			if (!PQconsumeInput(conn))
				die("%s: %s", v->label, PQerrorMessage(conn));
			while (!PQisBusy(conn) && (result = PQgetResult(conn)) != NULL)
				PQclear(checked(v, result));
			if (PQisBusy(conn))
				continue;

			if (++statement[i] == v->nsql)
			{
				if (timed)
					note_time(v, now() - starts[i]);
				if (--left[i] == 0)
				{
					fds[i].fd = -1;
					open--;
					continue;
				}
				statement[i] = 0;
				starts[i] = now();
			}
			send_statement(v, conn, statement[i]);
		}
	}
}

/* One call of method once; its CPU counts without what goes before. */
static void
call_once(Variant *v)
{
	PGresult   *result;
	double		wal;
	double		cpu;
	double		start;

	for (int i = 0; i < v->nsql - 1; i++)
		PQclear(checked(v, PQexec(v->conn, v->sql[i])));
	wal = wal_position(v);
	cpu = cpu_of_variant(v);
	start = now();
	result = checked(v, PQexec(v->conn, v->sql[v->nsql - 1]));
	note_time(v, now() - start);
	v->seconds += now() - start;
	v->cpu += cpu_of_variant(v) - cpu;
	v->wal += wal_position(v) - wal;
	v->rows += atol(PQcmdTuples(result));
	PQclear(result);
}

/* One turn of one variant. */
static void
take_turn(Variant *v, int calls, double limit)
{
	double		start;

	if (v->method == WRITE)
	{
		double		wal = wal_position(v);
		double		cpu = cpu_of_variant(v);

		start = now();
		write_all(v, calls, 1);
		v->seconds += now() - start;
		v->cpu += cpu_of_variant(v) - cpu;
		v->wal += wal_position(v) - wal;
		v->done = v->cut = v->seconds >= limit;
		return;
	}

	/* of a whole turn, so that asking costs little */
	if (v->method != ONCE)
		v->wal -= wal_position(v);
	for (int i = 0; i < calls && !v->done; i++)
	{
		long		more = 1;

		if (v->method == ONCE)
			call_once(v);
		else
		{
			start = now();
			more = call(v);
			note_time(v, now() - start);
			v->seconds += now() - start;
		}
		if (v->seconds >= limit)
			v->done = v->cut = 1;
		if (advance && more == 0)
			v->done = 1;
	}
	if (v->method != ONCE)
		v->wal += wal_position(v);
}

/* Warm up: a number of calls that move no cursor and are not counted. */
static void
warm_up(Variant *v, int calls, double limit)
{
	int			keep = advance;
	double		start = now();

	advance = 0;
	if (v->method == WRITE && calls > 0)
		write_all(v, calls, 0);
	for (int i = 0; i < calls && v->method <= JSON; i++)
	{
		(void) call(v);
		if (now() - start > limit)
			break;
	}
	advance = keep;
	v->rows = v->bytes = 0;
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return x < y ? -1 : x > y;
}

int
main(int argc, char **argv)
{
	int			calls = 20;
	int			clients = 1;
	int			turns = 0;
	int			warm = 0;
	int			cpu = -1;
	int			order[MAX_VARIANTS];
	double		limit = 1e9;
	double		rate = 0;
	double		start;
	const char *options = "";
	char	   *line = NULL;
	size_t		size = 0;
	ssize_t		length;
	int			option;

	while ((option = getopt(argc, argv, "an:t:s:w:c:C:e:r:")) != -1)
		switch (option)
		{
			case 'a':
				advance = 1;
				break;
			case 'n':
				calls = atoi(optarg);
				break;
			case 't':
				turns = atoi(optarg);
				break;
			case 's':
				limit = atof(optarg);
				break;
			case 'w':
				warm = atoi(optarg);
				break;
			case 'c':
				cpu = atoi(optarg);
				break;
			case 'C':
				clients = atoi(optarg);
				break;
			case 'e':
				options = optarg;
				break;
			case 'r':
				rate = atof(optarg);
				break;
			default:
				return 1;
		}
	if (turns == 0 && !advance && limit >= 1e9)
		die("-t or -s is needed without -a");
	if (clients < 1 || clients > MAX_CLIENTS)
		die("bad number of clients");

	if (cpu >= 0)
		pin(0, cpu);
	while ((length = getline(&line, &size, stdin)) > 0)
	{
		if (line[length - 1] == '\n')
			line[length - 1] = 0;
		if (line[0])
			read_variant(strdup(line), clients, options, cpu);
	}

	for (int i = 0; i < nvariants; i++)
	{
		warm_up(&variants[i], warm, limit);
		order[i] = i;
	}
	for (int i = 0; i < nvariants; i++)
		if (variants[i].method != ONCE && variants[i].method != WRITE)
			variants[i].cpu = -cpu_of_variant(&variants[i]);

	start = now();
	for (int turn = 0; turns == 0 || turn < turns; turn++)
	{
		int			open = 0;
		double		early = rate > 0 ? start + turn * calls * clients / rate - now() : 0;

		if (early > 0)
			usleep((useconds_t) (early * 1e6));

		for (int i = nvariants - 1; i > 0; i--)
		{
			int			j = (int) (next_random() % (i + 1));
			int			swap = order[i];

			order[i] = order[j];
			order[j] = swap;
		}
		for (int i = 0; i < nvariants; i++)
		{
			Variant    *v = &variants[order[i]];

			if (!v->done)
				take_turn(v, calls, limit);
			open += !v->done;
		}
		if (open == 0)
			break;
	}

	for (int i = 0; i < nvariants; i++)
	{
		Variant    *v = &variants[i];

		if (v->method != ONCE && v->method != WRITE)
			v->cpu += cpu_of_variant(v);
		qsort(v->times, v->calls, sizeof(double), compare);
		printf("%s,%ld,%ld,%ld,%.6f,%.2f,%.2f,%.6f,%.0f,%d\n",
			   v->label, v->calls, v->rows, v->bytes, v->seconds,
			   v->times[v->calls / 2] * 1e6,
			   v->times[v->calls * 99 / 100] * 1e6,
			   v->cpu, v->wal, v->cut);
		for (int j = 0; j < v->nconns; j++)
			PQfinish(v->conns[j]);
	}
	return 0;
}
