/*-------------------------------------------------------------------------
 *
 * write.h
 *	  Requests that write: appends, and consumers of subscriptions.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_WRITE_H
#define FEEDPUB_HTTP_WRITE_H

#include "server/server.h"

/* in append.c */
extern void http_append_begin(HttpRequest *request);

/* in subscription.c */
extern void http_subscription_begin(HttpRequest *request);

#endif							/* FEEDPUB_HTTP_WRITE_H */
