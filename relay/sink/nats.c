/*-------------------------------------------------------------------------
 *
 * nats.c
 *	  NATS JetStream: a stream for each feed, which has each entry once.
 *
 * Each message has the cursor of its entry in a header, and is published with
 * Nats-Expected-Last-Sequence: the server stores it if and only if the stream's
 * last message has that sequence.  The stream had N messages when it was opened,
 * and the cursor of the Nth says which entry comes next.  So that entry is
 * published with N, the one after it with N + 1, and so on, without waiting for
 * acknowledgements.
 *
 * Why each entry is in the stream once, in order.  A relay that publishes with the
 * expected sequence K publishes the entry that follows that of message K: it has
 * read the cursor of message N, and from there on counts as the server does.  If
 * a message is not stored, nothing that is published after it with a larger
 * number can be, until somebody stores that very entry.  That somebody can be
 * another relay, or this one, whose earlier connection has left messages on the
 * way: it does no harm, because it is the same entry with the same number.  For
 * that two relays of a stream must have the same order of entries before them,
 * so the same feed and types.  A relay of another feed gets PF001 for the cursor
 * of the last message.  Messages have a mark of the types, and a relay stops if
 * the last one is another relay's, with other types.  One that is the same relay,
 * by its name, may have other types than before.
 *
 * Entries of a table feed change, and those of an outbox can be deleted.  Then
 * another connection finds others, and a message that was left on the way can be
 * stored after them, if it has the number that is next.  Its cursor is an older
 * one, and so nothing is lost: what follows that cursor is to be sent once more.
 * The next entry finds it out, since its number is taken.  If there is none, the
 * stream's state does, for which a relay that has sent everything asks: its last
 * sequence is larger than what was sent.
 *
 * Whatever goes wrong has one way out: the connection is given up, and another
 * one reads what the stream's last message is.  An acknowledgement that has not
 * come in time, or comes out of order, is such a thing as well.
 *
 * A relay's messages have its name, and a number that it has drawn when it was
 * started.  If the last message is another one's, this is told to the runner,
 * which decides who goes on; it is a matter of time alone, since the sequence
 * keeps two relays apart.
 *
 * Threads.  libnats calls back in threads of its own, and some of its functions
 * wait for the server, so those are called in threads as well (nats_connect.c).
 * They touch nothing but a link (link.c), which wakes the loop by an eventfd.
 * Everything else belongs to the loop.
 *
 * Publishing writes into the socket, which can wait if the server does not read.
 * What is in flight is bounded, and mostly fits into the buffers of the sockets.  A server that has
 * stopped can stop the loop for WRITE_DEADLINE once, for then the connection is
 * given up.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/nats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ms */
#define ACKNOWLEDGE_TIMEOUT 10000
#define CHECK_INTERVAL 1000
#define STATE_INTERVAL 5000

/* bytes in flight, and of headers that every message has */
#define MAX_BYTES (4 * 1024 * 1024)
#define HEADER_BYTES 512

/* bytes of a subject: the server's line with it has 4096 at most */
#define MAX_SUBJECT 2048

typedef struct NatsSink
{
	Sink		sink;			/* the first member */
	BaseSource	source;
	BaseTimer	timer;
	SinkLink   *link;			/* or NULL */
	bool		is_open;		/* opened() has been called */
	bool		has_failed;		/* failed() is to be called, or has been */
	bool		has_sent;
	char		taken[96];		/* see SinkLink */
	uint64_t	taken_at;
	char	   *stream;
	char		relay[96];
	int64_t		created;
	uint64_t	base;
	uint64_t	bytes;			/* in flight */
	uint32_t   *sizes;			/* of the messages in flight, a ring */
	int			nsizes;
	int64_t		progress_at;	/* ms: the last acknowledgement */
	int64_t		asked_at;		/* ms: for the stream's state */
	char		to_note[80];	/* a cursor, or "" */
	bool		is_noting;		/* "noted" is not acknowledged yet */
	char		noted[80];		/* the cursor in the stream for cursors */
	uint64_t	noted_at;		/* and its sequence */
} NatsSink;

static void ready(BaseSource *source, uint32_t events);
static void due(BaseTimer *timer);
static void note(NatsSink *nats);

static Sink *
make(void)
{
	NatsSink   *nats = base_alloc(sizeof(NatsSink));
	int			fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		abort();
	nats->sink.kind = &sink_nats;
	nats->source.ready = ready;
	nats->timer.due = due;
	base_loop_watch(&nats->source, fd, EPOLLIN);
	return &nats->sink;
}

/*
 * Can the server and libnats have a text with none of these characters?  The
 * server has names of streams in file names, in subjects and in formats of its
 * own, and libnats has no quotes for its JSON.
 */
static bool
lacks(const char *text, const char *forbidden)
{
	for (const char *c = text; *c != '\0'; c++)
		if ((unsigned char) *c <= ' ' || *c == 0x7f || strchr(forbidden, *c) != NULL)
			return false;
	return true;
}

static bool
is_stream(const char *name)
{
	for (const char *c = name; *c != '\0'; c++)
		if ((unsigned char) *c > 0x7f)
			return false;
	return lacks(name, ".*>/\\%\"");
}

static bool
check(const RelayFeedConfig *config)
{
	BaseText	all = {0};
	bool		good = sink_subject_check(config);

	if (!is_stream(config->stream) || !is_stream(config->cursors) || *config->cursors == '\0')
	{
		base_log(BASE_LOG_ERROR, "feed \"%s\": setting \"%s\" must be the name of a stream: printable ASCII "
								 "without spaces and . * > / \\ %% \"",
				 config->feed, is_stream(config->stream) ? "cursors" : "stream");
		good = false;
	}
	if (!lacks(config->stream_subjects, "\\\""))
	{
		base_log(BASE_LOG_ERROR, "feed \"%s\": setting \"stream-subjects\" must have subjects, separated by "
								 "commas, without spaces and \\ \"",
				 config->feed);
		good = false;
	}
	if (good && *config->stream_subjects == '\0' && !sink_subject_all(&all, config->subject, config))
	{
		base_log(BASE_LOG_ERROR, "feed \"%s\": the subjects of \"%s\" have nothing in common: "
								 "set \"stream-subjects\"",
				 config->feed, config->subject);
		good = false;
	}
	if (strcmp(config->stream_storage, "file") != 0 && strcmp(config->stream_storage, "memory") != 0)
	{
		base_log(BASE_LOG_ERROR, "feed \"%s\": setting \"stream-storage\" must be file or memory",
				 config->feed);
		good = false;
	}
	if (*config->user != '\0' && *config->password == '\0')
	{
		base_log(BASE_LOG_ERROR, "feed \"%s\": setting \"user\" needs \"password\"", config->feed);
		good = false;
	}
	free(all.data);
	return good;
}

/*
 * The name of the stream: the feed's, encoded.  It is not percent-encoded, since
 * the server has names of streams in formats of its own, and delivers nothing of
 * a stream with a "%".
 */
static char *
stream_name(const RelayFeedConfig *config)
{
	if (*config->stream != '\0')
		return base_copy(config->stream);
	return sink_link_feed(config->feed, '=');
}

/* Nobody has the link any more. */
static void
release(SinkLink *link)
{
	free(NATS_LINK(link)->stream);
	free(NATS_LINK(link)->cursor_subject);
}

/* A mark of the types that are sent, for a header; "" if all are. */
static void
mark_types(char *mark, size_t size, const char *types)
{
	uint64_t	hash = UINT64_C(0xcbf29ce484222325);	/* FNV-1a */

	for (const char *c = types; *c != '\0'; c++)
		hash = (hash ^ (unsigned char) *c) * UINT64_C(0x100000001b3);
	if (*types != '\0')
		snprintf(mark, size, "%016" PRIx64, hash);
	else
		*mark = '\0';
}

/* Connect: sink_nats_connect() does it, and ready() is told. */
static void
open_sink(Sink *sink, SinkOpen how)
{
	NatsSink   *nats = (NatsSink *) sink;
	SinkLink   *link = base_alloc(sizeof(NatsLink));
	BaseText	subject = {0};

	if (nats->relay[0] == '\0' || how == SINK_FIRST)
		sink_link_name(nats->relay, sizeof(nats->relay), sink->config);
	if (how == SINK_FIRST)
	{
		nats->has_sent = false;
		nats->taken[0] = '\0';
		nats->created = 0;
		nats->noted[0] = '\0';
	}
	free(nats->stream);
	nats->stream = stream_name(sink->config);
	sink->sent = 0;
	sink->acknowledged = 0;
	nats->bytes = 0;
	nats->is_open = false;
	nats->has_failed = false;
	nats->to_note[0] = '\0';
	nats->is_noting = false;
	free(nats->sizes);
	nats->nsizes = sink->config->in_flight;
	nats->sizes = base_alloc(nats->nsizes * sizeof(uint32_t));

	sink_link_start(link, nats->source.fd, sink->config);
	link->release = release;
	NATS_LINK(link)->stream = base_copy(nats->stream);
	base_text_print(&subject, "feedpub.relay.%s", nats->stream);
	NATS_LINK(link)->cursor_subject = subject.data;
	strcpy(link->relay, nats->relay);
	mark_types(NATS_LINK(link)->types, sizeof(NATS_LINK(link)->types), sink->config->types);
	link->only_look = how == SINK_LOOK;
	link->has_sent = nats->has_sent;
	strcpy(NATS_LINK(link)->taken, nats->taken);
	NATS_LINK(link)->taken_at = nats->taken_at;
	NATS_LINK(link)->known_created = nats->created;
	NATS_LINK(link)->is_connecting = true;
	nats->link = link;
	if (!sink_link_run(link, sink_nats_connect))
	{
		NATS_LINK(link)->is_connecting = false;
		sink_link_fail(link, SINK_RETRY, "could not start a thread");
	}
	base_timer_set(&nats->timer, base_now() + CHECK_INTERVAL);
}

static void
close_sink(Sink *sink)
{
	NatsSink   *nats = (NatsSink *) sink;
	SinkLink   *link = nats->link;
	bool		is_connecting;

	base_timer_stop(&nats->timer);
	nats->link = NULL;
	nats->is_open = false;
	if (link == NULL)
		return;
	pthread_mutex_lock(&link->lock);
	is_connecting = NATS_LINK(link)->is_connecting;
	link->is_left = true;
	pthread_mutex_unlock(&link->lock);
	if (!is_connecting && !sink_link_run(link, sink_nats_close))
	{
		sink_link_retain(link);
		sink_nats_close(link);
	}
	sink_link_release(link);
}

/* Tell the owner, once, that this connection has failed. */
static void
give_up(NatsSink *nats, SinkFailure failure, const char *message)
{
	if (nats->has_failed)
		return;
	nats->has_failed = true;
	nats->sink.owner->failed(&nats->sink, failure, message);
}

/* A thread has something to tell. */
static void
ready(BaseSource *source, uint32_t events)
{
	NatsSink   *nats = (NatsSink *) ((char *) source - offsetof(NatsSink, source));
	Sink	   *sink = &nats->sink;
	SinkLink   *link = nats->link;
	SinkLinkNews news;
	bool		is_noted;
	uint64_t	last;

	if (!sink_link_look(link, source->fd, &news))
		return;
	is_noted = NATS_LINK(link)->is_noted;
	NATS_LINK(link)->is_noted = false;
	last = NATS_LINK(link)->last;
	pthread_mutex_unlock(&link->lock);

	if (news.state == SINK_LINK_OPENED)
	{
		SinkEnd		end = {link->cursor, link->base, link->is_other ? link->sender : NULL};

		nats->is_open = true;
		nats->base = link->base;
		nats->created = NATS_LINK(link)->created;
		nats->progress_at = base_now();
		sink->owner->opened(sink, &end);
		return;
	}
	if (is_noted)
		nats->is_noting = false;
	if (news.acknowledged > sink->acknowledged || is_noted)
	{
		while (sink->acknowledged < news.acknowledged)
			nats->bytes -= nats->sizes[sink->acknowledged++ % nats->nsizes];
		nats->progress_at = base_now();
		sink->owner->acknowledged(sink);
	}
	/* the owner may have closed it */
	if (nats->link != link)
		return;
	if (news.state == SINK_LINK_FAILED)
		give_up(nats, news.failure, news.message);
	else if (last > nats->base + sink->sent)
		give_up(nats, SINK_RETRY_NOW, "the stream has a message that was not sent now");
}

/* Ask for the stream's state, which answered() gets. */
static void
ask_for_state(NatsSink *nats)
{
	NatsLink   *link = NATS_LINK(nats->link);
	BaseText	subject = {0};
	char		reply[160];

	base_text_print(&subject, "$JS.API.STREAM.INFO.%s", nats->stream);
	snprintf(reply, sizeof(reply), "%s" SINK_NATS_STATE, link->inbox);
	natsConnection_PublishRequest(link->connection, subject.data, reply, NULL, 0);
	free(subject.data);
	nats->asked_at = base_now();
}

static void
due(BaseTimer *timer)
{
	NatsSink   *nats = (NatsSink *) ((char *) timer - offsetof(NatsSink, timer));
	int64_t		now = base_now();

	if (nats->link == NULL)
		return;
	base_timer_set(timer, now + CHECK_INTERVAL);
	if (nats->sink.sent > nats->sink.acknowledged && now - nats->progress_at > ACKNOWLEDGE_TIMEOUT)
		give_up(nats, SINK_RETRY, "messages are not acknowledged");
	else if (nats->to_note[0] != '\0')
		note(nats);
	if (nats->is_open && !nats->has_failed && nats->sink.sent == nats->sink.acknowledged &&
		now - nats->asked_at > STATE_INTERVAL)
		ask_for_state(nats);
}

/*
 * An attribute as a header: what HTTP's binding of CloudEvents encodes, for
 * headers are ASCII.
 */
static void
set_header(natsMsg *message, const char *name, const char *value, BaseText *buffer)
{
	const char *c = value;

	if (value == NULL)
		return;
	while (*c > ' ' && *c < 0x7f && *c != '"' && *c != '%')
		c++;
	if (*c != '\0')
	{
		buffer->length = 0;
		for (c = value; *c != '\0'; c++)
		{
			if (*c > ' ' && *c < 0x7f && *c != '"' && *c != '%')
				base_text_add(buffer, c, 1);
			else
				base_text_print(buffer, "%%%02X", (unsigned char) *c);
		}
		value = buffer->data;
	}
	natsMsgHeader_Set(message, name, value);
}

/* Publish an entry, with the sequence that the stream has before it. */
static SinkSent
send_entry(Sink *sink, const SinkEntry *entry)
{
	static BaseText subject;
	static BaseText buffer;
	NatsSink   *nats = (NatsSink *) sink;
	const RelayFeedConfig *config = sink->config;
	const char *template = config->subject;
	natsMsg    *message = NULL;
	natsStatus	status;
	char		reply[160];
	char		number[32];
	size_t		size = entry->length + HEADER_BYTES;
	const char *data = entry->data;
	size_t		length = entry->length;
	const char *error = entry->error;

	if (!nats->is_open || nats->has_failed)
		return SINK_BROKEN;
	if (sink->sent - sink->acknowledged >= (uint64_t) nats->nsizes ||
		(nats->bytes > 0 && nats->bytes + size > MAX_BYTES))
		return SINK_FULL;

	subject.length = 0;
	sink_subject_print(&subject, template, config, entry);
	if (error == NULL && subject.length > MAX_SUBJECT)
		error = "its subject is too long";
	else if (error == NULL && (int64_t) (length + HEADER_BYTES + subject.length) > NATS_LINK(nats->link)->max_bytes)
		error = "it is larger than the stream, or the server, takes";
	if (error != NULL && *config->errors_to == '\0')
	{
		snprintf(sink->refusal, sizeof(sink->refusal), "%s", error);
		return SINK_REFUSED;
	}
	if (error != NULL)
	{
		subject.length = 0;
		sink_subject_print(&subject, config->errors_to, config, entry);
		data = NULL;
		length = 0;
	}

	snprintf(reply, sizeof(reply), "%s%" PRIu64, NATS_LINK(nats->link)->inbox, sink->sent + 1);
	snprintf(number, sizeof(number), "%" PRIu64, nats->base + sink->sent);
	status = natsMsg_Create(&message, subject.data, reply, data, length);
	if (status != NATS_OK)
		abort();
	natsMsgHeader_Set(message, "Nats-Expected-Last-Sequence", number);
	natsMsgHeader_Set(message, "Nats-Expected-Stream", nats->stream);
	natsMsgHeader_Set(message, SINK_NATS_RELAY, nats->relay);
	if (NATS_LINK(nats->link)->types[0] != '\0')
		natsMsgHeader_Set(message, SINK_NATS_TYPES, NATS_LINK(nats->link)->types);
	natsMsgHeader_Set(message, "ce-specversion", "1.0");
	natsMsgHeader_Set(message, SINK_NATS_CURSOR, entry->cursor);
	set_header(message, "ce-source", entry->source, &buffer);
	set_header(message, "ce-type", entry->type, &buffer);
	set_header(message, "ce-subject", entry->key, &buffer);
	set_header(message, "ce-time", entry->time, &buffer);
	set_header(message, "ce-method", entry->method, &buffer);
	set_header(message, "ce-messageid", entry->id, &buffer);
	set_header(message, "ce-publication", entry->publication, &buffer);
	set_header(message, "ce-traceparent", entry->traceparent, &buffer);
	set_header(message, "ce-tracestate", entry->tracestate, &buffer);
	set_header(message, "ce-error", error, &buffer);
	if (entry->relation != NULL || entry->id == NULL)
		set_header(message, "Feedpub-Op", entry->op, &buffer);
	set_header(message, "Feedpub-Relation", entry->relation, &buffer);
	set_header(message, "Feedpub-Old-Key", entry->old_key, &buffer);
	if (entry->moment)
		natsMsgHeader_Set(message, "Feedpub-Moment", "true");
	if (data != NULL)
		natsMsgHeader_Set(message, "Content-Type", "application/json");
	status = natsConnection_PublishMsg(NATS_LINK(nats->link)->connection, message);
	natsMsg_Destroy(message);
	if (status != NATS_OK)
	{
		sink_link_fail(nats->link, SINK_RETRY, "%s", natsStatus_GetText(status));
		return SINK_BROKEN;
	}
	if (sink->sent == 0 && nats->link->sender != NULL)
	{
		snprintf(nats->taken, sizeof(nats->taken), "%s", nats->link->sender);
		nats->taken_at = nats->base;
	}
	nats->has_sent = true;
	if (sink->sent == sink->acknowledged)
		nats->progress_at = base_now();
	nats->sizes[sink->sent++ % nats->nsizes] = size;
	nats->bytes += size;
	nats->to_note[0] = '\0';
	return SINK_SENT;
}

/* Publish the cursor that is to be noted. */
static void
note(NatsSink *nats)
{
	char		text[160];
	char		reply[160];

	if (nats->is_noting || !nats->is_open || nats->has_failed)
		return;
	snprintf(reply, sizeof(reply), "%s0", NATS_LINK(nats->link)->inbox);
	snprintf(text, sizeof(text), "%" PRIu64 " %" PRId64 " %s", nats->base + nats->sink.sent,
			 nats->created, nats->to_note);
	if (natsConnection_PublishRequestString(NATS_LINK(nats->link)->connection, NATS_LINK(nats->link)->cursor_subject,
											reply, text) != NATS_OK)
		return;
	nats->is_noting = true;
	snprintf(nats->noted, sizeof(nats->noted), "%s", nats->to_note);
	nats->noted_at = nats->base + nats->sink.sent;
	nats->to_note[0] = '\0';
}

/* Note how far the feed was read; at once, if it ends here. */
static bool
is_noted(Sink *sink, const char *cursor, bool ends)
{
	NatsSink   *nats = (NatsSink *) sink;

	if (nats->noted_at == nats->base + sink->sent && strcmp(nats->noted, cursor) == 0)
		return !nats->is_noting;
	snprintf(nats->to_note, sizeof(nats->to_note), "%s", cursor);
	if (ends)
		note(nats);
	return false;
}

const SinkKind sink_nats = {
	.schemes = "nats tls ",
	.check = check,
	.make = make,
	.open = open_sink,
	.send = send_entry,
	.is_idle = is_noted,
	.close = close_sink};
