/*-------------------------------------------------------------------------
 *
 * http.h
 *	  What only feedpub-http and feedpub-relay call: pages as lines, as events,
 *	  as records and as messages, statements of a request.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_H
#define FEEDPUB_HTTP_H

#include "read/read.h"

/* Events, or messages, being made of a page. */
typedef struct FeedpubEvents
{
	const FeedpubPage *page;
	bool		are_records;
	TupleDesc	desc;
	FeedpubJsonValues *values;
	StringInfoData out;
	char	   *source;
	char	   *name;			/* of the table */
	AttrNumber	keys[INDEX_MAX_KEYS];
	int			nkeys;
	AttrNumber	type;			/* columns of an outbox, or invalid */
	AttrNumber	id;
	AttrNumber	data;
	AttrNumber	headers;
	AttrNumber	publication;
	TimestampTz created_at;		/* 0: not looked up yet */
	MemoryContext context;		/* of one event being made */
	Datum	   *columns;		/* of its row */
	bool	   *nulls;
} FeedpubEvents;

/* in event.c */
extern FeedpubEvents *feedpub_event_begin(const FeedpubPage *page);
extern bool feedpub_event_make(FeedpubEvents *events, FeedpubJsonEntry *entry,
							   int start);
extern bool feedpub_event_record(FeedpubEvents *events, FeedpubJsonEntry *entry,
								 int start);
extern void feedpub_event_attribute(FeedpubEvents *events, const char *name,
									const char *value);
extern void feedpub_event_time(FeedpubEvents *events, const char *name,
							   TimestampTz time);
extern char *feedpub_event_key(Datum key);

/* in message.c */
extern bool feedpub_message_make(FeedpubEvents *events, FeedpubJsonEntry *entry,
								 int start);
extern const FeedpubPageRow *feedpub_message_end(const FeedpubPage *page);

#endif							/* FEEDPUB_HTTP_H */
