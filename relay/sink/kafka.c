/*-------------------------------------------------------------------------
 *
 * kafka.c
 *	  Kafka: transactions, which have each entry once.
 *
 * Entries go into transactions of one producer.  Each transaction also commits an
 * offset, for a group that has no members and the same name as the
 * transactional.id; its metadata is the cursor of the transaction's last entry,
 * and the relay's name, and the offset counts entries.  So a reader with
 * isolation.level=read_committed finds the entries of a transaction if and only
 * if its cursor is committed.
 *
 * Why each entry is in a committed transaction once, in order.  Before a relay
 * sends anything it calls init_transactions().  Kafka then gives its producer a
 * new epoch: it aborts the transaction of the older one, or completes it if it
 * was being committed, and takes nothing of the older one from then on.  Only
 * after that the relay reads the committed cursor.  If a commit is being written
 * it waits for the end of it (require_stable).  So nobody but this producer can
 * change what it has read, until another one takes the transactional.id.  It
 * sends the entries that follow that cursor, and commits them with the cursor of
 * the last; then those that follow, and so on.  So committed transactions are
 * links of one chain: each begins at the cursor at which the one before it ends,
 * and has all entries up to its own.
 *
 * Whatever goes wrong has one way out: the producer is given up, and another one
 * takes the transactional.id and reads the cursor.  It does not matter whether a
 * commit without an answer was done: the cursor tells.
 *
 * The order of a key: all its entries go into one partition, and the producer,
 * which is idempotent, writes into each partition in the order in which it was
 * called.
 *
 * A relay that waits, because another one sends, only reads the cursor, since
 * init_transactions() would end the other one's transaction.  So the first read
 * is another one than that above: entries are sent after the first, and the
 * second must have found the same, or the sink is opened again.  As soon as a
 * relay has taken the transactional.id it commits the cursor with its own name:
 * so the one that it has replaced knows why it was, and waits.  That commit comes
 * before any record, too; records without a committed cursor are not a relay's.
 *
 * An offset of a group without members expires, after seven days if the brokers
 * are not told otherwise, so it is committed again each hour.
 *
 * If a broker refuses a batch of records, all of them count as refused.  Then
 * entries are sent one to a transaction, two, four, and so on.  One that is
 * refused alone is never taken.
 *
 * Threads.  What waits for brokers is done by a thread (kafka_client.c), which
 * touches nothing of the loop's but a link.  While it commits, nothing is sent.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/kafka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ms */
#define NOTE_INTERVAL 1000
#define KEEP_INTERVAL (60 * 60 * 1000)

/* bytes of a transaction, and of headers that every message has */
#define MAX_BYTES (4 * 1024 * 1024)
#define HEADER_BYTES 512

#define MAX_TOPIC 249			/* bytes */

typedef enum KafkaPhase
{
	KAFKA_CLOSED,				/* or it is opening, or has failed */
	KAFKA_OPEN,					/* nothing is sent yet */
	KAFKA_WAITS,				/* for its thread */
	KAFKA_SENDS					/* a transaction has begun */
} KafkaPhase;

typedef struct KafkaSink
{
	Sink		sink;			/* the first member */
	BaseSource	source;
	BaseTimer	timer;
	KafkaLink  *link;			/* or NULL */
	KafkaPhase	phase;
	bool		has_failed;		/* failed() has been called */
	bool		has_sent;
	char		relay[96];
	uint64_t	count;			/* entries of the transaction */
	uint64_t	limit;			/* how many it may have */
	size_t		bytes;
	char		last[80];		/* the cursor of its last entry */
	char		to_note[80];	/* a cursor, or "" */
	char		kept[80];		/* the cursor that this link has committed, or "" */
	int64_t		kept_at;		/* ms */
	char		refused[80];	/* the cursor of an entry that is never taken, ... */
	char		reason[128];	/* ... and why */
	bool		is_hopeless;	/* --errors-to does not help */
} KafkaSink;

static void ready(BaseSource *source, uint32_t events);
static void due(BaseTimer *timer);

static Sink *
make(void)
{
	KafkaSink  *kafka = base_alloc(sizeof(KafkaSink));
	int			fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		abort();
	kafka->sink.kind = &sink_kafka;
	kafka->source.ready = ready;
	kafka->timer.due = due;
	base_loop_watch(&kafka->source, fd, EPOLLIN);
	return &kafka->sink;
}

static bool
check(const RelayFeedConfig *config)
{
	const char *const texts[] = {config->credentials, config->user, config->password, config->token,
								 config->nkey, config->tls_ca, config->tls_certificate};
	char		problem[512];
	rd_kafka_conf_t *conf = sink_kafka_configure(config, problem, sizeof(problem));

	if (conf == NULL)
		base_log(BASE_LOG_ERROR, "feed \"%s\": setting \"kafka\": %s", config->feed, problem);
	else
		rd_kafka_conf_destroy(conf);
	for (size_t i = 0; i < lengthof(texts); i++)
		if (*texts[i] != '\0')
		{
			base_log(BASE_LOG_ERROR, "feed \"%s\": for Kafka, users, secrets and certificates are set in the "
									 "file of setting \"kafka\"",
					 config->feed);
			return false;
		}
	return conf != NULL && sink_topic_check(config);
}

/* Ask the thread for something. */
static void
ask(KafkaSink *kafka, KafkaOrder order)
{
	KafkaLink  *link = kafka->link;

	pthread_mutex_lock(&link->link.lock);
	link->order = order;
	link->has_begun = false;
	link->count = kafka->count;
	snprintf(link->to_commit, sizeof(link->to_commit), "%s", kafka->last);
	pthread_cond_signal(&link->changed);
	pthread_mutex_unlock(&link->link.lock);
	kafka->phase = KAFKA_WAITS;
}

static void
release(SinkLink *link)
{
	pthread_cond_destroy(&KAFKA_LINK(link)->changed);
	free(KAFKA_LINK(link)->id);
	free(KAFKA_LINK(link)->topic);
}

static void
open_sink(Sink *sink, SinkOpen how)
{
	KafkaSink  *kafka = (KafkaSink *) sink;
	KafkaLink  *link = base_alloc(sizeof(KafkaLink));
	const RelayFeedConfig *config = sink->config;
	BaseText	topic = {0};

	if (kafka->relay[0] == '\0' || how == SINK_FIRST)
		sink_link_name(kafka->relay, sizeof(kafka->relay), config);
	if (how == SINK_FIRST)
	{
		kafka->has_sent = false;
		kafka->limit = config->in_flight;
		kafka->refused[0] = '\0';
		kafka->is_hopeless = false;
	}
	sink->sent = 0;
	sink->acknowledged = 0;
	kafka->count = 0;
	kafka->bytes = 0;
	kafka->to_note[0] = '\0';
	kafka->kept[0] = '\0';
	kafka->has_failed = false;
	kafka->phase = KAFKA_CLOSED;

	sink_link_start(&link->link, kafka->source.fd, config);
	link->link.release = release;
	strcpy(link->link.relay, kafka->relay);
	link->link.only_look = how == SINK_LOOK;
	link->link.has_sent = kafka->has_sent;
	link->has_kept = kafka->has_sent;
	pthread_cond_init(&link->changed, NULL);
	if (*config->transactional_id != '\0')
		link->id = base_copy(config->transactional_id);
	else
	{
		char	   *feed = sink_link_feed(config->feed, '=');
		BaseText	id = {0};

		base_text_print(&id, "feedpub.%s", feed);
		link->id = id.data;
		free(feed);
	}
	link->has_topic = sink_topic_is_one(config->topic);
	if (link->has_topic)
		sink_topic_print(&topic, config->topic, config, NULL);
	link->topic = link->has_topic ? topic.data : base_copy(config->cursors);
	kafka->link = link;
	if (!sink_link_run(&link->link, sink_kafka_run))
		sink_link_fail(&link->link, SINK_RETRY, "could not start a thread");
	base_timer_set(&kafka->timer, base_now() + NOTE_INTERVAL);
}

static void
close_sink(Sink *sink)
{
	KafkaSink  *kafka = (KafkaSink *) sink;
	KafkaLink  *link = kafka->link;

	base_timer_stop(&kafka->timer);
	kafka->link = NULL;
	kafka->phase = KAFKA_CLOSED;
	if (link == NULL)
		return;
	pthread_mutex_lock(&link->link.lock);
	link->link.is_left = true;
	pthread_cond_signal(&link->changed);
	pthread_mutex_unlock(&link->link.lock);
	sink_link_release(&link->link);
}

/* The thread has failed: tell the owner, once. */
static void
fail(KafkaSink *kafka, SinkFailure failure, const char *message, bool is_refused)
{
	if (kafka->has_failed)
		return;
	kafka->has_failed = true;
	kafka->phase = KAFKA_CLOSED;
	if (is_refused && kafka->count == 1)
	{
		kafka->is_hopeless = strcmp(kafka->refused, kafka->last) == 0;
		strcpy(kafka->refused, kafka->last);
		snprintf(kafka->reason, sizeof(kafka->reason), "%.127s", message);
	}
	else if (is_refused)
		kafka->limit = 1;
	kafka->sink.owner->failed(&kafka->sink, failure, message);
}

/* The thread has something to tell. */
static void
ready(BaseSource *source, uint32_t events)
{
	KafkaSink  *kafka = (KafkaSink *) ((char *) source - offsetof(KafkaSink, source));
	Sink	   *sink = &kafka->sink;
	KafkaLink  *link = kafka->link;
	SinkLinkNews news;
	bool		has_begun;
	bool		is_refused;

	if (!sink_link_look((SinkLink *) link, source->fd, &news))
		return;
	has_begun = link->has_begun;
	is_refused = link->is_refused;
	pthread_mutex_unlock(&link->link.lock);

	if (news.state == SINK_LINK_OPENED)
	{
		SinkEnd		end = {link->link.cursor, link->link.base, link->link.is_other ? link->link.sender : NULL};

		kafka->phase = KAFKA_OPEN;
		sink->owner->opened(sink, &end);
		return;
	}
	if (news.acknowledged > sink->acknowledged || (has_begun && kafka->phase == KAFKA_WAITS))
	{
		/* of take_over(), or of a commit, which may have been one of a cursor only */
		if (news.acknowledged == sink->sent && kafka->last[0] != '\0')
		{
			strcpy(kafka->kept, kafka->last);
			kafka->kept_at = base_now();
		}
		if (news.acknowledged > sink->acknowledged && kafka->limit < (uint64_t) sink->config->in_flight)
			kafka->limit = kafka->limit * 2;
		kafka->has_sent = true;
		kafka->count = 0;
		kafka->bytes = 0;
		sink->acknowledged = news.acknowledged;
		if (has_begun)
			kafka->phase = KAFKA_SENDS;
		sink->owner->acknowledged(sink);
	}
	/* the owner may have closed it */
	if (news.state == SINK_LINK_FAILED && kafka->link == link)
		fail(kafka, news.failure, news.message, is_refused);
}

/* Commit the cursor that is to be noted. */
static void
note(KafkaSink *kafka)
{
	if (kafka->to_note[0] == '\0')
		return;
	if (kafka->phase == KAFKA_OPEN)
	{
		kafka->last[0] = '\0';
		ask(kafka, KAFKA_BEGIN);
	}
	else if (kafka->phase == KAFKA_SENDS && kafka->count == 0)
	{
		strcpy(kafka->last, kafka->to_note);
		kafka->to_note[0] = '\0';
		ask(kafka, KAFKA_COMMIT);
	}
}

static void
due(BaseTimer *timer)
{
	KafkaSink  *kafka = (KafkaSink *) ((char *) timer - offsetof(KafkaSink, timer));

	base_timer_set(timer, base_now() + NOTE_INTERVAL);
	note(kafka);
}

/* Text without the percent-encoding that attributes have. */
static const char *
decode(BaseText *out, const char *text)
{
	out->length = 0;
	base_text_room(out, strlen(text) + 1);
	for (const char *c = text; *c != '\0'; c++)
	{
		int			high = *c == '%' ? base_hex(c[1]) : -1;
		int			low = high >= 0 ? base_hex(c[2]) : -1;
		char		byte = low >= 0 ? high * 16 + low : *c;

		/* %00 is the empty text */
		if (byte != '\0')
			base_text_add(out, &byte, 1);
		if (low >= 0)
			c += 2;
	}
	return out->data;
}

static void
add_header(rd_kafka_headers_t *headers, const char *name, const char *value)
{
	if (value != NULL)
		rd_kafka_header_add(headers, name, -1, value, -1);
}

/* Give an entry to the producer; with an error, without data. */
static rd_kafka_resp_err_t
produce(KafkaSink *kafka, const SinkEntry *entry, const char *topic, const char *error)
{
	static BaseText key;
	rd_kafka_headers_t *headers = rd_kafka_headers_new(20);
	const char *data = error == NULL ? entry->data : NULL;
	rd_kafka_resp_err_t result;

	add_header(headers, "ce_specversion", "1.0");
	add_header(headers, "ce_id", entry->cursor);
	add_header(headers, "ce_source", entry->source);
	add_header(headers, "ce_type", entry->type);
	add_header(headers, "ce_subject", entry->key);
	add_header(headers, "ce_time", entry->time);
	add_header(headers, "ce_method", entry->method);
	add_header(headers, "ce_messageid", entry->id);
	add_header(headers, "ce_publication", entry->publication);
	add_header(headers, "ce_traceparent", entry->traceparent);
	add_header(headers, "ce_tracestate", entry->tracestate);
	add_header(headers, "ce_error", error);
	if (data != NULL)
		add_header(headers, "content-type", "application/json");
	if (entry->relation != NULL || entry->id == NULL)
		add_header(headers, "Feedpub-Op", entry->op);
	add_header(headers, "Feedpub-Relation", entry->relation);
	add_header(headers, "Feedpub-Old-Key", entry->old_key);
	if (entry->moment)
		add_header(headers, "Feedpub-Moment", "true");
	add_header(headers, "Feedpub-Relay", kafka->relay);
	if (entry->key != NULL)
		decode(&key, entry->key);
	result = rd_kafka_producev(kafka->link->producer, RD_KAFKA_V_TOPIC(topic),
							   RD_KAFKA_V_VALUE((void *) data, (data != NULL ? entry->length : 0)),
							   RD_KAFKA_V_KEY((entry->key != NULL ? key.data : NULL), (entry->key != NULL ? key.length : 0)),
							   RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
	if (result != RD_KAFKA_RESP_ERR_NO_ERROR)
		rd_kafka_headers_destroy(headers);
	return result;
}

/* Commit what was sent, if there is something. */
static void
flush(Sink *sink)
{
	KafkaSink  *kafka = (KafkaSink *) sink;

	if (kafka->phase == KAFKA_SENDS && kafka->count > 0)
		ask(kafka, KAFKA_COMMIT);
}

static SinkSent
send_entry(Sink *sink, const SinkEntry *entry)
{
	static BaseText topic;
	KafkaSink  *kafka = (KafkaSink *) sink;
	const RelayFeedConfig *config = sink->config;
	const char *error = entry->error;
	size_t		size = entry->length + HEADER_BYTES;
	rd_kafka_resp_err_t result;

	if (kafka->phase == KAFKA_OPEN)
	{
		kafka->last[0] = '\0';
		ask(kafka, KAFKA_BEGIN);
	}
	if (kafka->phase != KAFKA_SENDS)
		return kafka->phase == KAFKA_CLOSED ? SINK_BROKEN : SINK_FULL;
	if (kafka->count > 0 && (kafka->count >= kafka->limit || kafka->bytes + size > MAX_BYTES))
	{
		flush(sink);
		return SINK_FULL;
	}
	topic.length = 0;
	sink_topic_print(&topic, config->topic, config, entry);
	if (error == NULL && topic.length > MAX_TOPIC)
		error = "the name of its topic is too long";
	else if (strcmp(kafka->refused, entry->cursor) == 0)
		error = kafka->reason;
	for (;;)
	{
		if (error != NULL && (*config->errors_to == '\0' || (kafka->is_hopeless && error == kafka->reason)))
		{
			snprintf(sink->refusal, sizeof(sink->refusal), "%s", error);
			/* what is before it is taken first */
			flush(sink);
			return SINK_REFUSED;
		}
		if (error != NULL)
		{
			topic.length = 0;
			sink_topic_print(&topic, config->errors_to, config, entry);
		}
		result = produce(kafka, entry, topic.data, error);
		if (result != RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE || error != NULL)
			break;
		error = "it is larger than message.max.bytes of librdkafka";
	}
	if (result == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
	{
		snprintf(sink->refusal, sizeof(sink->refusal), "%s, also without its data", error);
		flush(sink);
		return SINK_REFUSED;
	}
	if (result != RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		/* if the transaction has failed, its commit says why */
		if (kafka->count > 0)
			flush(sink);
		else
			sink_link_fail(&kafka->link->link, SINK_RETRY, "topic \"%s\": %s", topic.data, rd_kafka_err2str(result));
		return kafka->count > 0 ? SINK_FULL : SINK_BROKEN;
	}
	strcpy(kafka->last, entry->cursor);
	kafka->to_note[0] = '\0';
	kafka->count++;
	kafka->bytes += size;
	sink->sent++;
	return SINK_SENT;
}

/* Keep how far the feed was read, once at least, and then each hour. */
static bool
is_kept(Sink *sink, const char *cursor, bool ends)
{
	KafkaSink  *kafka = (KafkaSink *) sink;
	bool		is_so = strcmp(kafka->kept, cursor) == 0;

	if (is_so && base_now() - kafka->kept_at < KEEP_INTERVAL)
		return true;
	snprintf(kafka->to_note, sizeof(kafka->to_note), "%s", cursor);
	if (ends)
		note(kafka);
	return is_so;
}

const SinkKind sink_kafka = {
	.schemes = "kafka ",
	.check = check,
	.make = make,
	.open = open_sink,
	.send = send_entry,
	.flush = flush,
	.is_idle = is_kept,
	.close = close_sink};
