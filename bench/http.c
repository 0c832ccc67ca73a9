/*-------------------------------------------------------------------------
 *
 * http.c
 *	  Times reads of a feed over HTTP beside the same reads by libpq.
 *
 *	http pages FEED LIMIT CALLS TURNS VARIANT ...
 *	http drain FEED LIMIT VARIANT ...
 *	http latency FEED TURNS INSERT VARIANT ...
 *
 * A variant is LABEL=PORT:PID, a server at 127.0.0.1 to which one connection is
 * kept, or LABEL=pq:HOST, libpq with one connection and a prepared statement.
 * LABEL=PORT:PID:HEADER sends this header too.  LABEL=pq:HOST:STATEMENT has
 * another statement than feed_page()'s, with the same parameters, which returns
 * such a page or the lines of one.
 *
 * pages: the variants take turns of so many calls, each a page after the one
 * before; at the end of the feed a variant begins again.  The last column is
 * the median of a call, in us.
 * drain: each reads the whole feed once, libpq in pages, HTTP as NDJSON.
 * latency: in each turn each variant waits for a message, which another
 * connection then inserts: the time from when the INSERT is sent, and from when
 * its writer knows that it is committed, until the page with the message is
 * there.  libpq waits in feed_wait() and then reads a page.  Prints a line for
 * each wait; for the others a line for each variant.
 *
 * CPU is that of this client, of the server, and of its backends, whose
 * application_name is "http.PID".
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <libpq-fe.h>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_VARIANTS 8
#define CURSOR_SIZE 128
#define MAX_PIDS 32

typedef struct Variant
{
	const char *label;
	PGconn	   *conn;			/* or NULL, and then: */
	int			fd;
	const char *header;
	char		cursor[CURSOR_SIZE];
	bool		more;
	long		calls;
	long		rows;
	long		bytes;
	double		seconds;
	double	   *each;			/* of each call */
	double		cpu;
	int			pids[MAX_PIDS]; /* beside this one */
	int			npids;
} Variant;

static Variant variants[MAX_VARIANTS];
static int	nvariants;
static const char *feed;
static char beginning[CURSOR_SIZE];	/* a cursor, which does not redirect */
static const char *limit = "1000";
static char *buffer;			/* what a server has sent */
static size_t size;
static size_t filled;

static void
die(const char *format, ...)
{
	va_list		args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static PGresult *
checked(PGconn *conn, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	return result;
}

/* Seconds that a variant has used, from the scheduler's count. */
static double
cpu_of(const Variant *v)
{
	struct timespec t;
	double		cpu;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	cpu = t.tv_sec + t.tv_nsec * 1e-9;
	for (int i = 0; i < v->npids; i++)
	{
		char		path[64];
		FILE	   *f;
		unsigned long long ns = 0;

		snprintf(path, sizeof(path), "/proc/%d/schedstat", v->pids[i]);
		f = fopen(path, "r");
		if (f == NULL || fscanf(f, "%llu", &ns) != 1)
			die("could not read %s", path);
		fclose(f);
		cpu += ns * 1e-9;
	}
	return cpu;
}

/* The processes of a server: its own, and its backends. */
static void
find_pids(Variant *v, const char *pid)
{
	PGconn	   *conn = PQconnectdb("");
	PGresult   *result = checked(conn, PQexecParams(conn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'http.' || $1",
													1, NULL, &pid, NULL, NULL, 0));

	if (PQntuples(result) >= MAX_PIDS)
		die("%s: too many backends", v->label);
	v->pids[v->npids++] = atoi(pid);
	for (int i = 0; i < PQntuples(result); i++)
		v->pids[v->npids++] = atoi(PQgetvalue(result, i, 0));
	PQclear(result);
	PQfinish(conn);
}

static PGconn *
open_libpq(const char *host, const char *page)
{
	const char *const names[] = {"host", NULL};
	const char *const values[] = {host, NULL};
	PGconn	   *conn = PQconnectdbParams(names, values, 0);

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	PQclear(checked(conn, PQprepare(conn, "page", page != NULL ? page :
									"SELECT feed_page($1::regclass, $2, $3::int)",
									0, NULL)));
	PQclear(checked(conn, PQprepare(conn, "wait",
									"SELECT feed_wait($1::regclass, $2, '60 s')",
									0, NULL)));
	return conn;
}

static int
open_http(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
								  .sin_port = htons(port),
								  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int			fd = socket(AF_INET, SOCK_STREAM, 0);
	int			on = 1;

	if (connect(fd, (struct sockaddr *) &address, sizeof(address)) != 0)
		die("could not connect to port %d", port);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

static void
open_variant(char *spec)
{
	Variant    *v = &variants[nvariants++];
	char	   *value = strchr(spec, '=');
	char	   *more = value != NULL ? strchr(value, ':') : NULL;
	char	   *rest = more != NULL ? strchr(more + 1, ':') : NULL;

	if (more == NULL || nvariants > MAX_VARIANTS)
		die("a variant is LABEL=PORT:PID or LABEL=pq:HOST");
	*value++ = '\0';
	*more++ = '\0';
	if (rest != NULL)
		*rest++ = '\0';
	v->label = spec;
	if (strcmp(value, "pq") == 0)
	{
		v->conn = open_libpq(more, rest);
		v->pids[v->npids++] = PQbackendPID(v->conn);
	}
	else
	{
		v->fd = open_http(atoi(value));
		v->header = rest != NULL ? rest : "Accept: application/json";
		find_pids(v, more);
	}
}

/*
 * HTTP
 */

static void
send_get(Variant *v, const char *header, const char *wait)
{
	char		text[4096];
	int			length = snprintf(text, sizeof(text),
								  "GET /feeds/%s?after=%s&limit=%s%s HTTP/1.1\r\n"
								  "Host: localhost\r\n%s\r\n\r\n",
								  feed, v->cursor, limit, wait, header);

	if (write(v->fd, text, length) != length)
		die("%s: could not send", v->label);
	filled = 0;
}

/* Read until so many bytes are there. */
static void
fill(Variant *v, size_t wanted)
{
	while (filled < wanted)
	{
		ssize_t		got;

		if (size < wanted + 65536)
		{
			size = 2 * wanted + 65536;
			buffer = realloc(buffer, size);
			if (buffer == NULL)
				die("out of memory");
		}
		got = read(v->fd, buffer + filled, size - filled - 1);
		if (got <= 0)
			die("%s: the connection was closed", v->label);
		filled += got;
		buffer[filled] = '\0';
	}
}

/* Read the head of a response; returns where its body begins. */
static size_t
read_head(Variant *v)
{
	char	   *end;

	fill(v, 1);
	while ((end = strstr(buffer, "\r\n\r\n")) == NULL)
		fill(v, filled + 1);
	if (strncmp(buffer, "HTTP/1.1 200", 12) != 0)
		die("%s: %s", v->label, buffer);
	return end + 4 - buffer;
}

/* The value of a header of the response, or NULL. */
static const char *
header_of(const char *name, size_t head)
{
	const char *found = strcasestr(buffer, name);

	return found == NULL || found > buffer + head ? NULL : found + strlen(name);
}

/*
 * Count the entries of a page, and find its cursor: at its end, or in the ETag
 * of one that has CloudEvents.
 */
static void
take_page(Variant *v, const char *page, size_t length, const char *etag)
{
	bool		has_events = *page == '[' || strncmp(page, "{\"spec", 6) == 0;
	const char *begin = has_events ? "{\"specversion\": \"" : "{\"cursor\": \"";
	const char *entry = page;
	long		rows = v->rows;
	const char *tail = page + length - 13;
	const char *cursor = NULL;

	while ((entry = strstr(entry, begin)) != NULL)
	{
		v->rows++;
		entry += strlen(begin);
	}
	if (*page == '[')
		cursor = etag;
	/* the end of an object, or of the lines of _page_lines() */
	while (tail > page && cursor == NULL)
		if (memcmp(--tail, "], \"cursor\": \"", 14) == 0)
			cursor = tail + 14;
		else if (*tail == '\n')
			cursor = tail + 1;
	if (cursor == NULL && *page != '{')
		cursor = page;			/* no lines but the last one */
	if (cursor == NULL)
		die("%s: no page: %.200s", v->label, page);
	/* in the ETag a hash follows */
	snprintf(v->cursor, CURSOR_SIZE, "%.*s",
			 (int) strcspn(cursor, "\" ") - (cursor == etag ? 17 : 0), cursor);
	v->more = v->rows - rows == atol(limit);
	v->bytes += length;
	v->calls++;
}

static void
read_http_page(Variant *v)
{
	size_t		head = read_head(v);
	const char *length = header_of("\nContent-Length:", head);
	const char *etag = header_of("\nETag: \"", head);
	size_t		offset = etag != NULL ? etag - buffer : 0;

	if (length == NULL)
		die("%s: no length", v->label);
	fill(v, head + atol(length));
	take_page(v, buffer + head, filled - head, buffer + offset);
}

/* Read NDJSON to its end; only the lines are counted. */
static void
read_lines(Variant *v)
{
	size_t		at = read_head(v);

	for (;;)
	{
		char	   *end;
		size_t		length;

		while ((end = filled > at ? strstr(buffer + at, "\r\n") : NULL) == NULL)
			fill(v, filled + 1);
		length = strtoul(buffer + at, NULL, 16);
		at = end + 2 - buffer;
		fill(v, at + length + 2);
		if (length == 0)
			return;
		for (char *c = buffer + at; (c = memchr(c, '\n', buffer + at + length - c)) != NULL; c++)
			v->rows++;
		v->bytes += length;
		memmove(buffer, buffer + at + length + 2, filled - at - length - 2);
		filled -= at + length + 2;
		buffer[filled] = '\0';
		at = 0;
	}
}

/*
 * Both
 */

static void
send_libpq(Variant *v, const char *statement)
{
	const char *values[] = {feed, v->cursor, limit};

	if (!PQsendQueryPrepared(v->conn, statement, strcmp(statement, "page") == 0 ? 3 : 2,
							 values, NULL, NULL, 0))
		die("%s", PQerrorMessage(v->conn));
}

static PGresult *
receive_libpq(Variant *v)
{
	PGresult   *result = checked(v->conn, PQgetResult(v->conn));

	PQclear(PQgetResult(v->conn));
	return result;
}

static void
read_page(Variant *v)
{
	if (v->conn == NULL)
	{
		send_get(v, v->header, "");
		read_http_page(v);
	}
	else
	{
		PGresult   *result;

		send_libpq(v, "page");
		result = receive_libpq(v);
		take_page(v, PQgetvalue(result, 0, 0), PQgetlength(result, 0, 0), NULL);
		PQclear(result);
	}
}

static void
find_beginning(void)
{
	PGconn	   *conn = open_libpq(NULL, NULL);
	PGresult   *result = checked(conn, PQexecParams(conn, "SELECT feed_floor($1::regclass)", 1,
													NULL, &feed, NULL, NULL, 0));

	snprintf(beginning, CURSOR_SIZE, "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	PQfinish(conn);
}

static void
begin(Variant *v)
{
	memcpy(v->cursor, beginning, CURSOR_SIZE);
}

static void
print(const Variant *v)
{
	printf("%s,%ld,%ld,%ld,%.6f,%.6f", v->label, v->calls, v->rows, v->bytes, v->seconds, v->cpu);
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

static void
pages(int calls, int turns)
{
	for (int turn = -1; turn < turns; turn++)
		for (int i = 0; i < nvariants; i++)
		{
			Variant    *v = &variants[(i + turn + 1) % nvariants];
			double		start;
			double		cpu;

			if (turn == -1)
			{
				begin(v);
				read_page(v);	/* not timed */
				v->calls = v->rows = v->bytes = 0;
				v->each = malloc(calls * turns * sizeof(double));
				if (v->each == NULL)
					die("out of memory");
				continue;
			}
			start = now();
			cpu = cpu_of(v);
			for (int call = 0; call < calls; call++)
			{
				double		before = now();

				read_page(v);
				v->each[turn * calls + call] = now() - before;
				if (!v->more)
					begin(v);
			}
			v->seconds += now() - start;
			v->cpu += cpu_of(v) - cpu;
		}
	for (int i = 0; i < nvariants; i++)
	{
		Variant    *v = &variants[i];

		print(v);
		qsort(v->each, v->calls, sizeof(double), compare);
		printf(",%.1f\n", v->each[v->calls / 2] * 1e6);
	}
}

static void
drain(void)
{
	for (int i = 0; i < nvariants; i++)
	{
		Variant    *v = &variants[i];
		double		start;
		double		cpu;

		begin(v);
		start = now();
		cpu = cpu_of(v);
		if (v->conn == NULL)
		{
			send_get(v, "Accept: application/x-ndjson", "");
			read_lines(v);
		}
		else
			do
				read_page(v);
			while (v->more);
		v->seconds = now() - start;
		v->cpu = cpu_of(v) - cpu;
		print(v);
		printf("\n");
	}
}

static void
latency(int turns, const char *insert)
{
	PGconn	   *writer = open_libpq(NULL, NULL);

	for (int turn = -10; turn < turns; turn++)
		for (int i = 0; i < nvariants; i++)
		{
			Variant    *v = &variants[i];
			PGresult   *end = checked(writer, PQexecParams(writer, "SELECT feed_flush($1::regclass)", 1,
														   NULL, &feed, NULL, NULL, 0));
			double		start;
			double		committed;

			snprintf(v->cursor, CURSOR_SIZE, "%s", PQgetvalue(end, 0, 0));
			PQclear(end);
			if (v->conn == NULL)
				send_get(v, v->header, "&wait=60");
			else
				send_libpq(v, "wait");
			usleep(20000);		/* it waits by now; if not, it is quick */
			v->rows = 0;
			start = now();
			PQclear(checked(writer, PQexec(writer, insert)));
			committed = now();
			if (v->conn == NULL)
				read_http_page(v);
			else
			{
				PQclear(receive_libpq(v));
				read_page(v);
			}
			if (v->rows != 1)
				die("%s: %ld rows", v->label, v->rows);
			if (turn >= 0)
				printf("%s,%.1f,%.1f\n", v->label, (now() - start) * 1e6,
					   (now() - committed) * 1e6);
		}
	PQfinish(writer);
}

int
main(int argc, char **argv)
{
	const char *mode = argc > 4 ? argv[1] : "";
	int			first = 3;

	if (strcmp(mode, "drain") == 0)
		limit = argv[first++];
	else if (strcmp(mode, "pages") == 0)
	{
		limit = argv[3];
		first = 6;
	}
	else if (strcmp(mode, "latency") == 0)
		first = 5;
	else
		die("see the head of http.c");
	feed = argv[2];
	find_beginning();
	for (int i = first; i < argc; i++)
		open_variant(argv[i]);

	if (strcmp(mode, "pages") == 0)
		pages(atoi(argv[4]), atoi(argv[5]));
	else if (strcmp(mode, "drain") == 0)
		drain();
	else
		latency(atoi(argv[3]), argv[4]);
	return 0;
}
