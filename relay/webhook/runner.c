/*-------------------------------------------------------------------------
 *
 * runner.c
 *	  Runs webhooks: polls a subscription, sends each entry, and acknowledges.
 *
 * How far a webhook is, the subscription knows.  A page is polled, its entries are
 * sent, each of which is accepted or parked in the end, and the page is
 * acknowledged up to the first that is neither, as often as that has moved.  What
 * was not acknowledged when the relay ends comes again: at least once.
 *
 * Order.  Of one key one request is in flight, and the next entry is sent when
 * the one before it was accepted or parked.  A TRUNCATE comes alone.  The next page
 * is polled when all of this one is done, so no key is in two pages.
 *
 * What is not accepted is sent again, after a delay that grows or that the
 * receiver names, and its key waits.  Two things can be the reason, and they look
 * the same: the receiver does not work, or it cannot take this entry.  If it does
 * not work, to park one entry after the other would move the backlog into the
 * table of parked entries, without its order; so an attempt counts only if the
 * receiver accepted another entry since it was first given this one, or if its
 * status says that the request is wrong.  Else all entries wait.  But a page can
 * have no other entry that it would accept.  So after PATIENCE waits in a row the
 * attempts at the first one count, one after each wait: while a receiver does not
 * work, an entry is parked in some minutes, and no more.  After --attempts that
 * count, the entry is parked (feed_nack()), so that its key goes on, and comes
 * again by the backoff of the subscription.
 *
 * Two relays with different names share the subscription: the lease of its
 * consumer keeps one of them waiting.
 *
 * Outcomes are written by one statement at a time.  If its answer is lost, it is
 * sent again: parking counts once, and an acknowledgement that was committed is
 * done (strict => false).  If a page is another consumer's, it is forgotten.
 *
 *-------------------------------------------------------------------------
 */
#include "webhook/event.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ms */
#define FIRST_DELAY 500
#define MAX_DELAY 60000
#define READ_RETRY 1000
#define LOOK_AGAIN 1000			/* a parked entry can be due, or a lease free */
#define GRACE 5000				/* the server may take to end a statement */

/* waits in a row, after which attempts at the first entry count */
#define PATIENCE 4

/* entries of a page, for each request that may be in flight */
#define ENTRIES 16

/* polls that find nothing before --once ends: one may only have passed entries */
#define EMPTY_POLLS 2

typedef enum HookWork
{
	HOOK_IDLE,
	HOOK_CHECKS,				/* the extension */
	HOOK_SUBSCRIBES,
	HOOK_POLLS,
	HOOK_SETTLES,
	HOOK_LEAVES
} HookWork;

typedef enum EntryState
{
	ENTRY_WAITS,
	ENTRY_SENT,
	ENTRY_ACCEPTED,
	ENTRY_PARKED				/* or is to be, unless it is written */
} EntryState;

typedef struct Hook Hook;
typedef struct HookEntry
{
	Hook	   *hook;
	EntryState	state;
	WebhookRequest *request;	/* in flight */
	int64_t		retry_at;		/* ms */
	int			failures;
	int			counted;		/* of them */
	uint64_t	accepted;		/* by the receiver, when this was first sent */
	bool		is_for_good;	/* parked */
	bool		is_writing;
	bool		is_written;
	int			delay;			/* s, until it comes again; 0: as the backoff says */
	char		reason[128];
} HookEntry;

struct Hook
{
	Feed		feed;			/* the first member */
	Sink		sink;			/* counters of the feed */
	DbSession	session;
	HookWork	work;
	bool		is_subscribed;
	char	   *schema;			/* of the extension's functions, quoted */
	char	   *poll;			/* statements */
	char	   *leave;
	char	   *name;			/* of the feed, quoted */
	char	   *source;
	char	   *consumer;
	bool		is_outbox;
	Oid			relid;
	WebhookKeys keys;
	PGresult   *page;			/* or NULL */
	HookEntry  *entries;
	int			count;
	int			acknowledged;	/* the first so many of them */
	int			settling;		/* up to where the statement acknowledges */
	bool		is_lost;		/* the page */
	uint64_t	accepted;
	int64_t		paused_until;	/* ms */
	int			pauses;			/* in a row */
	bool		is_paused;
	int64_t		retry_at;		/* ms: the database */
	bool		must_listen;
	bool		has_news;
	int			empty_polls;	/* in a row */
	int64_t		look_at;		/* ms */
	char		sqlstate[6];	/* of an error of this work's; "" and no message: none */
	char		message[512];
};

static void opened(DbSession *session);
static void received(DbSession *session, PGresult *result);
static void closed(DbSession *session);
static void done(Hook *hook);
static void judge(Hook *hook);
static void begin(Hook *hook, HookWork work);
static void check_extension(Hook *hook, const PGresult *result);
static void subscribe(Hook *hook);
static void take_feed(Hook *hook, const PGresult *result);
static void poll(Hook *hook);
static void take_page(Hook *hook, PGresult *page);
static void drop_page(Hook *hook);
static bool has_outcomes(const Hook *hook);
static void settle(Hook *hook);
static void send_entries(Hook *hook, int64_t now);
static bool is_turn(const Hook *hook, int i);
static bool send_entry(HookEntry *entry);
static void answered(void *arg, const WebhookAnswer *answer);
static bool is_first(const Hook *hook, const HookEntry *entry);
static void park(HookEntry *entry, bool for_good, int delay);
static bool is_about_entry(int status);
static const char *value(const Hook *hook, int i, WebhookColumn column);

static Hook *
hook_of(DbSession *session)
{
	return (Hook *) ((char *) session - offsetof(Hook, session));
}

static Feed *
make(void)
{
	Hook	   *hook = base_alloc(sizeof(Hook));

	hook->feed.sink = &hook->sink;
	return &hook->feed;
}

static bool
check(const RelayFeedConfig *config)
{
	const char *problem = NULL;
	WebhookKeys keys;

	if (*config->subscription == '\0')
		problem = "setting \"subscription\" is missing";
	else if (*config->secrets == '\0')
		problem = "setting \"secrets\" is missing";
	else if (!webhook_address_check(config->allow))
		problem = "setting \"allow\" is no list of addresses";
	if (problem != NULL)
		base_log(BASE_LOG_ERROR, "feed \"%s\": %s", config->feed, problem);
	return problem == NULL && webhook_keys_read(&keys, config->secrets);
}

static void
start(Feed *feed)
{
	Hook	   *hook = (Hook *) feed;
	char		host[256] = "";

	free(hook->consumer);
	gethostname(host, sizeof(host) - 1);
	hook->consumer = base_copy(*feed->config->name != '\0' ? feed->config->name : host);
	if (!webhook_keys_read(&hook->keys, feed->config->secrets))
	{
		feed_report(feed, BASE_LOG_ERROR, "stopped: it has no secrets");
		feed_stop(feed, FEED_STOPPED);
		return;
	}
	hook->session.application = FEEDPUB_PROGRAM;
	hook->session.opened = opened;
	hook->session.received = received;
	hook->session.closed = closed;
	hook->must_listen = true;
	hook->look_at = 0;
	hook->empty_polls = 0;
	hook->paused_until = 0;
	hook->pauses = 0;
	if (hook->session.state == DB_SESSION_CLOSED)
		db_session_open(&hook->session);
}

static void
stop(Feed *feed)
{
	Hook	   *hook = (Hook *) feed;

	drop_page(hook);
	db_session_close(&hook->session, NULL);
	hook->session.deadline = 0;
}

static void
news(Feed *feed, Oid relid, bool listen)
{
	Hook	   *hook = (Hook *) feed;

	if (relid != InvalidOid && hook->relid != InvalidOid && hook->relid != relid)
		return;
	hook->has_news = true;
	if (listen)
		hook->must_listen = true;
}

/* One round.  Returns when to be called again. */
static int64_t
run(Feed *feed, int64_t now)
{
	Hook	   *hook = (Hook *) feed;
	bool		is_free;
	int64_t		next = INT64_MAX;
	int64_t		at;

	webhook_request_work(now);
	is_free = hook->session.state == DB_SESSION_OPEN && hook->work == HOOK_IDLE;

	if (is_free && hook->message[0] != '\0')
		judge(hook);
	if (feed->state == FEED_STOPPED)
		return next;
	if (!feed->is_ending)
		send_entries(hook, now);
	if (hook->acknowledged == hook->count && hook->page != NULL)
		drop_page(hook);
	if (feed->is_ending && hook->sink.sent == hook->sink.acknowledged && !has_outcomes(hook) &&
		hook->work == HOOK_IDLE)
	{
		if (hook->session.state != DB_SESSION_OPEN || !hook->is_subscribed)
		{
			feed_stop(feed, FEED_ENDED);
			return next;
		}
		drop_page(hook);
		begin(hook, HOOK_LEAVES);
		db_session_send(&hook->session, hook->leave, 2,
						(const char *[]){feed->config->subscription, hook->consumer});
		db_session_sync(&hook->session);
		db_session_flush(&hook->session);
	}
	else if (is_free && now >= hook->retry_at && hook->work == HOOK_IDLE)
	{
		if (!hook->is_subscribed)
			subscribe(hook);
		else if (has_outcomes(hook))
			settle(hook);
		else if (hook->page == NULL && !feed->is_ending && (hook->has_news || now >= hook->look_at))
			poll(hook);
	}
	at = db_session_sweep(&hook->session, now);
	next = at < next ? at : next;
	at = webhook_request_due();
	next = at < next ? at : next;
	at = hook->retry_at > now ? hook->retry_at : hook->look_at;
	if (at > now && at < next)
		next = at;
	for (int i = hook->acknowledged; i < hook->count; i++)
	{
		at = hook->entries[i].retry_at > hook->paused_until ? hook->entries[i].retry_at : hook->paused_until;
		if (hook->entries[i].state == ENTRY_WAITS && at > now && at < next)
			next = at;
	}
	return next;
}

static void
opened(DbSession *session)
{
	Hook	   *hook = hook_of(session);
	char		text[64];

	begin(hook, HOOK_CHECKS);
	db_session_send(session,
					"SELECT pg_catalog.quote_ident(n.nspname), e.extversion"
					" FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n"
					" ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
					" WHERE e.extname OPERATOR(pg_catalog.=) 'feedpub'",
					0, NULL);
	snprintf(text, sizeof(text), "SET statement_timeout = '%ds'", db_settings->statement_timeout);
	db_session_send(session, text, 0, NULL);
	snprintf(text, sizeof(text), "SET lock_timeout = '%ds'", db_settings->lock_timeout);
	db_session_send(session, text, 0, NULL);
	db_session_sync(session);
	db_session_flush(session);
}

/* What was running has to be done again. */
static void
closed(DbSession *session)
{
	Hook	   *hook = hook_of(session);

	hook->work = HOOK_IDLE;
	hook->is_subscribed = false;
	hook->must_listen = true;
	hook->message[0] = '\0';
}

/* Something has come: a result, or NULL at the end of a statement's. */
static void
received(DbSession *session, PGresult *result)
{
	Hook	   *hook = hook_of(session);
	ExecStatusType status = PQresultStatus(result);

	if (result == NULL)
		return;
	if (status == PGRES_FATAL_ERROR && hook->message[0] == '\0')
	{
		const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
		const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

		snprintf(hook->sqlstate, sizeof(hook->sqlstate), "%s", state != NULL ? state : "");
		snprintf(hook->message, sizeof(hook->message), "%s", primary != NULL ? primary : PQresultErrorMessage(result));
	}
	else if (status == PGRES_TUPLES_OK && hook->work == HOOK_CHECKS)
		check_extension(hook, result);
	else if (status == PGRES_TUPLES_OK && hook->work == HOOK_SUBSCRIBES && PQnfields(result) == 4)
		take_feed(hook, result);
	else if (status == PGRES_TUPLES_OK && hook->work == HOOK_POLLS && PQnfields(result) > 1)
	{
		take_page(hook, result);
		return;
	}
	else if (status == PGRES_TUPLES_OK && hook->work == HOOK_SETTLES && strcmp(PQfname(result, 0), "feed_ack") == 0)
		hook->is_lost = strcmp(PQgetvalue(result, 0, 0), "f") == 0;
	else if (status == PGRES_PIPELINE_SYNC)
		done(hook);
	PQclear(result);
}

static void
begin(Hook *hook, HookWork work)
{
	hook->work = work;
	hook->message[0] = '\0';
	hook->session.deadline = base_now() + db_settings->statement_timeout * INT64_C(1000) + GRACE;
}

/* The work has ended, with an error if there is a message. */
static void
done(Hook *hook)
{
	HookWork	work = hook->work;

	hook->work = HOOK_IDLE;
	hook->session.deadline = 0;
	if (work == HOOK_LEAVES)
		feed_stop(&hook->feed, FEED_ENDED);
	else if (hook->message[0] != '\0')
		return;
	else if (work == HOOK_SUBSCRIBES && hook->poll != NULL)
	{
		hook->is_subscribed = true;
		if (!hook->is_paused)
			hook->feed.state = FEED_RUNNING;
		feed_report(&hook->feed, BASE_LOG_INFO, relay_config()->check ? "can be read" : "sends what subscription \"%s\" has",
					hook->feed.config->subscription);
		if (relay_config()->check)
			feed_stop(&hook->feed, FEED_ENDED);
	}
	else if (work == HOOK_SETTLES)
	{
		for (int i = 0; i < hook->count; i++)
			if (hook->entries[i].is_writing)
				hook->entries[i].is_written = true;
		hook->acknowledged = hook->settling;
		if (hook->is_lost)
		{
			feed_report(&hook->feed, BASE_LOG_WARNING, "another consumer has its entries, or the subscription was moved");
			drop_page(hook);
		}
	}
}

/*
 * Something has failed.  Some errors do not go away by themselves, and going on
 * elsewhere would skip entries; others may.
 */
static void
judge(Hook *hook)
{
	static const char *const lasting[] = {"PF001", "PF002", "42704", "42P01", "42710", "42809",
										  "22023", "22007", "22008", "0A000", "22P02", "53400"};
	Feed	   *feed = &hook->feed;
	bool		lasts = relay_config()->check;

	feed->failures++;
	hook->retry_at = base_now() + READ_RETRY;
	if (strcmp(hook->sqlstate, "PF003") == 0)
		drop_page(hook);
	for (size_t i = 0; i < lengthof(lasting); i++)
		if (strcmp(hook->sqlstate, lasting[i]) == 0)
			lasts = true;
	feed_report(feed, lasts ? BASE_LOG_ERROR : BASE_LOG_WARNING, "%s: %s%s%s%s",
				lasts ? "stopped" : "could not use its subscription", hook->message,
				*hook->sqlstate != '\0' ? " (" : "", hook->sqlstate, *hook->sqlstate != '\0' ? ")" : "");
	hook->message[0] = '\0';
	if (lasts)
		feed_stop(feed, FEED_STOPPED);
}

static void
check_extension(Hook *hook, const PGresult *result)
{
	const char *problem = NULL;

	if (PQntuples(result) == 0)
		problem = "the database has no extension feedpub";
	else if (strcmp(PQgetvalue(result, 0, 1), FEEDPUB_VERSION) != 0)
		problem = "the database's extension feedpub has another version than " FEEDPUB_PROGRAM ", which has " FEEDPUB_VERSION;
	if (problem != NULL)
	{
		hook->sqlstate[0] = '\0';
		snprintf(hook->message, sizeof(hook->message), "%s", problem);
		return;
	}
	free(hook->schema);
	hook->schema = base_copy(PQgetvalue(result, 0, 0));
}

/* Make the subscription, unless it is there, and know what feed it is of. */
static void
subscribe(Hook *hook)
{
	const RelayFeedConfig *config = hook->feed.config;
	DbSession  *session = &hook->session;
	char	   *types = feed_reader_types(config->types);
	const char *arguments[] = {config->subscription, config->feed, types,
							   *config->from != '\0' ? config->from : "earliest"};
	BaseText	statement = {0};

	/* the extension was not found */
	if (hook->schema == NULL)
	{
		db_session_close(session, NULL);
		return;
	}
	begin(hook, HOOK_SUBSCRIBES);
	if (relay_config()->check)
		base_text_print(&statement, "SELECT %s.feed_head($1::pg_catalog.regclass)", hook->schema);
	else
		base_text_print(&statement,
						"SELECT %s.feed_subscribe($1, $2::pg_catalog.regclass, $4,"
						" types => $3::pg_catalog.text[], if_not_exists => true)",
						hook->schema);
	db_session_send(session, statement.data, relay_config()->check ? 1 : 4,
					relay_config()->check ? arguments + 1 : arguments);
	statement.length = 0;
	base_text_print(&statement,
					"SELECT f.kind, pg_catalog.format('%%I.%%I', n.nspname, c.relname), c.oid,"
					" pg_catalog.format('SELECT %%s.feed_leave($1, $2)', $2)"
					" FROM feedpub.feeds f"
					" JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.feed"
					" JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
					" WHERE f.feed OPERATOR(pg_catalog.=) $1::pg_catalog.regclass");
	db_session_send(session, statement.data, 2, (const char *[]){config->feed, hook->schema});
	db_session_sync(session);
	db_session_flush(session);
	free(statement.data);
	free(types);
}

static void
take_feed(Hook *hook, const PGresult *result)
{
	BaseText	source = {0};

	if (PQntuples(result) == 0)
	{
		strcpy(hook->sqlstate, "42809");
		snprintf(hook->message, sizeof(hook->message), "the table is not a feed");
		return;
	}
	free(hook->poll);
	free(hook->name);
	free(hook->source);
	free(hook->leave);
	hook->poll = webhook_event_poll(PQgetvalue(result, 0, 0), hook->schema);
	hook->is_outbox = strcmp(PQgetvalue(result, 0, 0), "outbox") == 0;
	hook->name = base_copy(PQgetvalue(result, 0, 1));
	hook->relid = strtoul(PQgetvalue(result, 0, 2), NULL, 10);
	hook->leave = base_copy(PQgetvalue(result, 0, 3));
	webhook_event_source(&source, hook->name);
	hook->source = source.data;
}

static void
poll(Hook *hook)
{
	const RelayFeedConfig *config = hook->feed.config;
	DbSession  *session = &hook->session;
	int			most = config->requests * ENTRIES;
	char		rows[16];
	const char *arguments[] = {config->subscription, rows, hook->consumer};

	begin(hook, HOOK_POLLS);
	snprintf(rows, sizeof(rows), "%d", config->page < most ? config->page : most);
	hook->has_news = false;
	if (hook->must_listen && !db_session_is_standby(session))
	{
		BaseText	statement = {0};

		base_text_print(&statement, "SELECT %s.feed_listen($1::pg_catalog.regclass)", hook->schema);
		db_session_send(session, statement.data, 1, (const char *const *) &config->feed);
		db_session_sync(session);
		free(statement.data);
	}
	hook->must_listen = false;
	db_session_send(session, hook->poll, 3, arguments);
	db_session_sync(session);
	db_session_flush(session);
}

static void
take_page(Hook *hook, PGresult *page)
{
	Feed	   *feed = &hook->feed;

	hook->count = PQntuples(page);
	hook->acknowledged = 0;
	hook->is_lost = false;
	feed->is_at_end = hook->count == 0 && !hook->has_news;
	hook->empty_polls = hook->count == 0 ? hook->empty_polls + 1 : 0;
	if (hook->count == 0)
	{
		PQclear(page);
		hook->look_at = base_now() + (hook->empty_polls < EMPTY_POLLS ? 0 : LOOK_AGAIN);
		if (relay_config()->once && feed->is_at_end && hook->empty_polls >= EMPTY_POLLS)
			feed->is_ending = true;
		return;
	}
	hook->look_at = 0;
	hook->page = page;
	hook->entries = base_alloc(hook->count * sizeof(HookEntry));
	for (int i = 0; i < hook->count; i++)
	{
		HookEntry  *entry = &hook->entries[i];

		entry->hook = hook;
		if (value(hook, i, WEBHOOK_ERROR) == NULL)
			continue;
		snprintf(entry->reason, sizeof(entry->reason), "%s", value(hook, i, WEBHOOK_ERROR));
		park(entry, true, 0);
	}
}

/* Forget the page: what is in flight may come again. */
static void
drop_page(Hook *hook)
{
	for (int i = 0; i < hook->count; i++)
		if (hook->entries[i].state == ENTRY_SENT)
		{
			webhook_request_cancel(hook->entries[i].request);
			hook->sink.sent--;
		}
	free(hook->entries);
	hook->entries = NULL;
	PQclear(hook->page);
	hook->page = NULL;
	hook->count = 0;
	hook->acknowledged = 0;
}

/* A value of an entry, or NULL. */
static const char *
value(const Hook *hook, int i, WebhookColumn column)
{
	return PQgetisnull(hook->page, i, column) ? NULL : PQgetvalue(hook->page, i, column);
}

/* Is there something to be acknowledged, or to be parked? */
static bool
has_outcomes(const Hook *hook)
{
	if (hook->acknowledged < hook->count && hook->entries[hook->acknowledged].state >= ENTRY_ACCEPTED)
		return true;
	for (int i = 0; i < hook->count; i++)
		if (hook->entries[i].state == ENTRY_PARKED && !hook->entries[i].is_written)
			return true;
	return false;
}

/* Write what has come of entries, in one transaction. */
static void
settle(Hook *hook)
{
	const char *name = hook->feed.config->subscription;
	DbSession  *session = &hook->session;
	BaseText	statement = {0};

	begin(hook, HOOK_SETTLES);
	for (int i = 0; i < hook->count; i++)
	{
		HookEntry  *entry = &hook->entries[i];
		char		delay[32];
		const char *arguments[] = {name, value(hook, i, WEBHOOK_RECEIPT), entry->reason,
								   entry->delay > 0 ? delay : NULL};

		entry->is_writing = entry->state == ENTRY_PARKED && !entry->is_written;
		if (!entry->is_writing)
			continue;
		snprintf(delay, sizeof(delay), "%d s", entry->delay);
		statement.length = 0;
		base_text_print(&statement, entry->is_for_good ? "SELECT %s.feed_park($1, $2, $3)" : "SELECT %s.feed_nack($1, $2, $3, $4::pg_catalog.interval)",
						hook->schema);
		db_session_send(session, statement.data, entry->is_for_good ? 3 : 4, arguments);
	}
	hook->settling = hook->acknowledged;
	while (hook->settling < hook->count && hook->entries[hook->settling].state >= ENTRY_ACCEPTED)
		hook->settling++;
	if (hook->settling > hook->acknowledged)
	{
		statement.length = 0;
		base_text_print(&statement, "SELECT %s.feed_ack($1, $2, strict => false)", hook->schema);
		db_session_send(session, statement.data, 2,
						(const char *[]){name, value(hook, hook->settling - 1, WEBHOOK_RECEIPT)});
	}
	db_session_sync(session);
	db_session_flush(session);
	free(statement.data);
}

/* Send the entries whose turn it is. */
static void
send_entries(Hook *hook, int64_t now)
{
	if (now < hook->paused_until)
		return;
	for (int i = hook->acknowledged; i < hook->count; i++)
	{
		HookEntry  *entry = &hook->entries[i];

		if (hook->sink.sent - hook->sink.acknowledged >= (uint64_t) hook->feed.config->requests)
			return;
		if (entry->state == ENTRY_WAITS && now >= entry->retry_at && is_turn(hook, i) && !send_entry(entry))
			return;
	}
}

/* Has all that an entry must come after been accepted, or parked? */
static bool
is_turn(const Hook *hook, int i)
{
	bool		is_alone = strncmp(value(hook, i, WEBHOOK_OP), "truncate", 8) == 0;

	for (int j = hook->acknowledged; j < i; j++)
	{
		if (hook->entries[j].state >= ENTRY_ACCEPTED)
			continue;
		if (is_alone || strncmp(value(hook, j, WEBHOOK_OP), "truncate", 8) == 0)
			return false;
		for (WebhookColumn a = WEBHOOK_ORDER; a <= WEBHOOK_ORDER_TOO; a++)
			for (WebhookColumn b = WEBHOOK_ORDER; b <= WEBHOOK_ORDER_TOO; b++)
				if (value(hook, i, a) != NULL && value(hook, j, b) != NULL &&
					strcmp(value(hook, i, a), value(hook, j, b)) == 0)
					return false;
	}
	return true;
}

static bool
send_entry(HookEntry *entry)
{
	static const struct
	{
		const char *name;
		WebhookColumn column;
	} headers[] = {
		{"ce-id", WEBHOOK_CURSOR},
		{"ce-subject", WEBHOOK_KEY},
		{"ce-time", WEBHOOK_TIME},
		{"ce-messageid", WEBHOOK_ID},
		{"ce-publication", WEBHOOK_PUBLICATION},
		{"ce-traceparent", WEBHOOK_TRACEPARENT},
		{"ce-tracestate", WEBHOOK_TRACESTATE},
		{"feedpub-relation", WEBHOOK_RELATION},
		{"feedpub-old-key", WEBHOOK_OLD_KEY},
	};
	Hook	   *hook = entry->hook;
	int			i = entry - hook->entries;
	const char *op = value(hook, i, WEBHOOK_OP);
	const char *relation = value(hook, i, WEBHOOK_RELATION);
	const char *id = value(hook, i, WEBHOOK_ID);
	const char *data = value(hook, i, WEBHOOK_DATA);
	WebhookRequest *request = webhook_request_begin(hook->feed.config);
	BaseText	text = {0};
	char		number[32];
	int64_t		now = time(NULL);

	if (data == NULL || (hook->is_outbox && strcmp(data, "null") == 0))
		data = "";
	for (size_t h = 0; h < lengthof(headers); h++)
	{
		const char *attribute = value(hook, i, headers[h].column);

		/* no publication is no attribute */
		if (attribute == NULL || (headers[h].column == WEBHOOK_PUBLICATION && *attribute == '\0'))
			continue;
		text.length = 0;
		webhook_event_encode(&text, attribute, '\0');
		webhook_request_header(request, headers[h].name, text.data);
	}
	text.length = 0;
	if (value(hook, i, WEBHOOK_TYPE) != NULL)
		webhook_event_encode(&text, value(hook, i, WEBHOOK_TYPE), '\0');
	else
	{
		webhook_event_encode(&text, relation != NULL ? relation : hook->name, '\0');
		base_text_print(&text, ".%s", op);
	}
	webhook_request_header(request, "ce-type", text.data);
	webhook_request_header(request, "ce-specversion", "1.0");
	webhook_request_header(request, "ce-source", hook->source);
	if (strcmp(op, "delete") == 0 || strncmp(op, "truncate", 8) == 0)
		webhook_request_header(request, "ce-method", "DELETE");
	if (!hook->is_outbox)
		webhook_request_header(request, "feedpub-op", op);
	if (value(hook, i, WEBHOOK_MOMENT) != NULL && *value(hook, i, WEBHOOK_MOMENT) == 't')
		webhook_request_header(request, "feedpub-moment", "true");
	webhook_request_header(request, "Content-Type", *data != '\0' ? "application/json" : "");

	/* a dot ends the id in what is signed */
	text.length = 0;
	webhook_event_encode(&text, id != NULL ? id : value(hook, i, WEBHOOK_CURSOR), '.');
	id = base_copy(text.data);
	webhook_request_header(request, "webhook-id", id);
	snprintf(number, sizeof(number), "%" PRId64, now);
	webhook_request_header(request, "webhook-timestamp", number);
	text.length = 0;
	webhook_sign(&text, &hook->keys, id, now, data, strlen(data));
	webhook_request_header(request, "webhook-signature", text.data);
	free((char *) id);
	free(text.data);

	if (!webhook_request_send(request, data, strlen(data), answered, entry))
		return false;
	if (entry->failures == 0)
		entry->accepted = hook->accepted;
	entry->request = request;
	entry->state = ENTRY_SENT;
	hook->sink.sent++;
	return true;
}

/* Does a status say that this request is wrong, and not the receiver? */
static bool
is_about_entry(int status)
{
	return status == 400 || status == 409 || status == 411 || status == 413 || status == 415 ||
		status == 422;
}

/* Is it the first that is neither accepted nor parked? */
static bool
is_first(const Hook *hook, const HookEntry *entry)
{
	for (const HookEntry *e = hook->entries; e < entry; e++)
		if (e->state < ENTRY_ACCEPTED)
			return false;
	return true;
}

static void
answered(void *arg, const WebhookAnswer *answer)
{
	HookEntry  *entry = arg;
	Hook	   *hook = entry->hook;
	Feed	   *feed = &hook->feed;
	int			most = feed->config->attempts;
	bool		may_be_parked = strncmp(value(hook, entry - hook->entries, WEBHOOK_OP), "truncate", 8) != 0;
	int64_t		now = base_now();
	int64_t		delay;

	entry->request = NULL;
	if (answer->status >= 200 && answer->status < 300)
	{
		entry->state = ENTRY_ACCEPTED;
		hook->accepted++;
		hook->sink.acknowledged++;
		feed->sent++;
		hook->pauses = 0;
		hook->is_paused = false;
		if (feed->state == FEED_RETRYING)
			feed->state = FEED_RUNNING;
		return;
	}
	hook->sink.sent--;
	entry->state = ENTRY_WAITS;
	feed->failures++;
	if (answer->status != 0)
		snprintf(entry->reason, sizeof(entry->reason), "the receiver answered with status %d", answer->status);
	else
		snprintf(entry->reason, sizeof(entry->reason), "%s", answer->problem);
	feed_report(feed, BASE_LOG_WARNING, "could not deliver: %s", entry->reason);
	delay = FIRST_DELAY << (entry->failures < 8 ? entry->failures : 8);
	entry->failures++;
	if (delay > MAX_DELAY)
		delay = MAX_DELAY;
	if (answer->retry_after > 0)
		delay = answer->retry_after * INT64_C(1000);
	entry->retry_at = now + delay;
	if (answer->status == 410 && may_be_parked)
	{
		park(entry, true, 0);
		return;
	}
	if (is_about_entry(answer->status) || hook->accepted != entry->accepted ||
		(hook->pauses >= PATIENCE && is_first(hook, entry)))
	{
		entry->counted++;
		if (most > 0 && entry->counted >= most && may_be_parked)
		{
			park(entry, false, answer->retry_after);
			return;
		}
		if (is_about_entry(answer->status) || hook->accepted != entry->accepted)
			return;
	}

	/* several that were in flight are one failure */
	if (now < hook->paused_until)
		return;
	delay = FIRST_DELAY << (hook->pauses < 8 ? hook->pauses++ : 8);
	if (delay > MAX_DELAY)
		delay = MAX_DELAY;
	if (answer->retry_after > 0)
		delay = answer->retry_after * INT64_C(1000);
	hook->paused_until = now + delay;
	hook->is_paused = true;
	if (feed->state == FEED_RUNNING)
		feed->state = FEED_RETRYING;
}

/* An entry is not sent any more; its reason is set. */
static void
park(HookEntry *entry, bool for_good, int delay)
{
	entry->state = ENTRY_PARKED;
	entry->is_for_good = for_good;
	entry->delay = delay;
	base_log(BASE_LOG_WARNING, "feed \"%s\": parks the entry with cursor %s%s: %s", entry->hook->feed.name,
			 value(entry->hook, entry - entry->hook->entries, WEBHOOK_CURSOR),
			 for_good ? " for good" : "", entry->reason);
}

const FeedRunner webhook_runner = {
	.schemes = "http https ",
	.check = check,
	.make = make,
	.start = start,
	.stop = stop,
	.work = run,
	.news = news};
