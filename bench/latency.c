/*-------------------------------------------------------------------------
 *
 * latency.c
 *	  How long from a COMMIT until a reader holds the row.
 *
 * Reads a list of variants from a file.  They take turns of some seconds, in
 * an order that changes: in a turn transactions are sent at a given rate, by
 * several connections, and one reader of the variant's kind reads what comes.
 * Writers and reader are this one process, so one clock tells the time from
 * the moment in which COMMIT is sent to that in which the reader has the row
 * in its hands.  Prints a line of CSV for each variant and round.  A message
 * that does not arrive, or arrives twice, ends the run.
 *
 * A variant is a line of fields separated by tabs:
 *
 *	label	database	method	interval	id	parameters	columns	SQL ...
 *
 * id is the column in which the reader finds the message's id; parameters,
 * separated by semicolons, and columns, by commas, are the cursor: its first
 * value ('' is the empty one), and where the next one is in a page's last row.
 * The first SQL writes a message, $1 is its data and $2 its id; the others
 * are the reader's:
 *
 *	poll	a page, each interval (ms)
 *	listen	LISTEN; a page for each notification
 *	notify	LISTEN; the rows of the payloads, an array
 *	wait	what waits after a cursor; a page
 *	pgq		the ticker, each interval; next_batch, each tenth of it;
 *			get_batch_events($1); finish_batch($1)
 *	stream	a command, which prints what test_decoding does
 *	commit	nothing is read: the time until the COMMIT is answered
 *	disk	no SQL but a file name: 8 kB written and flushed with fdatasync()
 *
 *	-n rate		transactions a second (200)
 *	-s seconds	of a turn (2)
 *	-r rounds	(1)
 *	-C writers	connections that write (4)
 *	-1			INSERT alone, without BEGIN and COMMIT
 *	-p data		the message
 *	-b database	where a write transaction is open from the beginning of each
 *				turn until all of it has been sent
 *	-e option	options of the writers' sessions, as in PGOPTIONS
 *	-f			follow: only read, all variants at once, until standard input
 *				ends; says "ready" before.  A variant may have no page then
 *
 *-------------------------------------------------------------------------
 */
#include "latency.h"

static Variant *variants[MAX_VARIANTS];
static int	nvariants = 0;

static double rate = 200;
static double seconds = 2;
static int	nwriters = 4;
static int	alone = 0;
int	follow = 0;
int	stopping = 0;		/* nothing new is to be waited for */
static const char *data = "{}";
static const char *blocker_database = NULL;

/* the messages of a turn */
long long first_id;
static long maxmessages;
long nsent;
static long nanswered;
long narrived;
double *sent;
double *latency;			/* < 0: not yet there */
static double *answer;

/* The next field of a line, which is cut there. */
static char *
field(char **line)
{
	char	   *f = strsep(line, "\t");

	if (f == NULL)
		die("a field is missing");
	return f;
}

static void
read_variant(char *line)
{
	static const char *const names[] = {"poll", "listen", "notify", "wait",
										"pgq", "stream", "commit", "disk"};
	Variant    *v = get_memory(NULL, sizeof(Variant));
	char	   *method;
	char	   *list;
	char	   *item;
	int			n = 0;

	memset(v, 0, sizeof(Variant));
	if (nvariants == MAX_VARIANTS)
		die("too many variants");
	variants[nvariants++] = v;
	v->label = field(&line);
	v->database = field(&line);
	method = field(&line);
	while (strcmp(method, names[v->method]) != 0)
		if (v->method++ == DISK)
			die("no such method: %s", method);
	v->interval = atof(field(&line)) * 1e-3;
	v->id_column = atoi(field(&line));
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
	v->fd = -1;
}

/*
 * Writers
 */

static void
send_message(Session *s)
{
	char		id[32];
	const char *params[2] = {data, id};

	snprintf(id, sizeof(id), "%lld", first_id + s->message);
	if (alone)
		sent[s->message] = now();
	send_prepared(s, 0, 2, params);
	s->step = alone ? 3 : 2;
}

static void
send_command(Session *s, const char *command, int step)
{
	s->step = step;
	if (!PQsendQuery(s->conn, command))
		die("%s", PQerrorMessage(s->conn));
}

/* Count a message in that is about to be sent. */
static long
new_message(void)
{
	if (nsent == maxmessages)
	{
		maxmessages = maxmessages ? maxmessages * 2 : 4096;
		sent = get_memory(sent, maxmessages * sizeof(double));
		latency = get_memory(latency, maxmessages * sizeof(double));
		answer = get_memory(answer, maxmessages * sizeof(double));
	}
	latency[nsent] = -1;
	return nsent++;
}

/* Send the next message over a connection that is free. */
static void
begin_message(Session *s)
{
	s->message = new_message();
	if (alone)
		send_message(s);
	else
		send_command(s, "BEGIN", 1);
}

static void
go_on_writing(Variant *v, Session *s)
{
	forget_result(s);
	if (s->step == 1)
		send_message(s);
	else if (s->step == 2)
	{
		sent[s->message] = now();
		send_command(s, "COMMIT", 3);
	}
	else
	{
		answer[s->message] = now() - sent[s->message];
		nanswered++;
		s->step = 0;
		if (v->method == COMMIT)
		{
			latency[s->message] = answer[s->message];
			narrived++;
		}
	}
}

static Session *
free_writer(Variant *v)
{
	for (int i = 0; i < nwriters; i++)
		if (v->writers[i].step == 0)
			return &v->writers[i];
	return NULL;
}

/*
 * Turns
 */

/* Wait for something to happen, no longer than until a moment. */
static void
wait_until(Variant *v, double until)
{
	struct pollfd fds[MAX_WRITERS + 3];
	Session    *sessions[MAX_WRITERS + 3];
	struct timespec timeout;
	double		left = until - now();
	int			n = 0;

	for (int i = 0; i < nwriters; i++)
		if (v->writers[i].step != 0)
			sessions[n++] = &v->writers[i];
	if (v->reader.conn != NULL)
		sessions[n++] = &v->reader;
	if (v->ticker.step != 0)
		sessions[n++] = &v->ticker;
	for (int i = 0; i < n; i++)
		fds[i].fd = PQsocket(sessions[i]->conn);
	if (v->fd >= 0)
	{
		sessions[n] = NULL;
		fds[n++].fd = v->fd;
	}
	for (int i = 0; i < n; i++)
		fds[i].events = POLLIN;

	left = left < 0 ? 0 : left > 1 ? 1 :
									 left;
	timeout.tv_sec = (time_t) left;
	timeout.tv_nsec = (long) ((left - timeout.tv_sec) * 1e9);
	if (ppoll(fds, n, &timeout, NULL) < 0 && errno != EINTR)
		die("ppoll: %s", strerror(errno));
	for (int i = 0; i < n; i++)
	{
		Session    *s = sessions[i];

		if (fds[i].revents == 0)
			continue;
		if (s == NULL)
			take_stream(v);
		else if (s == &v->reader)
			hear(v);
		else if (receive(s))
		{
			if (s != &v->ticker)
				go_on_writing(v, s);
			else
			{
				forget_result(s);
				s->step = 0;
			}
		}
	}
}

/* Let messages come until all that were sent are here. */
static void
wait_for_all(Variant *v)
{
	double		deadline = now() + PATIENCE;

	while (nanswered < nsent || narrived < nsent)
	{
		double		until = now() + 1;

		read_in_time(v, now());
		if (v->method == POLL || v->method == PGQ)
			until = v->next_poll;
		wait_until(v, until);
		if (now() > deadline)
			die("%s: %ld of %ld messages arrived", v->label, narrived, nsent);
	}
}

static void
flush_file(Variant *v)
{
	static char block[8192];
	double		start = now();
	long		message;

	message = new_message();
	if (pwrite(v->fd, block, sizeof(block), (message % 1024) * 8192) < 0 ||
		fdatasync(v->fd) != 0)
		die("%s: %s", v->label, strerror(errno));
	latency[message] = answer[message] = now() - start;
	narrived++;
	nanswered++;
}

/* A file of the size of a WAL segment's half, so that it need not grow. */
static void
open_file(Variant *v)
{
	static char block[8192];

	v->fd = open(v->sql[0], O_RDWR | O_CREAT, 0600);
	if (v->fd < 0)
		die("%s: %s", v->sql[0], strerror(errno));
	for (int i = 0; i < 1024; i++)
		if (pwrite(v->fd, block, sizeof(block), i * 8192) < 0)
			die("%s: %s", v->sql[0], strerror(errno));
	fsync(v->fd);
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return x < y ? -1 : x > y;
}

static void
report(Variant *v, int round, double took)
{
	long		skip = nsent > 2 * NOT_COUNTED ? NOT_COUNTED : 0;
	long		n = nsent - skip;
	double	   *l = latency + skip;
	double	   *a = answer + skip;

	if (n <= 0)
		die("%s: nothing was sent", v->label);
	qsort(l, n, sizeof(double), compare);
	qsort(a, n, sizeof(double), compare);
	printf("%d,%s,%ld,%.0f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%ld\n",
		   round, v->label, n, nsent / took,
		   l[n / 2] * 1e6, l[n * 9 / 10] * 1e6, l[n * 99 / 100] * 1e6,
		   l[n - 1] * 1e6, a[n / 2] * 1e6, a[n * 99 / 100] * 1e6,
		   v->wakeups);
	fflush(stdout);
}

static void
take_turn(Variant *v, int round)
{
	PGconn	   *blocker = NULL;
	double		start;
	double		took;

	first_id += nsent;
	nsent = nanswered = narrived = 0;
	stopping = 0;
	v->wakeups = 0;
	v->next_poll = v->next_tick = now();
	if (v->method == DISK)
		open_file(v);
	if (v->method == STREAM)
		start_stream(v);

	/* one to see that all is awake */
	if (v->method != DISK)
	{
		begin_message(&v->writers[0]);
		wait_for_all(v);
		first_id += nsent;
		nsent = nanswered = narrived = 0;
	}
	if (blocker_database != NULL)
	{
		blocker = open_connection(blocker_database, "");
		PQclear(checked(blocker, PQexec(blocker, "BEGIN")));
		PQclear(checked(blocker, PQexec(blocker, "INSERT INTO orders (customer, total) VALUES (7, 90.50)")));
	}

	start = now();
	for (;;)
	{
		double		when = now();
		double		due = start + nsent / rate;
		double		until;
		Session    *s;

		if (when >= start + seconds)
			break;
		if (when >= due && v->method == DISK)
			flush_file(v);
		else if (when >= due && (s = free_writer(v)) != NULL)
			begin_message(s);
		due = start + nsent / rate;
		read_in_time(v, when);
		until = start + seconds;
		if (due < until && (v->method == DISK || free_writer(v) != NULL))
			until = due;
		if ((v->method == POLL || v->method == PGQ) && v->next_poll < until)
			until = v->next_poll;
		if (v->method == DISK)
			usleep(until > now() ? (useconds_t) ((until - now()) * 1e6) : 0);
		else
			wait_until(v, until);
	}
	took = now() - start;
	if (blocker != NULL)
	{
		PQclear(checked(blocker, PQexec(blocker, "ROLLBACK")));
		PQfinish(blocker);
	}
	wait_for_all(v);

	/* let the reader come to rest */
	stopping = 1;
	while (v->reader.step != 0)
		wait_until(v, now() + 1);
	while (v->ticker.step != 0)
		wait_until(v, now() + 1);
	stopping = 0;
	if (v->method == STREAM)
		stop_stream(v);
	if (v->method == DISK)
	{
		close(v->fd);
		v->fd = -1;
		unlink(v->sql[0]);
	}
	report(v, round, took);
}

/* Read until standard input ends. */
static void
follow_all(void)
{
	static struct pollfd fds[MAX_VARIANTS + 1];

	for (int i = 0; i < nvariants; i++)
	{
		read_in_time(variants[i], now());
		fds[i].fd = PQsocket(variants[i]->reader.conn);
		fds[i].events = POLLIN;
	}
	fds[nvariants].fd = 0;
	fds[nvariants].events = POLLIN;
	printf("ready\n");
	fflush(stdout);
	while (fds[nvariants].revents == 0)
	{
		if (poll(fds, nvariants + 1, -1) < 0)
			die("poll: %s", strerror(errno));
		for (int i = 0; i < nvariants; i++)
			if (fds[i].revents != 0)
				hear(variants[i]);
	}
	for (int i = 0; i < nvariants; i++)
	{
		Variant    *v = variants[i];
		char		error[256];
		PGcancel   *cancel = PQgetCancel(v->reader.conn);

		/* a backend that waits does not notice that its client has gone */
		if (v->reader.step != 0)
			PQcancel(cancel, error, sizeof(error));
		PQfreeCancel(cancel);
		PQfinish(v->reader.conn);
		printf("%s,%ld,%ld\n", v->label, v->wakeups, v->rows);
	}
}

int
main(int argc, char **argv)
{
	int			rounds = 1;
	int			order[MAX_VARIANTS];
	const char *options = "";
	char	   *line = NULL;
	size_t		size = 0;
	ssize_t		length;
	FILE	   *spec;
	int			option;

	while ((option = getopt(argc, argv, "n:s:r:C:1p:b:e:f")) != -1)
		switch (option)
		{
			case 'n':
				rate = atof(optarg);
				break;
			case 's':
				seconds = atof(optarg);
				break;
			case 'r':
				rounds = atoi(optarg);
				break;
			case 'C':
				nwriters = atoi(optarg);
				break;
			case '1':
				alone = 1;
				break;
			case 'p':
				data = optarg;
				break;
			case 'b':
				blocker_database = optarg;
				break;
			case 'e':
				options = optarg;
				break;
			case 'f':
				follow = 1;
				break;
			default:
				return 1;
		}
	if (nwriters < 1 || nwriters > MAX_WRITERS || rate <= 0 || optind >= argc)
		die("bad arguments");
	prctl(PR_SET_TIMERSLACK, 1000);
	srandom((unsigned) getpid());
	first_id = (long long) time(NULL) * 1000000;

	spec = fopen(argv[optind], "r");
	if (spec == NULL)
		die("%s: %s", argv[optind], strerror(errno));
	while ((length = getline(&line, &size, spec)) > 0)
	{
		if (line[length - 1] == '\n')
			line[length - 1] = 0;
		if (line[0])
			read_variant(strdup(line));
	}
	fclose(spec);

	for (int i = 0; i < nvariants; i++)
	{
		Variant    *v = variants[i];

		order[i] = i;
		open_reader(v);
		for (int j = 0; j < nwriters && !follow && v->method != DISK; j++)
		{
			v->writers[j].conn = open_connection(v->database, options);
			prepare(v, v->writers[j].conn, 0);
		}
	}
	if (follow)
	{
		follow_all();
		return 0;
	}
	for (int round = 1; round <= rounds; round++)
	{
		for (int i = nvariants - 1; i > 0; i--)
		{
			int			j = (int) (random() % (i + 1));
			int			swap = order[i];

			order[i] = order[j];
			order[j] = swap;
		}
		for (int i = 0; i < nvariants; i++)
			take_turn(variants[order[i]], round);
	}
	return 0;
}
