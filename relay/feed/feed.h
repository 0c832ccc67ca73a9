/*-------------------------------------------------------------------------
 *
 * feed.h
 *	  A feed that is relayed: its reader, and its runner, which gives what is
 *	  read to a sink.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_FEED_H
#define FEEDPUB_RELAY_FEED_H

#include "sink/sink.h"

typedef struct Feed Feed;

/* A page that was read. */
typedef struct FeedPage
{
	PGresult   *result;			/* or NULL: there is none */
	char	   *next;			/* the record that is next, in the result */
	char	   *end;			/* where the records end */
	char		cursor[80];		/* where the page ends */
} FeedPage;

typedef enum FeedReaderState
{
	FEED_READER_CHECKS,			/* the extension */
	FEED_READER_LISTENS,
	FEED_READER_READS,
	FEED_READER_COUNTS,			/* what is left */
	FEED_READER_IDLE
} FeedReaderState;

/* Reads a feed, a page ahead of what is sent. */
typedef struct FeedReader FeedReader;
struct FeedReader
{
	DbSession	session;		/* the first member */
	const RelayFeedConfig *config;
	FeedReaderState state;		/* if the session is open */
	char	   *schema;			/* of the extension's functions, quoted */
	char	   *types;			/* the text of an array, or NULL */
	Oid			feed;			/* 0: not known yet */
	FeedPage	pages[2];		/* the one that is taken from, and the next */
	char		position[80];	/* the cursor of what was taken; "": not known yet */
	char		after[80];		/* of what was read */
	char		latest[80];		/* what "latest" has meant, until the sink has more; or "" */
	bool		is_wanted;		/* it has begun */
	bool		is_stale;		/* what is being read is not wanted any more */
	bool		is_read;		/* all that was published has been read */
	bool		must_listen;	/* call feed_listen() before the next page */
	uint64_t	news;			/* how often there was some */
	uint64_t	asked_news;		/* the same, when the page was asked for */
	SinkEntry	entry;			/* the next record */
	bool		has_entry;
	bool		has_failed;		/* with what follows */
	char		sqlstate[6];	/* "" if it is no error of a statement's */
	char		message[512];
	int64_t		retry_at;		/* ms; 0: now */
	int64_t		count_at;		/* ms, when to count what is left; 0: now */
	int64_t		left;			/* entries after position, about; -1: not known */
	bool		has_counted;	/* since that was looked at */
};

typedef enum FeedState
{
	FEED_OPENING,
	FEED_FENCED,				/* another relay sends */
	FEED_RUNNING,
	FEED_RETRYING,
	FEED_STOPPED,				/* somebody has to do something */
	FEED_ENDED
} FeedState;

/*
 * What runs a feed that is not read by cursor.  It has a Sink for its counters
 * only; news, the settings and the end come from runner.c, as for any feed.
 */
typedef struct FeedRunner
{
	const char *schemes;		/* of its URLs, with a space after each */

	/* false if the settings are wrong, as logged */
	bool (*check)(const RelayFeedConfig *config);

	/* a feed with its runner and sink set, which lives as long as the process */
	Feed *(*make)(void);
	void (*start)(Feed *feed);
	void (*stop)(Feed *feed);

	/* files that its settings name may have changed */
	void (*reload)(Feed *feed);
	int64_t (*work)(Feed *feed, int64_t now);	/* when to be called again */
	void (*news)(Feed *feed, Oid relid, bool listen);	/* relid 0: of all */
} FeedRunner;

struct Feed
{
	FeedReader	reader;			/* the first member; not if it has a runner */
	const FeedRunner *runner;	/* or NULL: it is read by cursor */
	char	   *name;			/* of its section */
	RelayFeedConfig *config;
	Sink	   *sink;
	FeedState	state;
	BaseTimer	timer;			/* when to open the sink */
	int64_t		delay;			/* ms, before the next attempt */
	char		problem[1024];	/* the last that was logged */
	bool		is_ending;
	bool		is_removed;		/* from the settings */
	bool		is_at_end;		/* of a feed with a runner */
	uint64_t	fenced_at;		/* the sink's sequence, while another sends */
	int64_t		idle_since;		/* ms, when that could have grown; 0: it could not */
	uint64_t	sent;			/* entries that were acknowledged */
	uint64_t	counted;		/* of those of the sink */
	uint64_t	failures;
	int64_t		told_at;		/* ms, when was looked how far it is; 0: not yet */
	uint64_t	told;			/* entries that had been acknowledged then */
	uint64_t	parked;			/* entries of a subscription */
	Feed	   *next;
};

/* in reader.c */
extern void feed_reader_start(FeedReader *reader, const RelayFeedConfig *config);
extern char *feed_reader_types(const char *types);
extern void feed_reader_stop(FeedReader *reader);
extern void feed_reader_begin(FeedReader *reader, const char *cursor,
							  bool is_word);
extern const SinkEntry *feed_reader_entry(FeedReader *reader);
extern bool feed_reader_at_end(const FeedReader *reader);
extern void feed_reader_take(FeedReader *reader);
extern void feed_reader_wake(FeedReader *reader, bool listen);
extern int64_t feed_reader_sweep(FeedReader *reader, int64_t now);

/* in runner.c */
extern void feed_add_runner(const FeedRunner *runner);
extern void feed_report(Feed *feed, BaseLogLevel level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
extern void feed_stop(Feed *feed, FeedState state);
extern bool feed_start(void);
extern bool feed_reload(void);
extern void feed_end(void);
extern int64_t feed_work(int64_t now);
extern bool feed_all_ended(int *status);
extern const Feed *feed_first(void);
extern const char *feed_state_name(const Feed *feed);

#endif							/* FEEDPUB_RELAY_FEED_H */
