/*-------------------------------------------------------------------------
 *
 * hook.h
 *	  What the files on webhooks share: private.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_WEBHOOK_HOOK_H
#define FEEDPUB_RELAY_WEBHOOK_HOOK_H

#include "webhook/webhook.h"

#define WEBHOOK_PAGE_BYTES 1048576

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

typedef enum HookWork
{
	HOOK_IDLE,
	HOOK_CHECKS,				/* the extension */
	HOOK_SUBSCRIBES,
	HOOK_POLLS,
	HOOK_SETTLES,
	HOOK_LEAVES
} HookWork;

typedef enum EntryState
{
	ENTRY_WAITS,
	ENTRY_SENT,
	ENTRY_ACCEPTED,
	ENTRY_PARKED				/* or is to be, unless it is written */
} EntryState;

typedef struct Hook Hook;
typedef struct HookEntry
{
	Hook	   *hook;
	EntryState	state;
	WebhookRequest *request;	/* in flight */
	int64_t		retry_at;		/* ms */
	int			failures;
	int			counted;		/* of them */
	uint64_t	accepted;		/* by the receiver, when this was first sent */
	bool		is_for_good;	/* parked */
	bool		is_writing;
	bool		is_written;
	int			delay;			/* s, until it comes again; 0: as the backoff says */
	char		reason[128];
} HookEntry;

struct Hook
{
	Feed		feed;			/* the first member */
	Sink		sink;			/* counters of the feed */
	DbSession	session;
	HookWork	work;
	bool		is_subscribed;
	char	   *schema;			/* of the extension's functions, quoted */
	char	   *poll;			/* statements */
	char	   *leave;
	char	   *name;			/* of the feed, quoted */
	char	   *source;
	char	   *consumer;
	bool		is_outbox;
	Oid			relid;
	WebhookKeys keys;
	PGresult   *page;			/* or NULL */
	HookEntry  *entries;
	int			count;
	int			acknowledged;	/* the first so many of them */
	int			settling;		/* up to where the statement acknowledges */
	int			rows;			/* of the next page, at most */
	bool		is_lost;		/* the page */
	uint64_t	accepted;
	int64_t		paused_until;	/* ms */
	int			pauses;			/* in a row */
	int64_t		retry_at;		/* ms: the database */
	bool		must_listen;
	bool		has_news;
	int			empty_polls;	/* in a row */
	int64_t		look_at;		/* ms */
	char		sqlstate[6];	/* of an error of this work's; "" and no message: none */
	char		message[512];
};

/* in event.c */
extern char *webhook_event_poll(const char *kind, const char *schema);
extern void webhook_event_source(BaseText *out, const char *name);
extern void webhook_event_encode(BaseText *out, const char *value, char also);

/* in delivery.c */
extern const char *webhook_entry_value(const Hook *hook, int i, WebhookColumn column);
extern void webhook_entries_send(Hook *hook, int64_t now);

#endif							/* FEEDPUB_RELAY_WEBHOOK_HOOK_H */
