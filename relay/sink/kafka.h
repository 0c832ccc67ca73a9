/*-------------------------------------------------------------------------
 *
 * kafka.h
 *	  What the files on Kafka share: private.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_KAFKA_H
#define FEEDPUB_RELAY_KAFKA_H

#include <librdkafka/rdkafka.h>

#include "sink/link.h"

typedef enum KafkaOrder
{
	KAFKA_WAIT,
	KAFKA_BEGIN,				/* take the transactional.id, and begin a transaction */
	KAFKA_COMMIT				/* commit it, and begin another one */
} KafkaOrder;

/* A producer, and its thread. */
typedef struct KafkaLink
{
	SinkLink	link;			/* the first member */

	/* locked as the link's are */
	pthread_cond_t changed;		/* what the loop has asked for, or is_left */
	KafkaOrder	order;
	uint64_t	count;			/* entries of the transaction that is committed */
	char		to_commit[80];	/* its cursor */
	bool		has_begun;		/* a transaction: entries may be sent */
	bool		is_refused;		/* it has failed, since an entry is never taken */

	/* set before the thread runs */
	char	   *id;				/* transactional.id, and the group of the cursor */
	char	   *topic;			/* the cursor is committed for its partition 0 */
	bool		has_topic;		/* entries go into that topic, and nowhere else */
	bool		has_kept;		/* this process has committed a cursor */

	/* of the thread; the loop uses the producer while a transaction has begun */
	rd_kafka_t *producer;
	bool		in_transaction;
	char		found[256];		/* the committed metadata; "": none */
	rd_kafka_resp_err_t refusal;	/* the first error of a message that is final */
	char		problem[256];	/* the last error that librdkafka has told */
} KafkaLink;

#define KAFKA_LINK(link) ((KafkaLink *) (link))

/* in kafka_client.c */
extern rd_kafka_conf_t *sink_kafka_configure(const RelayFeedConfig *config, char *problem,
											 size_t size);
extern void *sink_kafka_run(void *argument);

#endif							/* FEEDPUB_RELAY_KAFKA_H */
