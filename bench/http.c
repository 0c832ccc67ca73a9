/*-------------------------------------------------------------------------
 *
 * http.c
 *	  Times reads of a feed over HTTP beside the same reads by libpq.
 *
 *	http pages FEED LIMIT CALLS TURNS VARIANT ...
 *	http drain FEED LIMIT VARIANT ...
 *	http latency FEED TURNS INSERT VARIANT ...
 *
 * A variant is LABEL=PORT, a server at 127.0.0.1 to which one connection is
 * kept, or LABEL=pq, libpq with the environment's settings, one connection and
 * a prepared statement.
 *
 * pages: the variants take turns of so many calls, each a page after the one
 * before; at the end of the feed a variant begins again.
 * drain: each reads the whole feed once, libpq in pages, HTTP as NDJSON.
 * latency: in each turn each variant waits for a message, which another
 * connection then inserts: the time from when the INSERT is sent until the
 * page with the message is there.  libpq waits in feed_wait() and then reads a
 * page.  Prints a line for each wait; for the others a line for each variant.
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

typedef struct Variant
{
	const char *label;
	PGconn	   *conn;			/* or NULL, and then: */
	int			fd;
	char		cursor[CURSOR_SIZE];
	bool		more;
	long		calls;
	long		rows;
	long		bytes;
	double		seconds;
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

static PGconn *
open_libpq(void)
{
	PGconn	   *conn = PQconnectdb("");

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	PQclear(checked(conn, PQprepare(conn, "page",
									"SELECT feed_page($1::regclass, $2, $3)",
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

	if (value == NULL || nvariants > MAX_VARIANTS)
		die("a variant is LABEL=PORT or LABEL=pq");
	*value++ = '\0';
	v->label = spec;
	if (strcmp(value, "pq") == 0)
		v->conn = open_libpq();
	else
		v->fd = open_http(atoi(value));
}

/*
 * HTTP
 */

static void
send_get(Variant *v, const char *accept, const char *wait)
{
	char		text[1024];
	int			length = snprintf(text, sizeof(text),
								  "GET /feeds/%s?after=%s&limit=%s%s HTTP/1.1\r\n"
								  "Host: localhost\r\nAccept: %s\r\n\r\n",
								  feed, v->cursor, limit, wait, accept);

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
header(const char *name, size_t head)
{
	const char *found = strcasestr(buffer, name);

	return found == NULL || found > buffer + head ? NULL : found + strlen(name);
}

/* Count the entries of a page, and find its cursor. */
static void
take_page(Variant *v, const char *page, size_t length)
{
	const char *entry = page;
	const char *tail = page + length;
	const char *cursor = NULL;

	while ((entry = strstr(entry, "{\"cursor\": \"")) != NULL)
	{
		v->rows++;
		entry += 12;
	}
	while (tail > page && (cursor = memmem(tail, page + length - tail, "], \"cursor\": \"", 14)) == NULL)
		tail--;
	if (cursor == NULL)
		die("%s: no page: %.200s", v->label, page);
	cursor += 14;
	snprintf(v->cursor, CURSOR_SIZE, "%.*s", (int) strcspn(cursor, "\""), cursor);
	v->more = strstr(cursor, "\"more\": true") != NULL;
	v->bytes += length;
	v->calls++;
}

static void
read_http_page(Variant *v)
{
	size_t		head = read_head(v);
	const char *length = header("\nContent-Length:", head);

	if (length == NULL)
		die("%s: no length", v->label);
	fill(v, head + atol(length));
	take_page(v, buffer + head, filled - head);
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
		send_get(v, "application/json", "");
		read_http_page(v);
	}
	else
	{
		PGresult   *result;

		send_libpq(v, "page");
		result = receive_libpq(v);
		take_page(v, PQgetvalue(result, 0, 0), PQgetlength(result, 0, 0));
		PQclear(result);
	}
}

static void
find_beginning(void)
{
	PGconn	   *conn = open_libpq();
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
	printf("%s,%ld,%ld,%ld,%.6f\n", v->label, v->calls, v->rows, v->bytes, v->seconds);
}

static void
pages(int calls, int turns)
{
	for (int turn = -1; turn < turns; turn++)
		for (int i = 0; i < nvariants; i++)
		{
			Variant    *v = &variants[(i + turn + 1) % nvariants];
			double		start;

			if (turn == -1)
			{
				begin(v);
				read_page(v);	/* not timed */
				v->calls = v->rows = v->bytes = 0;
				continue;
			}
			start = now();
			for (int call = 0; call < calls; call++)
			{
				read_page(v);
				if (!v->more)
					begin(v);
			}
			v->seconds += now() - start;
		}
	for (int i = 0; i < nvariants; i++)
		print(&variants[i]);
}

static void
drain(void)
{
	for (int i = 0; i < nvariants; i++)
	{
		Variant    *v = &variants[i];
		double		start;

		begin(v);
		start = now();
		if (v->conn == NULL)
		{
			send_get(v, "application/x-ndjson", "");
			read_lines(v);
		}
		else
			do
				read_page(v);
			while (v->more);
		v->seconds = now() - start;
		print(v);
	}
}

static void
latency(int turns, const char *insert)
{
	PGconn	   *writer = open_libpq();

	for (int turn = -10; turn < turns; turn++)
		for (int i = 0; i < nvariants; i++)
		{
			Variant    *v = &variants[i];
			PGresult   *end = checked(writer, PQexecParams(writer, "SELECT feed_flush($1::regclass)", 1,
														   NULL, &feed, NULL, NULL, 0));
			double		start;

			snprintf(v->cursor, CURSOR_SIZE, "%s", PQgetvalue(end, 0, 0));
			PQclear(end);
			if (v->conn == NULL)
				send_get(v, "application/json", "&wait=60");
			else
				send_libpq(v, "wait");
			usleep(20000);		/* it waits by now; if not, it is quick */
			v->rows = 0;
			start = now();
			PQclear(checked(writer, PQexec(writer, insert)));
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
				printf("%s,%.1f\n", v->label, (now() - start) * 1e6);
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
