/*-------------------------------------------------------------------------
 *
 * http.h
 *	  What only feedpub-http calls: pages as lines and as events, statements
 *	  of a request.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_H
#define FEEDPUB_HTTP_H

#include "read/read.h"

typedef struct FeedpubEvents FeedpubEvents;

/* in event.c */
extern FeedpubEvents *feedpub_event_begin(const FeedpubPage *page);
extern void feedpub_event_make(FeedpubEvents *events, FeedpubJsonEntry *entry,
							   int start);

#endif							/* FEEDPUB_HTTP_H */
