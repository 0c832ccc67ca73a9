/*-------------------------------------------------------------------------
 *
 * nats.h
 *	  What the files on NATS share: private.
 *
 * Threads of libnats, and those that connect and close, touch nothing of ours but
 * a link.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_NATS_H
#define FEEDPUB_RELAY_NATS_H

#include <nats/nats.h>

#include "sink/link.h"

#define SINK_NATS_CURSOR "ce-id"
#define SINK_NATS_RELAY "Feedpub-Relay"
#define SINK_NATS_TYPES "Feedpub-Types"
#define SINK_NATS_STATE "state" /* the end of the inbox for states of the stream */

/* A connection to NATS. */
typedef struct NatsLink
{
	SinkLink	link;			/* the first member */
	bool		is_connecting;	/* its thread runs; this and the next are locked */
	bool		is_noted;		/* the cursor that was published */
	uint64_t	last;			/* the stream's last sequence, as it was told last; locked, too */

	/* set by the thread that connects, and then only read */
	natsConnection *connection;
	natsSubscription *subscription;
	char		inbox[128];		/* its subject, less the last token */
	int64_t		created;		/* the stream */
	int64_t		max_bytes;		/* of a message */

	/* set before that thread runs */
	char	   *stream;
	char	   *cursor_subject;
	char		types[20];		/* a mark of them; "": all */
	char		taken[96];		/* the relay that this one has replaced, ... */
	uint64_t	taken_at;		/* ... and the sequence of its last message */
	int64_t		known_created;	/* what this process knows already; 0: nothing */
} NatsLink;

#define NATS_LINK(link) ((NatsLink *) (link))

/* in nats_stream.c */
extern bool sink_nats_find_end(SinkLink *link, jsCtx *js);

/* in nats_connect.c */
extern void *sink_nats_connect(void *argument);
extern void *sink_nats_close(void *argument);

#endif							/* FEEDPUB_RELAY_NATS_H */
