/*
 * relay.c: what bench/relay compares feedpub-relay with.
 *
 *	relay publish URL N CURSOR	publishes N messages of 200 bytes from memory, with
 *								the headers that the relay has, by libnats' own
 *								asynchronous publishing, while another thread reads
 *								what is after the cursor; prints how many a second
 *	relay latency URL N			commits N messages, one at a time, and prints the
 *								median and the 99th percentile of the time until a
 *								consumer of the stream has it, and until feed_wait()
 *								returns, in ms.  The database is that of libpq.
 */
#include <libpq-fe.h>
#include <nats/nats.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define IN_FLIGHT 8192			/* as the relay */

static natsConnection *connection;
static jsCtx *js;

static void
check(natsStatus status)
{
	if (status == NATS_OK)
		return;
	nats_PrintLastErrorStack(stderr);
	fprintf(stderr, "%s\n", natsStatus_GetText(status));
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Read what is after a cursor, as the relay does, and throw it away. */
static void *
read_pages(void *cursor)
{
	PGconn	   *reader = PQconnectdb("");
	char		after[128];
	bool		more = true;

	snprintf(after, sizeof(after), "%s", (char *) cursor);
	while (more)
	{
		const char *arguments[] = {after};
		PGresult   *page = PQexecParams(reader, "SELECT feedpub._page_records('outbox', $1, 2000)", 1, NULL, arguments, NULL, NULL, 0);
		const char *last = PQntuples(page) == 1 ? strrchr(PQgetvalue(page, 0, 0), '\n') : NULL;
		char		word[8] = "end";

		if (last != NULL)
			sscanf(last + 1, "%127s %7s", after, word);
		more = strcmp(word, "more") == 0;
		PQclear(page);
	}
	PQfinish(reader);
	return NULL;
}

static void
publish(int n, char *cursor)
{
	pthread_t	thread;
	jsStreamConfig config;
	jsStreamInfo *info = NULL;
	const char *subjects[] = {"memory.>"};
	char		data[200];
	double		begun;

	js_DeleteStream(js, "memory", NULL, NULL);
	jsStreamConfig_Init(&config);
	config.Name = "memory";
	config.Subjects = subjects;
	config.SubjectsLen = 1;
	check(js_AddStream(&info, js, &config, NULL, NULL));
	memset(data, 'x', sizeof(data));
	pthread_create(&thread, NULL, read_pages, cursor);
	begun = now();
	for (int i = 0; i < n; i++)
	{
		natsMsg    *message = NULL;
		natsStatus	status;
		char		subject[64];
		char		text[64];

		snprintf(subject, sizeof(subject), "memory.Order.%d", i);
		check(natsMsg_Create(&message, subject, NULL, data, sizeof(data)));
		snprintf(text, sizeof(text), "%d", i);
		natsMsgHeader_Set(message, "Nats-Expected-Last-Sequence", text);
		natsMsgHeader_Set(message, "ce-subject", text);
		natsMsgHeader_Set(message, "Nats-Expected-Stream", "memory");
		natsMsgHeader_Set(message, "Feedpub-Relay", "hostname 0123456789abcdef");
		natsMsgHeader_Set(message, "ce-specversion", "1.0");
		snprintf(text, sizeof(text), "10lUx99V-----%08d--0D72vGCGv1mw_Ka-------", i);
		natsMsgHeader_Set(message, "ce-id", text);
		natsMsgHeader_Set(message, "ce-source", "/feeds/public.outbox");
		natsMsgHeader_Set(message, "ce-type", "Order");
		natsMsgHeader_Set(message, "ce-time", "2026-01-01T00:00:00.123456+00:00");
		natsMsgHeader_Set(message, "ce-messageid", "0193c5a0-0000-7000-8000-000000000000");
		natsMsgHeader_Set(message, "Content-Type", "application/json");
		do
			status = js_PublishMsgAsync(js, &message, NULL);
		while (status == NATS_TIMEOUT); /* too many are in flight */
		check(status);
	}
	check(js_PublishAsyncComplete(js, NULL));
	printf("%.0f\n", n / (now() - begun));
	pthread_join(thread, NULL);
}

/* What waits in the server, and when it returned. */
static PGconn *waiter;
static double returned;

static void *
wait_for_feed(void *cursor)
{
	const char *arguments[] = {cursor};

	PQclear(PQexecParams(waiter, "SELECT feed_wait('outbox', $1, '10 s')", 1, NULL, arguments, NULL, NULL, 0));
	returned = now();
	return NULL;
}

static int
compare(const void *a, const void *b)
{
	return *(const double *) a < *(const double *) b ? -1 : 1;
}

static void
latency(int n)
{
	PGconn	   *writer = PQconnectdb("");
	natsSubscription *subscription = NULL;
	jsSubOptions options;
	double	   *of_stream = calloc(n, sizeof(double));
	double	   *of_wait = calloc(n, sizeof(double));

	waiter = PQconnectdb("");
	jsSubOptions_Init(&options);
	options.Config.DeliverPolicy = js_DeliverNew;
	check(js_SubscribeSync(&subscription, js, "outbox.>", NULL, &options, NULL));
	for (int i = 0; i < n; i++)
	{
		PGresult   *head = PQexec(waiter, "SELECT feed_head('outbox')");
		struct timespec pause = {.tv_nsec = 20000000};
		natsMsg    *message = NULL;
		pthread_t	thread;
		double		committed;

		pthread_create(&thread, NULL, wait_for_feed, PQgetvalue(head, 0, 0));
		nanosleep(&pause, NULL);
		PQclear(PQexec(writer, "INSERT INTO outbox (message_type, message_key, data) VALUES ('Order', 'k', '1')"));
		committed = now();
		check(natsSubscription_NextMsg(&message, subscription, 10000));
		of_stream[i] = 1000 * (now() - committed);
		natsMsg_Destroy(message);
		pthread_join(thread, NULL);
		of_wait[i] = 1000 * (returned - committed);
		PQclear(head);
	}
	qsort(of_stream, n, sizeof(double), compare);
	qsort(of_wait, n, sizeof(double), compare);
	printf("stream %.1f %.1f feed_wait %.1f %.1f\n", of_stream[n / 2], of_stream[n * 99 / 100],
		   of_wait[n / 2], of_wait[n * 99 / 100]);
}

int
main(int argc, char **argv)
{
	jsOptions	options;

	if (argc < 4)
		return 2;
	check(natsConnection_ConnectTo(&connection, argv[2]));
	jsOptions_Init(&options);
	options.PublishAsync.MaxPending = IN_FLIGHT;
	check(natsConnection_JetStream(&js, connection, &options));
	if (strcmp(argv[1], "publish") == 0)
		publish(atoi(argv[3]), argc > 4 ? argv[4] : "");
	else
		latency(atoi(argv[3]));
	return 0;
}
