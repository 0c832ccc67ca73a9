/*-------------------------------------------------------------------------
 *
 * link.h
 *	  A connection of a sink whose library waits or calls back in threads of its
 *	  own: private.
 *
 * A SinkLink is what such a connection has to tell the loop.  Its threads touch
 * nothing else of ours.  A kind of sink has it as the first member of its own
 * struct.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_LINK_H
#define FEEDPUB_RELAY_LINK_H

#include <pthread.h>

#include "sink/sink.h"

typedef enum SinkLinkState
{
	SINK_LINK_CONNECTING,
	SINK_LINK_OPENED,			/* how far the sink is, is to be told */
	SINK_LINK_OPEN,
	SINK_LINK_FAILED
} SinkLinkState;

/* What a link tells. */
typedef struct SinkLinkNews
{
	SinkLinkState state;
	SinkFailure failure;
	char		message[512];
	uint64_t	acknowledged;	/* entries since it was opened */
} SinkLinkNews;

typedef struct SinkLink SinkLink;
struct SinkLink
{
	pthread_mutex_t lock;		/* of all below, but for what is constant */
	int			refs;
	int			event;			/* a copy of the sink's eventfd */
	bool		is_told;		/* there is something to be looked at */
	bool		is_left;		/* its thread is to close it */
	SinkLinkNews news;
	uint64_t	base;			/* the last sequence when it was opened */
	char	   *cursor;			/* of the last entry, or NULL */
	char	   *sender;			/* of the last entry, or NULL */
	bool		is_other;		/* it is another relay, which may be there still */

	/* set before its thread runs */
	RelayFeedConfig *config;
	char		relay[96];
	bool		only_look;
	bool		has_sent;		/* this process, so another one of its name is another */
	void (*release)(SinkLink *link);	/* what follows this struct; may be NULL */
};

/* in link.c */
extern void sink_link_name(char *relay, size_t size, const RelayFeedConfig *config);
extern char *sink_link_feed(const char *feed, char escape);
extern void sink_link_start(SinkLink *link, int event, const RelayFeedConfig *config);
extern bool sink_link_is_other(const SinkLink *link, const char *sender);
extern void sink_link_tell(SinkLink *link);
extern bool sink_link_look(SinkLink *link, int event, SinkLinkNews *news);
extern void sink_link_retain(SinkLink *link);
extern void sink_link_release(SinkLink *link);
extern void sink_link_fail(SinkLink *link, SinkFailure failure, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
extern bool sink_link_run(SinkLink *link, void *(*run)(void *) );

#endif							/* FEEDPUB_RELAY_LINK_H */
