/*-------------------------------------------------------------------------
 *
 * event.h
 *	  What a poll returns, for runner.c: private.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_WEBHOOK_EVENT_H
#define FEEDPUB_RELAY_WEBHOOK_EVENT_H

#include "webhook/webhook.h"

/* The columns of a poll. */
typedef enum WebhookColumn
{
	WEBHOOK_RECEIPT,
	WEBHOOK_CURSOR,
	WEBHOOK_OP,
	WEBHOOK_ERROR,				/* why there is no data */
	WEBHOOK_ID,					/* of the message */
	WEBHOOK_TYPE,
	WEBHOOK_KEY,
	WEBHOOK_TIME,
	WEBHOOK_PUBLICATION,
	WEBHOOK_RELATION,
	WEBHOOK_OLD_KEY,
	WEBHOOK_TRACEPARENT,
	WEBHOOK_TRACESTATE,
	WEBHOOK_MOMENT,
	WEBHOOK_DATA,
	WEBHOOK_ORDER,				/* after what it has to come */
	WEBHOOK_ORDER_TOO
} WebhookColumn;

/* in event.c */
extern char *webhook_event_poll(const char *kind, const char *schema);
extern void webhook_event_source(BaseText *out, const char *name);
extern void webhook_event_encode(BaseText *out, const char *value, char also);

#endif							/* FEEDPUB_RELAY_WEBHOOK_EVENT_H */
