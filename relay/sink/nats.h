/*-------------------------------------------------------------------------
 *
 * nats.h
 *	  What the files on NATS share: private.
 *
 * A SinkLink is what a connection has to tell the loop.  Threads of libnats, and
 * those that connect and close, touch nothing else of ours.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_NATS_H
#define FEEDPUB_RELAY_NATS_H

#include <nats/nats.h>
#include <pthread.h>

#include "sink/sink.h"

#define SINK_NATS_CURSOR "ce-id"
#define SINK_NATS_RELAY "Feedpub-Relay"

typedef enum SinkLinkState
{
	SINK_LINK_CONNECTING,
	SINK_LINK_OPENED,			/* how far the stream is, is to be told */
	SINK_LINK_OPEN,
	SINK_LINK_FAILED
} SinkLinkState;

/* A connection, and what its threads have to tell. */
typedef struct SinkLink
{
	pthread_mutex_t lock;		/* of all below, but for what is constant */
	int			refs;
	int			event;			/* a copy of the sink's eventfd */
	bool		is_told;		/* there is something to be looked at */
	bool		is_connecting;	/* its thread runs */
	bool		is_left;		/* that thread is to close it */
	bool		is_noted;		/* the cursor that was published */
	SinkLinkState state;
	SinkFailure failure;
	char		message[512];
	uint64_t	base;			/* the last sequence when it was opened */
	uint64_t	acknowledged;	/* messages since then */
	char	   *cursor;
	char	   *sender;			/* of the last message, or NULL */
	bool		is_other;		/* it is another relay, which may be there still */

	/* set by the thread that connects, and then only read */
	natsConnection *connection;
	natsSubscription *subscription;
	char		inbox[128];		/* its subject, less the last token */
	int64_t		created;		/* the stream */
	int64_t		max_bytes;		/* of a message */

	/* set before that thread runs */
	RelayFeedConfig *config;
	char	   *stream;
	char	   *cursor_subject;
	char		relay[96];
	bool		only_look;
	bool		has_sent;		/* this process, so another one of its name is another */
	char		taken[96];		/* the relay that this one has replaced, ... */
	uint64_t	taken_at;		/* ... and the sequence of its last message */
	int64_t		known_created;	/* what this process knows already; 0: nothing */
} SinkLink;

/* in nats_link.c */
extern void sink_link_tell(SinkLink *link);
extern void sink_link_retain(SinkLink *link);
extern void sink_link_release(SinkLink *link);
extern void sink_link_fail(SinkLink *link, SinkFailure failure, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
extern bool sink_link_run(SinkLink *link, void *(*run)(void *) );

/* in nats_stream.c */
extern bool sink_nats_find_end(SinkLink *link, jsCtx *js);

/* in nats_connect.c */
extern void *sink_nats_connect(void *argument);
extern void *sink_nats_close(void *argument);

#endif							/* FEEDPUB_RELAY_NATS_H */
