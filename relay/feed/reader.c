/*-------------------------------------------------------------------------
 *
 * reader.c
 *	  Reads a feed, on a connection of its own: pages of records, one of them
 *	  ahead of the one that is sent.
 *
 * After the last page there is nothing to read until there is news, which the
 * listener hears.  No news is missed: LISTEN was committed, then feed_listen()
 * is called, and then the page is read; what is published after that is heard.
 * News that comes while a page is being read may be of what the page has not, so
 * it is counted, and the feed is read again.
 *
 * Two pages of at most 1 MB each, or of one larger row, are all that is held.
 *
 *-------------------------------------------------------------------------
 */
#include "feed/feed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ms that the server may take to end a statement at --statement-timeout */
#define GRACE 5000

#define PAGE "page"				/* prepared statements */
#define LAG "lag"

static void opened(DbSession *session);
static void received(DbSession *session, PGresult *result);
static void closed(DbSession *session);
static void check_extension(FeedReader *reader, const PGresult *result);
static void fail(FeedReader *reader, const char *sqlstate, const char *message);
static void ask(FeedReader *reader);
static void count(FeedReader *reader, int64_t now);
static void take_page(FeedReader *reader, PGresult *result);
static void drop_page(FeedReader *reader);
static void parse(FeedReader *reader, FeedPage *page);

/* Connect; nothing is read before feed_reader_begin(). */
void
feed_reader_start(FeedReader *reader, const RelayFeedConfig *config)
{
	reader->config = config;
	free(reader->types);
	reader->types = feed_reader_types(config->types);
	reader->session.application = FEEDPUB_PROGRAM;
	reader->session.opened = opened;
	reader->session.received = received;
	reader->session.closed = closed;
	reader->must_listen = true;
	reader->has_failed = false;
	reader->retry_at = 0;
	reader->latest[0] = '\0';
	if (reader->session.state == DB_SESSION_CLOSED)
		db_session_open(&reader->session);
}

void
feed_reader_stop(FeedReader *reader)
{
	reader->is_wanted = false;
	db_session_close(&reader->session, NULL);
	reader->session.deadline = 0;
	while (reader->pages[0].result != NULL)
		drop_page(reader);
}

/*
 * Go on after a cursor, whatever was read.  The position is known then, unless
 * the cursor is a word for one: then the first page says what it means.  If the
 * sink has failed before it had anything, "latest" still means the same, or what
 * was published since then would be skipped.
 */
void
feed_reader_begin(FeedReader *reader, const char *cursor, bool is_word)
{
	if (is_word && strcmp(cursor, "latest") == 0 && reader->latest[0] != '\0')
	{
		cursor = reader->latest;
		is_word = false;
	}
	while (reader->pages[0].result != NULL)
		drop_page(reader);
	reader->is_stale = reader->session.state == DB_SESSION_OPEN &&
		(reader->state == FEED_READER_LISTENS || reader->state == FEED_READER_READS ||
		 reader->state == FEED_READER_COUNTS);
	reader->left = -1;
	reader->has_counted = false;
	reader->count_at = 0;
	snprintf(reader->after, sizeof(reader->after), "%s", cursor);
	snprintf(reader->position, sizeof(reader->position), "%s", is_word ? "" : cursor);
	reader->is_read = false;
	reader->is_wanted = true;
	reader->has_failed = false;
	reader->retry_at = 0;
}

/* The text of an array of types, which are separated by commas; NULL for all. */
char *
feed_reader_types(const char *types)
{
	BaseText	array = {0};

	if (*types == '\0')
		return NULL;
	if (*types == '{')
		return base_copy(types);
	base_text_add(&array, "{\"", 2);
	for (; *types != '\0'; types++)
	{
		if (*types == ',')
			base_text_add(&array, "\",\"", 3);
		else
		{
			if (*types == '"' || *types == '\\')
				base_text_add(&array, "\\", 1);
			base_text_add(&array, types, 1);
		}
	}
	base_text_add(&array, "\"}", 2);
	return array.data;
}

/* The next entry, or NULL if there is none yet. */
const SinkEntry *
feed_reader_entry(FeedReader *reader)
{
	FeedPage   *page = &reader->pages[0];

	while (!reader->has_entry && page->result != NULL)
	{
		if (page->next < page->end)
			parse(reader, page);
		else
		{
			strcpy(reader->position, page->cursor);
			drop_page(reader);
		}
	}
	return reader->has_entry ? &reader->entry : NULL;
}

/* Has all that is published been taken?  Then there is no next entry. */
bool
feed_reader_at_end(const FeedReader *reader)
{
	return reader->is_read && reader->pages[0].result == NULL;
}

/* That entry was sent. */
void
feed_reader_take(FeedReader *reader)
{
	snprintf(reader->position, sizeof(reader->position), "%s", reader->entry.cursor);
	reader->has_entry = false;
}

/* There may be something to read. */
void
feed_reader_wake(FeedReader *reader, bool listen)
{
	reader->news++;
	reader->is_read = false;
	if (listen)
		reader->must_listen = true;
}

/*
 * Ask for a page if one is wanted, or how much is left.  Returns when to be
 * called again.
 */
int64_t
feed_reader_sweep(FeedReader *reader, int64_t now)
{
	bool		counts = reader->is_wanted && relay_config()->progress > 0 &&
		reader->position[0] != '\0' && !feed_reader_at_end(reader);
	int64_t		next;

	if (counts && reader->count_at <= now && reader->session.state == DB_SESSION_OPEN &&
		reader->state == FEED_READER_IDLE && !reader->has_failed)
		count(reader, now);
	if (reader->is_wanted && reader->session.state == DB_SESSION_OPEN &&
		reader->state == FEED_READER_IDLE && !reader->is_read && !reader->has_failed &&
		reader->pages[1].result == NULL)
	{
		if (reader->retry_at <= now)
			ask(reader);
	}
	next = db_session_sweep(&reader->session, now);
	if (reader->retry_at > now && reader->retry_at < next)
		next = reader->retry_at;
	if (counts && reader->count_at > now && reader->count_at < next)
		next = reader->count_at;
	return next;
}

static void
opened(DbSession *session)
{
	FeedReader *reader = (FeedReader *) session;

	reader->state = FEED_READER_CHECKS;
	session->deadline = base_now() + db_settings->statement_timeout * INT64_C(1000) + GRACE;
	db_session_begin(session);
	db_session_prepare(session, PAGE,
					   "SELECT feedpub._page_records($1::pg_catalog.regclass, $2,"
					   " $3::pg_catalog.int4, NULL, NULL, $4::pg_catalog.text[])",
					   4);
	db_session_prepare(session, LAG, "SELECT rows FROM feedpub._lag($1::pg_catalog.regclass, $2, NULL)", 2);
	db_session_sync(session);
	db_session_flush(session);
}

static void
closed(DbSession *session)
{
	FeedReader *reader = (FeedReader *) session;

	reader->is_stale = false;
	reader->must_listen = true;
}

static void
fail(FeedReader *reader, const char *sqlstate, const char *message)
{
	if (reader->is_stale || reader->has_failed)
		return;
	reader->has_failed = true;
	snprintf(reader->sqlstate, sizeof(reader->sqlstate), "%s", sqlstate != NULL ? sqlstate : "");
	snprintf(reader->message, sizeof(reader->message), "%s", message);
}

static void
check_extension(FeedReader *reader, const PGresult *result)
{
	const char *problem = db_session_extension(result, &reader->schema);
	char		message[192];

	if (problem == NULL)
		return;
	snprintf(message, sizeof(message), "the database cannot be used: %s", problem);
	fail(reader, NULL, message);
}

/* Something has come: a result, or NULL at the end of a statement's. */
static void
received(DbSession *session, PGresult *result)
{
	FeedReader *reader = (FeedReader *) session;
	ExecStatusType status = PQresultStatus(result);

	if (result == NULL)
	{
		if (reader->state == FEED_READER_LISTENS)
			reader->state = FEED_READER_READS;
		return;
	}
	if (status == PGRES_FATAL_ERROR)
	{
		const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

		fail(reader, PQresultErrorField(result, PG_DIAG_SQLSTATE),
			 primary != NULL ? primary : PQresultErrorMessage(result));
	}
	else if (status == PGRES_TUPLES_OK && reader->state == FEED_READER_CHECKS)
		check_extension(reader, result);
	else if (status == PGRES_TUPLES_OK && reader->state == FEED_READER_READS && !reader->is_stale)
	{
		take_page(reader, result);
		return;
	}
	else if (status == PGRES_TUPLES_OK && reader->state == FEED_READER_COUNTS && !reader->is_stale)
	{
		reader->left = PQgetisnull(result, 0, 0) ? -1 : strtoll(PQgetvalue(result, 0, 0), NULL, 10);
		reader->has_counted = true;
	}
	else if (status == PGRES_PIPELINE_SYNC)
	{
		bool		has_failed = reader->has_failed && reader->state == FEED_READER_CHECKS;

		reader->state = FEED_READER_IDLE;
		reader->is_stale = false;
		session->deadline = 0;
		if (has_failed)
			db_session_close(session, NULL);
	}
	PQclear(result);
}

/* Ask for the next page. */
static void
ask(FeedReader *reader)
{
	DbSession  *session = &reader->session;
	const char *feed = reader->config->feed;
	char		rows[16];
	const char *arguments[4] = {feed, reader->after, rows, reader->types};

	snprintf(rows, sizeof(rows), "%d", reader->config->page);
	reader->state = FEED_READER_READS;
	reader->retry_at = 0;
	reader->asked_news = reader->news;
	session->deadline = base_now() + db_settings->statement_timeout * INT64_C(1000) + GRACE;
	if (reader->must_listen && !db_session_is_standby(session))
	{
		BaseText	statement = {0};

		base_text_print(&statement, "SELECT %s.feed_listen($1::pg_catalog.regclass)", reader->schema);
		db_session_send(session, statement.data, 1, &feed);
		free(statement.data);
		reader->state = FEED_READER_LISTENS;
	}
	reader->must_listen = false;
	db_session_run(session, PAGE, lengthof(arguments), arguments);
	db_session_sync(session);
	db_session_flush(session);
}

/*
 * Ask how much is left: an estimate, from two look-ups in an index.  It is asked
 * for though no page is wanted, since the sink may be what takes time.
 */
static void
count(FeedReader *reader, int64_t now)
{
	DbSession  *session = &reader->session;
	const char *arguments[2] = {reader->config->feed, reader->position};

	reader->count_at = now + relay_config()->progress * INT64_C(1000);
	reader->state = FEED_READER_COUNTS;
	session->deadline = now + db_settings->statement_timeout * INT64_C(1000) + GRACE;
	db_session_run(session, LAG, lengthof(arguments), arguments);
	db_session_sync(session);
	db_session_flush(session);
}

/* A page has come: its records, and a last line about it. */
static void
take_page(FeedReader *reader, PGresult *result)
{
	FeedPage   *page = &reader->pages[reader->pages[0].result != NULL ? 1 : 0];
	char	   *text = PQgetvalue(result, 0, 0);
	char	   *last = strrchr(text, '\n');
	char		more[8];

	last = last != NULL ? last + 1 : text;
	page->result = result;
	page->next = text;
	page->end = last;
	if (sscanf(last, "%79s %7s %u", page->cursor, more, &reader->feed) != 3)
		abort();
	if (strcmp(reader->after, "latest") == 0)
		strcpy(reader->latest, page->cursor);
	strcpy(reader->after, page->cursor);
	if (strcmp(more, "end") != 0)
		return;
	reader->is_read = reader->asked_news == reader->news;
	if (db_session_is_standby(&reader->session))
		db_listener_renew();
}

static void
drop_page(FeedReader *reader)
{
	PQclear(reader->pages[0].result);
	reader->pages[0] = reader->pages[1];
	reader->pages[1].result = NULL;
	reader->has_entry = false;
}

/*
 * Take a record apart, where it is: attributes as name=value, each with a tab
 * after it, and another tab before the data, if there is some (http/event.c).
 * The result belongs to this page, so writing into it is safe.
 */
static void
parse(FeedReader *reader, FeedPage *page)
{
	SinkEntry  *entry = &reader->entry;
	char	   *c = page->next;
	char	   *end = memchr(c, '\n', page->end - c);

	memset(entry, 0, sizeof(*entry));
	*end = '\0';
	page->next = end + 1;
	while (c < end && *c != '\t')
	{
		char	   *name = c;
		char	   *value = strchr(name, '=') + 1;

		value[-1] = '\0';
		c = strchr(value, '\t');
		*c++ = '\0';
		switch (name[0])
		{
			case 'e':
				entry->error = value;
				break;
			case 'i':
				entry->cursor = value;
				break;
			case 'm':
				if (strcmp(name, "messageid") == 0)
					entry->id = value;
				else if (strcmp(name, "method") == 0)
					entry->method = value;
				else
					entry->moment = true;
				break;
			case 'o':
				if (name[1] == 'p')
					entry->op = value;
				else
					entry->old_key = value;
				break;
			case 'p':
				entry->publication = value;
				break;
			case 'r':
				entry->relation = value;
				break;
			case 's':
				if (name[1] == 'o')
					entry->source = value;
				else
					entry->key = value;
				break;
			case 't':
				if (strcmp(name, "type") == 0)
					entry->type = value;
				else if (strcmp(name, "time") == 0)
					entry->time = value;
				else if (strcmp(name, "traceparent") == 0)
					entry->traceparent = value;
				else
					entry->tracestate = value;
				break;
		}
	}
	if (c < end)
	{
		entry->data = c + 1;
		entry->length = end - entry->data;
	}
	reader->has_entry = true;
}
