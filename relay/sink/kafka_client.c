/*-------------------------------------------------------------------------
 *
 * kafka_client.c
 *	  The thread of a producer of Kafka, and its settings.
 *
 * The functions of librdkafka on transactions wait for brokers.  They run here,
 * when the loop asks for them, and what comes of them is told.  kafka.c argues
 * why this order of them makes each entry committed once.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/kafka.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ms */
#define READ_TIMEOUT 10000
#define TRANSACTION_TIMEOUT 30000
#define ABORT_TIMEOUT 5000
#define UNSTABLE_INTERVAL 50

/* instead of a cursor: nothing has been sent yet */
#define NO_CURSOR "-"

/* What a file may not say: it would break what the relay promises. */
static const char *const refused[] = {
	"bootstrap.servers", "metadata.broker.list", "transactional.id", "enable.idempotence",
	"isolation.level", "group.id", "acks", "request.required.acks", "queuing.strategy",
	"delivery.report.only.error", "enable.gapless.guarantee", "allow.auto.create.topics"};

/* A problem of a setting, without its value, which may be a secret. */
static bool
set(rd_kafka_conf_t *conf, const char *name, const char *value, char *problem, size_t size)
{
	char		unused[512];

	if (rd_kafka_conf_set(conf, name, value, unused, sizeof(unused)) == RD_KAFKA_CONF_OK)
		return true;
	snprintf(problem, size, "librdkafka does not take \"%s\", or its value", name);
	return false;
}

/* Take the file that has settings of librdkafka, name=value on each line. */
static bool
read_file(rd_kafka_conf_t *conf, const char *name, char *problem, size_t size)
{
	FILE	   *file = fopen(name, "r");
	char	   *line = NULL;
	size_t		room = 0;
	bool		good = file != NULL;

	if (file == NULL)
		snprintf(problem, size, "could not open file \"%s\": %s", name, strerror(errno));
	for (int n = 1; good && getline(&line, &room, file) >= 0; n++)
	{
		char	   *begin = line + strspn(line, " \t");
		char	   *value = strchr(begin, '=');
		size_t		length = strcspn(begin, " \t=");

		begin[strcspn(begin, "\r\n")] = '\0';
		if (*begin == '\0' || *begin == '#')
			continue;
		if (value == NULL)
		{
			snprintf(problem, size, "line %d of \"%s\" is not name=value", n, name);
			good = false;
			break;
		}
		value += 1 + strspn(value + 1, " \t");
		begin[length] = '\0';
		for (size_t i = 0; i < lengthof(refused); i++)
			if (strcmp(begin, refused[i]) == 0)
				good = false;
		/* the latter does so with keys that are empty */
		if (strcmp(begin, "partitioner") == 0 &&
			(strcmp(value, "random") == 0 || strcmp(value, "consistent_random") == 0))
			good = false;
		if (!good)
			snprintf(problem, size, "\"%s\" may not have \"%s\", on which the relay depends", name, begin);
		else
			good = set(conf, begin, value, problem, size);
	}
	/* what was read may be a secret */
	if (line != NULL)
		explicit_bzero(line, room);
	free(line);
	if (file != NULL)
		fclose(file);
	return good;
}

/* The settings of a producer, or NULL: see "problem". */
rd_kafka_conf_t *
sink_kafka_configure(const RelayFeedConfig *config, char *problem, size_t size)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	BaseText	brokers = {0};
	bool		good;

	for (const char *c = config->to; *c != '\0';)
	{
		size_t		length;

		c += strncmp(c, "kafka://", 8) == 0 ? 8 : 0;
		length = strcspn(c, ",/");
		base_text_print(&brokers, "%s%.*s", brokers.length > 0 ? "," : "", (int) length, c);
		c += strcspn(c, ",");
		c += *c == ',';
	}
	/* as clients in Java distribute keys, so that topics of both can be joined */
	good = set(conf, "partitioner", "murmur2_random", problem, size) &&
		set(conf, "client.id", FEEDPUB_PROGRAM, problem, size) &&
		set(conf, "transaction.timeout.ms", "30000", problem, size) &&
		(*config->kafka == '\0' || read_file(conf, config->kafka, problem, size)) &&
		set(conf, "bootstrap.servers", brokers.data, problem, size) &&
		set(conf, "enable.idempotence", "true", problem, size) &&
		set(conf, "delivery.report.only.error", "true", problem, size);
	free(brokers.data);
	if (good)
		return conf;
	rd_kafka_conf_destroy(conf);
	return NULL;
}

static void
log_nothing(const rd_kafka_t *producer, int level, const char *facility, const char *text)
{
}

static void
take_problem(rd_kafka_t *producer, int error, const char *reason, void *opaque)
{
	KafkaLink  *kafka = opaque;

	snprintf(kafka->problem, sizeof(kafka->problem), "%s", reason);
}

/* Will the brokers never take a message of which they say this? */
static bool
is_refusal(rd_kafka_resp_err_t error)
{
	switch (error)
	{
		case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
		case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
		case RD_KAFKA_RESP_ERR_INVALID_MSG:
		case RD_KAFKA_RESP_ERR_INVALID_RECORD:
		case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
		case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
		case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
			return true;
		default:
			return false;
	}
}

/* A message was not delivered. */
static void
undelivered(rd_kafka_t *producer, const rd_kafka_message_t *message, void *opaque)
{
	KafkaLink  *kafka = opaque;

	/* those that are purged follow from another one */
	if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR || message->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE ||
		message->err == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT)
		return;
	if (kafka->refusal == RD_KAFKA_RESP_ERR_NO_ERROR && is_refusal(message->err))
		kafka->refusal = message->err;
	snprintf(kafka->problem, sizeof(kafka->problem), "topic \"%.200s\": %s",
			 rd_kafka_topic_name(message->rkt), rd_kafka_err2str(message->err));
}

/* A call has failed; true if it has not.  Takes the error. */
static bool
judge(KafkaLink *kafka, const char *what, rd_kafka_error_t *error)
{
	SinkLink   *link = &kafka->link;
	rd_kafka_resp_err_t code = rd_kafka_error_code(error);

	if (error == NULL)
		return true;
	/* this serves reports of what was not delivered, too */
	if (kafka->in_transaction && rd_kafka_error_txn_requires_abort(error))
	{
		rd_kafka_error_t *other = rd_kafka_abort_transaction(kafka->producer, ABORT_TIMEOUT);

		kafka->in_transaction = other != NULL;
		rd_kafka_error_destroy(other);
	}
	rd_kafka_poll(kafka->producer, 0);
	if (rd_kafka_error_is_fatal(error) &&
		(code == RD_KAFKA_RESP_ERR__FENCED || code == RD_KAFKA_RESP_ERR_PRODUCER_FENCED ||
		 code == RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH))
		sink_link_fail(link, SINK_RETRY, "another producer has taken transactional.id \"%s\"", kafka->id);
	else if (kafka->refusal != RD_KAFKA_RESP_ERR_NO_ERROR)
	{
		pthread_mutex_lock(&link->lock);
		kafka->is_refused = true;
		pthread_mutex_unlock(&link->lock);
		sink_link_fail(link, SINK_RETRY_NOW, "%s", rd_kafka_err2str(kafka->refusal));
	}
	else
		sink_link_fail(link, SINK_RETRY, "could not %s: %s%s%s", what, rd_kafka_error_string(error),
					   kafka->problem[0] != '\0' ? "; " : "", kafka->problem);
	rd_kafka_error_destroy(error);
	return false;
}

/*
 * What is committed for the group: metadata, or "" if there is nothing, and an
 * offset.  If it is to be stable, this waits for what is being committed.
 */
static bool
read_committed(KafkaLink *kafka, bool stable, char *metadata, size_t size, int64_t *offset)
{
	rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR__TIMED_OUT;
	int64_t		until = base_now() + READ_TIMEOUT;
	rd_kafka_queue_t *queue = rd_kafka_queue_new(kafka->producer);
	rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(kafka->producer,
																 RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS);

	rd_kafka_error_destroy(rd_kafka_AdminOptions_set_require_stable_offsets(options, stable));
	rd_kafka_AdminOptions_set_request_timeout(options, READ_TIMEOUT, NULL, 0);
	*metadata = '\0';
	*offset = 0;
	do
	{
		rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
		rd_kafka_ListConsumerGroupOffsets_t *request;
		rd_kafka_event_t *event;

		if (error == RD_KAFKA_RESP_ERR_UNSTABLE_OFFSET_COMMIT)
			usleep(UNSTABLE_INTERVAL * 1000);
		rd_kafka_topic_partition_list_add(list, kafka->topic, 0);
		request = rd_kafka_ListConsumerGroupOffsets_new(kafka->id, list);
		rd_kafka_topic_partition_list_destroy(list);
		rd_kafka_ListConsumerGroupOffsets(kafka->producer, &request, 1, options, queue);
		event = rd_kafka_queue_poll(queue, READ_TIMEOUT + 1000);
		rd_kafka_ListConsumerGroupOffsets_destroy(request);
		error = event != NULL ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
		if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
		{
			size_t		n;
			const rd_kafka_group_result_t *group =
				rd_kafka_ListConsumerGroupOffsets_result_groups(rd_kafka_event_ListConsumerGroupOffsets_result(event), &n)[0];
			const rd_kafka_topic_partition_list_t *found = rd_kafka_group_result_partitions(group);

			error = rd_kafka_error_code(rd_kafka_group_result_error(group));
			if (error == RD_KAFKA_RESP_ERR_NO_ERROR && found != NULL && found->cnt == 1)
			{
				error = found->elems[0].err;
				/* check_topic() makes it, or tells */
				if (error == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
					error = RD_KAFKA_RESP_ERR_NO_ERROR;
				else if (found->elems[0].offset >= 0)
				{
					*offset = found->elems[0].offset;
					snprintf(metadata, size, "%.*s", (int) found->elems[0].metadata_size,
							 found->elems[0].metadata != NULL ? (char *) found->elems[0].metadata : "");
				}
			}
		}
		if (event != NULL)
			rd_kafka_event_destroy(event);
	} while (error == RD_KAFKA_RESP_ERR_UNSTABLE_OFFSET_COMMIT && base_now() < until);
	rd_kafka_AdminOptions_destroy(options);
	rd_kafka_queue_destroy(queue);
	rd_kafka_poll(kafka->producer, 0);
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
		sink_link_fail(&kafka->link, SINK_RETRY, "could not read the cursor of group \"%s\": %s%s%s", kafka->id,
					   rd_kafka_err2str(error), kafka->problem[0] != '\0' ? "; " : "", kafka->problem);
	return error == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/*
 * Nothing is committed.  Is the topic there, and has it nothing?  A relay commits
 * an offset before it sends anything, so records in it are those of others, or
 * the offset has expired.
 */
static bool
check_topic(KafkaLink *kafka)
{
	SinkLink   *link = &kafka->link;
	rd_kafka_topic_t *topic = rd_kafka_topic_new(kafka->producer, kafka->topic, NULL);
	const struct rd_kafka_metadata *metadata = NULL;
	rd_kafka_resp_err_t error = rd_kafka_metadata(kafka->producer, 0, topic, &metadata, READ_TIMEOUT);
	bool		has_records = false;

	if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
		error = metadata->topic_cnt == 1 ? metadata->topics[0].err : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
	for (int i = 0; error == RD_KAFKA_RESP_ERR_NO_ERROR && kafka->has_topic && i < metadata->topics[0].partition_cnt; i++)
	{
		int64_t		low = 0;
		int64_t		high = 0;

		error = rd_kafka_query_watermark_offsets(kafka->producer, kafka->topic, metadata->topics[0].partitions[i].id,
												 &low, &high, READ_TIMEOUT);
		has_records = has_records || high > 0;
	}
	if (metadata != NULL)
		rd_kafka_metadata_destroy(metadata);
	rd_kafka_topic_destroy(topic);
	rd_kafka_poll(kafka->producer, 0);
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR)
		sink_link_fail(link, SINK_RETRY, "topic \"%s\": %s%s%s", kafka->topic, rd_kafka_err2str(error),
					   kafka->problem[0] != '\0' ? "; " : "", kafka->problem);
	else if (kafka->has_kept)
		sink_link_fail(link, SINK_STOP, "the cursor that was committed for group \"%s\" is gone, as it is if topic "
										"\"%s\" is deleted: if the feed shall begin again as --from says, start "
										"the relay again",
					   kafka->id, kafka->topic);
	else if (has_records && *link->config->from == '\0')
		sink_link_fail(link, SINK_STOP, "topic \"%s\" has records, but no cursor is committed for group \"%s\": it has "
										"expired, or the records are of others; name another topic, or set --from, to "
										"a cursor, earliest or latest",
					   kafka->topic, kafka->id);
	else
		return error == RD_KAFKA_RESP_ERR_NO_ERROR;
	return false;
}

/* Make a producer, and find out how far the feed is.  A failure is told. */
static bool
open_producer(KafkaLink *kafka)
{
	SinkLink   *link = &kafka->link;
	char		problem[512];
	rd_kafka_conf_t *conf = sink_kafka_configure(link->config, problem, sizeof(problem));
	int64_t		offset;
	char	   *sender;

	if (conf != NULL)
	{
		rd_kafka_conf_set_opaque(conf, kafka);
		rd_kafka_conf_set_log_cb(conf, log_nothing);
		rd_kafka_conf_set_error_cb(conf, take_problem);
		rd_kafka_conf_set_dr_msg_cb(conf, undelivered);
		if (!set(conf, "transactional.id", kafka->id, problem, sizeof(problem)) ||
			(kafka->producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, problem, sizeof(problem))) == NULL)
			rd_kafka_conf_destroy(conf);
	}
	if (kafka->producer == NULL)
	{
		sink_link_fail(link, SINK_RETRY, "setting \"kafka\": %s", problem);
		return false;
	}
	if (!read_committed(kafka, false, kafka->found, sizeof(kafka->found), &offset))
		return false;
	if (kafka->found[0] == '\0')
		return link->only_look || check_topic(kafka);
	sender = strchr(kafka->found, ' ');
	if (sender == NULL)
	{
		sink_link_fail(link, SINK_STOP, "group \"%s\" has an offset that is not a relay's: set --transactional-id",
					   kafka->id);
		return false;
	}
	link->base = offset;
	link->sender = base_copy(sender + 1);
	link->is_other = sink_link_is_other(link, sender + 1);
	if (strncmp(kafka->found, NO_CURSOR " ", 2) != 0)
	{
		link->cursor = base_copy(kafka->found);
		link->cursor[sender - kafka->found] = '\0';
	}
	return true;
}

static bool
begin(KafkaLink *kafka)
{
	kafka->in_transaction = judge(kafka, "begin a transaction", rd_kafka_begin_transaction(kafka->producer));
	return kafka->in_transaction;
}

/* Commit the transaction, with a cursor. */
static bool
commit(KafkaLink *kafka, const char *cursor, int64_t offset)
{
	rd_kafka_topic_partition_list_t *offsets = rd_kafka_topic_partition_list_new(1);
	rd_kafka_topic_partition_t *partition = rd_kafka_topic_partition_list_add(offsets, kafka->topic, 0);
	rd_kafka_consumer_group_metadata_t *group = rd_kafka_consumer_group_metadata_new(kafka->id);
	BaseText	metadata = {0};
	bool		good;

	base_text_print(&metadata, "%s %s", cursor, kafka->link.relay);
	partition->offset = offset;
	partition->metadata = metadata.data;
	partition->metadata_size = metadata.length;
	good = judge(kafka, "commit the cursor",
				 rd_kafka_send_offsets_to_transaction(kafka->producer, offsets, group, TRANSACTION_TIMEOUT));
	/* it frees the metadata */
	rd_kafka_topic_partition_list_destroy(offsets);
	rd_kafka_consumer_group_metadata_destroy(group);
	if (!good || !judge(kafka, "commit", rd_kafka_commit_transaction(kafka->producer, TRANSACTION_TIMEOUT)))
		return false;
	kafka->in_transaction = false;
	return true;
}

/*
 * Become the only one that can commit, and begin.  The cursor is committed at
 * once, with this relay's name, unless it is that already.
 */
static bool
take_over(KafkaLink *kafka)
{
	SinkLink   *link = &kafka->link;
	char		found[sizeof(kafka->found)];
	int64_t		offset;

	if (!judge(kafka, "take the transactional.id", rd_kafka_init_transactions(kafka->producer, TRANSACTION_TIMEOUT)) ||
		!read_committed(kafka, true, found, sizeof(found), &offset))
		return false;
	if (strcmp(found, kafka->found) != 0)
	{
		sink_link_fail(link, SINK_RETRY_NOW, "another relay has committed since this one was opened");
		return false;
	}
	if (link->sender == NULL || strcmp(link->sender, link->relay) != 0)
	{
		if (!begin(kafka) || !commit(kafka, link->cursor != NULL ? link->cursor : NO_CURSOR, link->base))
			return false;
	}
	return begin(kafka);
}

/* The thread: do what the loop asks for, until it leaves. */
void *
sink_kafka_run(void *argument)
{
	SinkLink   *link = argument;
	KafkaLink  *kafka = argument;
	bool		good = open_producer(kafka);

	pthread_mutex_lock(&link->lock);
	if (good)
	{
		link->news.state = SINK_LINK_OPENED;
		sink_link_tell(link);
	}
	while (!link->is_left)
	{
		KafkaOrder	order = kafka->order;

		if (order == KAFKA_WAIT || !good)
		{
			pthread_cond_wait(&kafka->changed, &link->lock);
			continue;
		}
		kafka->order = KAFKA_WAIT;
		pthread_mutex_unlock(&link->lock);
		if (order == KAFKA_BEGIN)
			good = take_over(kafka);
		else if ((good = commit(kafka, kafka->to_commit, link->base + link->news.acknowledged + kafka->count)))
		{
			pthread_mutex_lock(&link->lock);
			link->news.acknowledged += kafka->count;
			pthread_mutex_unlock(&link->lock);
			good = begin(kafka);
		}
		pthread_mutex_lock(&link->lock);
		kafka->has_begun = good;
		if (good)
			sink_link_tell(link);
	}
	pthread_mutex_unlock(&link->lock);
	if (kafka->producer != NULL)
	{
		/* readers of the topics wait for the end of what is open */
		if (kafka->in_transaction)
			rd_kafka_error_destroy(rd_kafka_abort_transaction(kafka->producer, ABORT_TIMEOUT));
		rd_kafka_destroy(kafka->producer);
	}
	sink_link_release(link);
	return NULL;
}
