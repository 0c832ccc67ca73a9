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
 * A page has WEBHOOK_PAGE_BYTES, or one larger entry: its statement returns no more
 * of what feed_poll() has found, and the rest comes again.  So that it is not read
 * for nothing each time, the next page is asked for as many rows as this one had,
 * and then for twice as many.
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
#include "webhook/hook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ms */
#define READ_RETRY 1000
#define LOOK_AGAIN 1000			/* a parked entry can be due, or a lease free */
#define GRACE 5000				/* the server may take to end a statement */

/* entries of a page, for each request that may be in flight */
#define ENTRIES 16

/* polls that find nothing before --once ends: one may only have passed entries */
#define EMPTY_POLLS 2

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
		base_log(BASE_LOG_ERROR, "feed \"%s\": %s", config->section, problem);
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
	hook->rows = 0;
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

/* Take other secrets; if they are wrong, those before them stay. */
static void
reload(Feed *feed)
{
	WebhookKeys keys;

	if (webhook_keys_read(&keys, feed->config->secrets))
		((Hook *) feed)->keys = keys;
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
	if (!feed->is_ending)
		webhook_entries_send(hook, now);
	if (feed->state == FEED_STOPPED)
		return next;
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

	begin(hook, HOOK_CHECKS);
	db_session_begin(session);
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
	else if (status == PGRES_TUPLES_OK && hook->work == HOOK_POLLS && PQnfields(result) > 1 &&
			 hook->message[0] == '\0')
	{
		take_page(hook, result);
		return;
	}
	else if (status == PGRES_TUPLES_OK && hook->work == HOOK_SETTLES && strcmp(PQfname(result, 0), "feed_ack") == 0)
		hook->is_lost = strcmp(PQgetvalue(result, 0, 0), "f") == 0;
	/* not the one of feed_listen(), before the poll's */
	else if (status == PGRES_PIPELINE_SYNC && session->syncs == 0)
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
		if (hook->pauses == 0)
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
	const char *problem = db_session_extension(result, &hook->schema);

	if (problem == NULL)
		return;
	hook->sqlstate[0] = '\0';
	snprintf(hook->message, sizeof(hook->message), "the database cannot be used: %s", problem);
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
	int			most = config->requests * ENTRIES < config->page ? config->requests * ENTRIES : config->page;
	char		rows[16];
	const char *arguments[] = {config->subscription, rows, hook->consumer};

	begin(hook, HOOK_POLLS);
	if (hook->rows == 0 || hook->rows > most)
		hook->rows = most;
	snprintf(rows, sizeof(rows), "%d", hook->rows);
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
	size_t		bytes = 0;

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
		hook->entries[i].hook = hook;
		bytes += PQgetlength(page, i, WEBHOOK_DATA);
	}
	hook->rows = bytes < WEBHOOK_PAGE_BYTES ? 2 * hook->rows : hook->count;
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
		const char *arguments[] = {name, webhook_entry_value(hook, i, WEBHOOK_RECEIPT), entry->reason,
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
						(const char *[]){name, webhook_entry_value(hook, hook->settling - 1, WEBHOOK_RECEIPT)});
	}
	db_session_sync(session);
	db_session_flush(session);
	free(statement.data);
}

const FeedRunner webhook_runner = {
	.schemes = "http https ",
	.check = check,
	.make = make,
	.start = start,
	.stop = stop,
	.reload = reload,
	.work = run,
	.news = news};
