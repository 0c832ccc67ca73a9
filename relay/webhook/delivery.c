/*-------------------------------------------------------------------------
 *
 * delivery.c
 *	  Sends the entries of a page, until each is accepted or parked.
 *
 * Order.  Of one key one request is in flight, and the next entry is sent when
 * the one before it was accepted or parked.  A TRUNCATE comes alone.  The next page
 * is polled when all of this one is done, so no key is in two pages.
 *
 * What is not accepted is sent again, after a delay that grows or that the
 * receiver names, and its key waits.  Two things can be the reason, and they look
 * the same: the receiver does not work, or it cannot take this entry.  If it does
 * not work, to park one entry after the other would move the backlog into the
 * table of parked entries, without its order; so an attempt counts only if the
 * receiver accepted another entry since it was first given this one, or if its
 * status says that the request is wrong.  Else all entries wait.  But a page can
 * have no other entry that it would accept.  So after PATIENCE waits in a row the
 * attempts at the first one count, one after each wait: while a receiver does not
 * work, an entry is parked in some minutes, and no more.  After --attempts that
 * count, the entry is parked (feed_nack()), so that its key goes on, and comes
 * again by the backoff of the subscription.
 *
 *-------------------------------------------------------------------------
 */
#include "webhook/hook.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ms */
#define FIRST_DELAY 500
#define MAX_DELAY 60000

/* waits in a row, after which attempts at the first entry count */
#define PATIENCE 4

static bool is_turn(const Hook *hook, int i);
static bool send_entry(HookEntry *entry);
static bool is_about_entry(int status);
static bool is_first(const Hook *hook, const HookEntry *entry);
static void answered(void *arg, const WebhookAnswer *answer);

/* A value of an entry, or NULL. */
const char *
webhook_entry_value(const Hook *hook, int i, WebhookColumn column)
{
	return PQgetisnull(hook->page, i, column) ? NULL : PQgetvalue(hook->page, i, column);
}

/* Send the entries whose turn it is. */
void
webhook_entries_send(Hook *hook, int64_t now)
{
	if (now < hook->paused_until)
		return;
	for (int i = hook->acknowledged; i < hook->count; i++)
	{
		HookEntry  *entry = &hook->entries[i];

		if (hook->sink.sent - hook->sink.acknowledged >= (uint64_t) hook->feed.config->requests)
			return;
		if (entry->state == ENTRY_WAITS && now >= entry->retry_at && is_turn(hook, i) && !send_entry(entry))
			return;
	}
}

/* Has all that an entry must come after been accepted, or parked? */
static bool
is_turn(const Hook *hook, int i)
{
	bool		is_alone = strncmp(webhook_entry_value(hook, i, WEBHOOK_OP), "truncate", 8) == 0;

	for (int j = hook->acknowledged; j < i; j++)
	{
		if (hook->entries[j].state >= ENTRY_ACCEPTED)
			continue;
		if (is_alone || strncmp(webhook_entry_value(hook, j, WEBHOOK_OP), "truncate", 8) == 0)
			return false;
		for (WebhookColumn a = WEBHOOK_ORDER; a <= WEBHOOK_ORDER_TOO; a++)
			for (WebhookColumn b = WEBHOOK_ORDER; b <= WEBHOOK_ORDER_TOO; b++)
				if (webhook_entry_value(hook, i, a) != NULL && webhook_entry_value(hook, j, b) != NULL &&
					strcmp(webhook_entry_value(hook, i, a), webhook_entry_value(hook, j, b)) == 0)
					return false;
	}
	return true;
}

static bool
send_entry(HookEntry *entry)
{
	static const struct
	{
		const char *name;
		WebhookColumn column;
	} headers[] = {
		{"ce-id", WEBHOOK_CURSOR},
		{"ce-subject", WEBHOOK_KEY},
		{"ce-time", WEBHOOK_TIME},
		{"ce-messageid", WEBHOOK_ID},
		{"ce-publication", WEBHOOK_PUBLICATION},
		{"ce-traceparent", WEBHOOK_TRACEPARENT},
		{"ce-tracestate", WEBHOOK_TRACESTATE},
		{"feedpub-relation", WEBHOOK_RELATION},
		{"feedpub-old-key", WEBHOOK_OLD_KEY},
	};
	Hook	   *hook = entry->hook;
	int			i = entry - hook->entries;
	const char *op = webhook_entry_value(hook, i, WEBHOOK_OP);
	const char *relation = webhook_entry_value(hook, i, WEBHOOK_RELATION);
	const char *id = webhook_entry_value(hook, i, WEBHOOK_ID);
	const char *data = webhook_entry_value(hook, i, WEBHOOK_DATA);
	WebhookRequest *request = webhook_request_begin(hook->feed.config);
	BaseText	text = {0};
	char		number[32];
	int64_t		now = time(NULL);

	if (data == NULL || (hook->is_outbox && strcmp(data, "null") == 0))
		data = "";
	for (size_t h = 0; h < lengthof(headers); h++)
	{
		const char *attribute = webhook_entry_value(hook, i, headers[h].column);

		/* no publication is no attribute */
		if (attribute == NULL || (headers[h].column == WEBHOOK_PUBLICATION && *attribute == '\0'))
			continue;
		text.length = 0;
		webhook_event_encode(&text, attribute, '\0');
		webhook_request_header(request, headers[h].name, text.data);
	}
	text.length = 0;
	if (webhook_entry_value(hook, i, WEBHOOK_TYPE) != NULL)
		webhook_event_encode(&text, webhook_entry_value(hook, i, WEBHOOK_TYPE), '\0');
	else
	{
		webhook_event_encode(&text, relation != NULL ? relation : hook->name, '\0');
		base_text_print(&text, ".%s", op);
	}
	webhook_request_header(request, "ce-type", text.data);
	webhook_request_header(request, "ce-specversion", "1.0");
	webhook_request_header(request, "ce-source", hook->source);
	if (strcmp(op, "delete") == 0 || strncmp(op, "truncate", 8) == 0)
		webhook_request_header(request, "ce-method", "DELETE");
	if (!hook->is_outbox)
		webhook_request_header(request, "feedpub-op", op);
	if (webhook_entry_value(hook, i, WEBHOOK_MOMENT) != NULL && *webhook_entry_value(hook, i, WEBHOOK_MOMENT) == 't')
		webhook_request_header(request, "feedpub-moment", "true");
	webhook_request_header(request, "Content-Type", *data != '\0' ? "application/json" : "");

	/* a dot ends the id in what is signed */
	text.length = 0;
	webhook_event_encode(&text, id != NULL ? id : webhook_entry_value(hook, i, WEBHOOK_CURSOR), '.');
	id = base_copy(text.data);
	webhook_request_header(request, "webhook-id", id);
	snprintf(number, sizeof(number), "%" PRId64, now);
	webhook_request_header(request, "webhook-timestamp", number);
	text.length = 0;
	webhook_sign(&text, &hook->keys, id, now, data, strlen(data));
	webhook_request_header(request, "webhook-signature", text.data);
	free((char *) id);
	free(text.data);

	if (!webhook_request_send(request, data, strlen(data), answered, entry))
		return false;
	if (entry->failures == 0)
		entry->accepted = hook->accepted;
	entry->request = request;
	entry->state = ENTRY_SENT;
	hook->sink.sent++;
	return true;
}

/* Does a status say that this request is wrong, and not the receiver? */
static bool
is_about_entry(int status)
{
	return status == 400 || status == 409 || status == 411 || status == 413 || status == 415 ||
		status == 422;
}

/* Is it the first that is neither accepted nor parked? */
static bool
is_first(const Hook *hook, const HookEntry *entry)
{
	for (const HookEntry *e = hook->entries; e < entry; e++)
		if (e->state < ENTRY_ACCEPTED)
			return false;
	return true;
}

static void
answered(void *arg, const WebhookAnswer *answer)
{
	HookEntry  *entry = arg;
	Hook	   *hook = entry->hook;
	Feed	   *feed = &hook->feed;
	int			most = feed->config->attempts;
	bool		may_be_parked = strncmp(webhook_entry_value(hook, entry - hook->entries, WEBHOOK_OP), "truncate", 8) != 0;
	int64_t		now = base_now();
	int64_t		delay;

	entry->request = NULL;
	if (answer->status >= 200 && answer->status < 300)
	{
		entry->state = ENTRY_ACCEPTED;
		hook->accepted++;
		hook->sink.acknowledged++;
		feed->sent++;
		hook->pauses = 0;
		hook->is_paused = false;
		if (feed->state == FEED_RETRYING)
			feed->state = FEED_RUNNING;
		return;
	}
	hook->sink.sent--;
	entry->state = ENTRY_WAITS;
	feed->failures++;
	if (answer->status != 0)
		snprintf(entry->reason, sizeof(entry->reason), "the receiver answered with status %d", answer->status);
	else
		snprintf(entry->reason, sizeof(entry->reason), "%s", answer->problem);
	feed_report(feed, BASE_LOG_WARNING, "could not deliver: %s", entry->reason);
	delay = FIRST_DELAY << (entry->failures < 8 ? entry->failures : 8);
	entry->failures++;
	if (delay > MAX_DELAY)
		delay = MAX_DELAY;
	if (answer->retry_after > 0)
		delay = answer->retry_after * INT64_C(1000);
	entry->retry_at = now + delay;
	if (answer->status == 410 && may_be_parked)
	{
		webhook_entry_park(entry, true, 0);
		return;
	}
	if (is_about_entry(answer->status) || hook->accepted != entry->accepted ||
		(hook->pauses >= PATIENCE && is_first(hook, entry)))
	{
		entry->counted++;
		if (most > 0 && entry->counted >= most && may_be_parked)
		{
			webhook_entry_park(entry, false, answer->retry_after);
			return;
		}
		if (is_about_entry(answer->status) || hook->accepted != entry->accepted)
			return;
	}

	/* several that were in flight are one failure */
	if (now < hook->paused_until)
		return;
	delay = FIRST_DELAY << (hook->pauses < 8 ? hook->pauses++ : 8);
	if (delay > MAX_DELAY)
		delay = MAX_DELAY;
	if (answer->retry_after > 0)
		delay = answer->retry_after * INT64_C(1000);
	hook->paused_until = now + delay;
	hook->is_paused = true;
	if (feed->state == FEED_RUNNING)
		feed->state = FEED_RETRYING;
}

/* An entry is not sent any more; its reason is set. */
void
webhook_entry_park(HookEntry *entry, bool for_good, int delay)
{
	entry->state = ENTRY_PARKED;
	entry->is_for_good = for_good;
	entry->delay = delay;
	base_log(BASE_LOG_WARNING, "feed \"%s\": parks the entry with cursor %s%s: %s", entry->hook->feed.name,
			 webhook_entry_value(entry->hook, entry - entry->hook->entries, WEBHOOK_CURSOR),
			 for_good ? " for good" : "", entry->reason);
}
