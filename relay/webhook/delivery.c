/*-------------------------------------------------------------------------
 *
 * delivery.c
 *	  Sends the entries of a page, until each is accepted or parked.
 *
 * Order.  Of one key one request is in flight, and the next entry is sent when
 * the one before it was accepted or parked.  A TRUNCATE comes alone.  The next page
 * is polled when all of this one is done, so no key is in two pages.
 *
 * An entry that could not be made has no data, and perhaps no key.  When all that
 * is before it is done, it is parked, and all that is after it goes on.  So it is
 * not skipped: the acknowledgement that passes it has it in the table of parked
 * entries, where somebody decides what comes of it, as of one that the receiver
 * cannot take.  To stop there instead would make one bad row hold up all receivers
 * for as long as nobody comes.  If the order matters more, --attempts=0 parks
 * nothing, and the feed stops there.
 *
 * What is not accepted is sent again, after a delay that grows or that the
 * receiver names, and its key waits.  Two things can be the reason, and they look
 * the same: the receiver does not work, or it cannot take this entry.  If it does
 * not work, to park one entry after the other would move the backlog into the
 * table of parked entries, without its order; so an attempt counts only if the
 * receiver accepted another entry since it was first given this one, or if its
 * status says that the request is wrong.  Else all entries wait, and so they do if
 * there were too many requests, which says nothing about an entry.  But a page can
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

static bool is_alone(const Hook *hook, int i);
static bool is_turn(const Hook *hook, int i);
static void end_entry(HookEntry *entry, const char *error);
static void park(HookEntry *entry, bool for_good, int delay);
static int64_t delay_after(int failures);
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
		const char *error = webhook_entry_value(hook, i, WEBHOOK_ERROR);

		if (hook->sink.sent - hook->sink.acknowledged >= (uint64_t) hook->feed.config->requests)
			return;
		if (entry->state != ENTRY_WAITS || now < entry->retry_at || !is_turn(hook, i))
			continue;
		if (error != NULL)
			end_entry(entry, error);
		if (hook->feed.state == FEED_STOPPED || (error == NULL && !send_entry(entry)))
			return;
	}
}

/* Has it no key with which it could be told apart? */
static bool
is_alone(const Hook *hook, int i)
{
	return strncmp(webhook_entry_value(hook, i, WEBHOOK_OP), "truncate", 8) == 0 ||
		webhook_entry_value(hook, i, WEBHOOK_ERROR) != NULL;
}

/* Has all that an entry must come after been accepted, or parked? */
static bool
is_turn(const Hook *hook, int i)
{
	for (int j = hook->acknowledged; j < i; j++)
	{
		if (hook->entries[j].state >= ENTRY_ACCEPTED)
			continue;
		if (is_alone(hook, i) || is_alone(hook, j))
			return false;
		for (WebhookColumn a = WEBHOOK_ORDER; a <= WEBHOOK_ORDER_TOO; a++)
			for (WebhookColumn b = WEBHOOK_ORDER; b <= WEBHOOK_ORDER_TOO; b++)
				if (webhook_entry_value(hook, i, a) != NULL && webhook_entry_value(hook, j, b) != NULL &&
					strcmp(webhook_entry_value(hook, i, a), webhook_entry_value(hook, j, b)) == 0)
					return false;
	}
	return true;
}

/*
 * What becomes of an entry that could not be made.  Before the feed stops, what is
 * before the entry is acknowledged.
 */
static void
end_entry(HookEntry *entry, const char *error)
{
	Hook	   *hook = entry->hook;
	int			i = entry - hook->entries;

	snprintf(entry->reason, sizeof(entry->reason), "%s", error);
	if (hook->feed.config->attempts > 0)
		park(entry, true, 0);
	else if (hook->acknowledged == i)
	{
		feed_report(&hook->feed, BASE_LOG_ERROR,
					"stopped: the entry with cursor %s cannot be sent: %s; make it possible, or set "
					"--attempts to have it parked",
					webhook_entry_value(hook, i, WEBHOOK_CURSOR), entry->reason);
		feed_stop(&hook->feed, FEED_STOPPED);
	}
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
		status == 422 || status == 431;
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
	bool		may_be_parked = most > 0 && !is_alone(hook, entry - hook->entries);
	bool		is_about_it;
	int64_t		now = base_now();
	int64_t		until;

	entry->request = NULL;
	if (answer->status >= 200 && answer->status < 300)
	{
		entry->state = ENTRY_ACCEPTED;
		hook->accepted++;
		hook->sink.acknowledged++;
		feed->sent++;
		if (hook->pauses > 0)
		{
			feed_report(feed, BASE_LOG_INFO, "delivers again");
			feed->state = FEED_RUNNING;
			hook->pauses = 0;
		}
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
	until = now + (answer->retry_after > 0 ? answer->retry_after * INT64_C(1000) : delay_after(entry->failures));
	entry->failures++;
	entry->retry_at = until;
	if (answer->status == 410 && may_be_parked)
	{
		park(entry, true, 0);
		return;
	}
	is_about_it = is_about_entry(answer->status) || hook->accepted != entry->accepted;
	if (answer->status != 429 && (is_about_it || (hook->pauses >= PATIENCE && is_first(hook, entry))))
	{
		entry->counted++;
		if (entry->counted >= most && may_be_parked)
			park(entry, false, answer->retry_after);
		if (entry->state == ENTRY_PARKED || is_about_it)
			return;
	}

	/* several that were in flight are one failure */
	if (now >= hook->paused_until)
		hook->pauses++;
	else if (answer->retry_after == 0)
		return;
	if (answer->retry_after == 0)
		until = now + delay_after(hook->pauses - 1);
	if (until > hook->paused_until)
		hook->paused_until = until;
	if (feed->state == FEED_RUNNING)
		feed->state = FEED_RETRYING;
}

static int64_t
delay_after(int failures)
{
	int64_t		delay = FIRST_DELAY << (failures < 8 ? failures : 8);

	return delay < MAX_DELAY ? delay : MAX_DELAY;
}

/* An entry is not sent any more; its reason is set. */
static void
park(HookEntry *entry, bool for_good, int delay)
{
	entry->hook->feed.parked++;
	entry->state = ENTRY_PARKED;
	entry->is_for_good = for_good;
	entry->delay = delay;
	base_log(BASE_LOG_WARNING, "feed \"%s\": parks the entry with cursor %s%s: %s", entry->hook->feed.name,
			 webhook_entry_value(entry->hook, entry - entry->hook->entries, WEBHOOK_CURSOR),
			 for_good ? " for good" : "", entry->reason);
}
