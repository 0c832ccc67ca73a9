/*-------------------------------------------------------------------------
 *
 * webhook.h
 *	  Webhooks: entries of a subscription, each of which is a POST.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_WEBHOOK_H
#define FEEDPUB_RELAY_WEBHOOK_H

#include <sys/socket.h>

#include "feed/feed.h"

#define WEBHOOK_SECRETS 8
#define WEBHOOK_SECRET_BYTES 64

/* Secrets for signatures. */
typedef struct WebhookKeys
{
	int			count;
	int			lengths[WEBHOOK_SECRETS];
	unsigned char bytes[WEBHOOK_SECRETS][WEBHOOK_SECRET_BYTES];
} WebhookKeys;

/* How a request has ended. */
typedef struct WebhookAnswer
{
	int			status;			/* 0: there was none, and that is why: */
	const char *problem;
	int			retry_after;	/* s; 0: it did not say */
} WebhookAnswer;

/* A request in flight; in request.c. */
typedef struct WebhookRequest WebhookRequest;

/* in address.c */
extern bool webhook_address_check(const char *list);
extern bool webhook_address_allowed(const struct sockaddr *address,
									const char *list);

/* in sign.c */
extern bool webhook_keys_read(WebhookKeys *keys, const char *file);
extern void webhook_sign(BaseText *out, const WebhookKeys *keys, const char *id,
						 int64_t timestamp, const char *body, size_t length);

/* in request.c */
extern WebhookRequest *webhook_request_begin(const RelayFeedConfig *config);
extern void webhook_request_header(WebhookRequest *request, const char *name,
								   const char *value);
extern bool webhook_request_send(WebhookRequest *request, const char *body, size_t length,
								 void (*ended)(void *arg, const WebhookAnswer *answer),
								 void *arg);
extern void webhook_request_cancel(WebhookRequest *request);
extern void webhook_request_work(int64_t now);
extern int64_t webhook_request_due(void);

/* in runner.c */
extern const FeedRunner webhook_runner;

#endif							/* FEEDPUB_RELAY_WEBHOOK_H */
