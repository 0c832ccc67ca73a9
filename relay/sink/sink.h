/*-------------------------------------------------------------------------
 *
 * sink.h
 *	  A sink: where the entries of a feed go.
 *
 * The runner of a feed (feed/) and its sink take turns in one thread:
 *
 *		runner: open()			the sink connects, and finds out how far it is
 *		sink:	opened()		the cursor of the last entry that it has
 *		runner: send() ...		entries, in published order, until it is full
 *		runner:	flush()			there is nothing more to send for now
 *		sink:	acknowledged()	"acknowledged" has grown
 *		sink:	failed()		or it has failed: then close(), open() again
 *
 * A sink that has failed may have taken any number of the entries that it has
 * not acknowledged.  So the runner forgets how far it was and goes on from what
 * opened() says.  That makes a sink exactly once: the cursor is in the sink,
 * written with the entries, and a sink takes no entry but the one after it.
 *
 * Nothing of this waits.  A sink calls back from the loop, and not from within
 * open(), send() or flush().
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_SINK_H
#define FEEDPUB_RELAY_SINK_H

#include "config/config.h"

/*
 * An entry of a feed: the attributes of feedpub._page_records(), each NULL if it
 * has none, and the data.  They are percent-encoded as those of CloudEvents are:
 * without control characters, and "%00" for an empty text.
 */
typedef struct SinkEntry
{
	const char *cursor;
	const char *op;
	const char *source;
	const char *type;
	const char *key;			/* CloudEvents: subject */
	const char *old_key;
	const char *time;
	const char *method;
	const char *id;				/* message_id */
	const char *publication;
	const char *relation;
	const char *traceparent;
	const char *tracestate;
	const char *error;			/* why there is no data */
	bool		moment;			/* one ends with it */
	const char *data;			/* JSON, or NULL */
	size_t		length;			/* of the data */
} SinkEntry;

/* What a sink finds when it is opened. */
typedef struct SinkEnd
{
	const char *cursor;			/* of the last entry; NULL: it has none */
	uint64_t	sequence;		/* of the last entry */
	const char *other;			/* another relay that sent it, or NULL */
} SinkEnd;

typedef enum SinkSent
{
	SINK_SENT,
	SINK_FULL,					/* acknowledged() tells when to send it again */
	SINK_REFUSED,				/* it never takes this entry: see "refusal" */
	SINK_BROKEN					/* failed() follows */
} SinkSent;

typedef enum SinkFailure
{
	SINK_RETRY,					/* it may work later */
	SINK_RETRY_NOW,				/* at once: the sink is where it was not expected */
	SINK_STOP					/* somebody has to do something */
} SinkFailure;

typedef enum SinkOpen
{
	SINK_FIRST,					/* as if the process had just been started */
	SINK_AGAIN,
	SINK_LOOK					/* make nothing that is not there */
} SinkOpen;

typedef struct Sink Sink;

/* Whom a sink tells. */
typedef struct SinkOwner
{
	void (*opened)(Sink *sink, const SinkEnd *end);
	void (*acknowledged)(Sink *sink);
	void (*failed)(Sink *sink, SinkFailure failure, const char *message);
} SinkOwner;

/* A kind of sink. */
typedef struct SinkKind
{
	const char *schemes;		/* of its URLs, with a space after each */

	/* may be NULL; false if the settings are wrong, as logged */
	bool (*check)(const RelayFeedConfig *config);

	/* a sink with its first member filled, which lives as long as the process */
	Sink *(*make)(void);

	void (*open)(Sink *sink, SinkOpen how);
	SinkSent (*send)(Sink *sink, const SinkEntry *entry);

	/* may be NULL */
	void (*flush)(Sink *sink);

	/*
	 * All that was sent is acknowledged, and the feed has been read up to this
	 * cursor: is that kept?  If not, acknowledged() tells when to ask again; if
	 * the feed ends here, it is kept soon.  May be NULL.
	 */
	bool (*is_idle)(Sink *sink, const char *cursor, bool ends);

	/* forget the connection, and what is not acknowledged */
	void (*close)(Sink *sink);
} SinkKind;

struct Sink
{
	const SinkKind *kind;
	const SinkOwner *owner;
	const RelayFeedConfig *config;	/* only valid in calls of the runner's */
	void	   *feed;			/* the owner's */
	uint64_t	sent;			/* entries, since it was opened */
	uint64_t	acknowledged;	/* of these, the first so many */
	char		refusal[256];	/* why an entry is never taken */
};

/* in sink.c */
extern bool sink_has_scheme(const char *schemes, const char *url);
extern const SinkKind *sink_find(const RelayFeedConfig *config);

/* in subject.c */
extern bool sink_subject_check(const RelayFeedConfig *config);
extern void sink_subject_print(BaseText *out, const char *template,
							   const RelayFeedConfig *config,
							   const SinkEntry *entry);
extern void sink_subject_feed(BaseText *out, const RelayFeedConfig *config);
extern bool sink_subject_all(BaseText *out, const char *template,
							 const RelayFeedConfig *config);
extern bool sink_topic_check(const RelayFeedConfig *config);
extern bool sink_topic_is_one(const char *template);
extern void sink_topic_print(BaseText *out, const char *template,
							 const RelayFeedConfig *config, const SinkEntry *entry);

/* in nats.c and kafka.c: what was not left out when this was built */
#ifdef HAVE_NATS
extern const SinkKind sink_nats;
#endif
#ifdef HAVE_KAFKA
extern const SinkKind sink_kafka;
#endif

#endif							/* FEEDPUB_RELAY_SINK_H */
