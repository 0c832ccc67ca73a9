/*-------------------------------------------------------------------------
 *
 * runner.c
 *	  Runs feeds: gives what the reader of a feed has to its sink.
 *
 * A feed is opening, runs, waits before another attempt, is fenced, or is
 * stopped: then somebody has to do something, and the other feeds go on.
 *
 * How far a feed is, its sink says when it is opened (sink.h); nothing else is
 * believed after a failure.
 *
 * Fenced: the sink's last entry is another relay's, so this one waits.  It looks
 * at the sink from time to time.  If the feed has an entry after the last one of
 * the sink, and the sink has got none for --takeover seconds, the other relay is
 * taken for gone, and this one takes its place.  If that is wrong, nothing
 * bad happens: the sink keeps the two apart, and the other one is fenced now.  A
 * relay that is started again by the same name does not wait.
 *
 *-------------------------------------------------------------------------
 */
#include "feed/feed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ms */
#define FIRST_DELAY 250
#define MAX_DELAY 30000
#define LOOK_INTERVAL 1000
#define READ_RETRY 1000
#define MAX_READ_RETRY 30000

/* entries that are sent before other feeds have their turn */
#define TURN 1000

static const char *const state_names[] = {"opening", "fenced", "running",
										  "retrying", "stopped", "ended"};

static Feed *feeds;
static bool ending;
static const FeedRunner *runners[4];	/* the first that are set */

static const FeedRunner *find_runner(const RelayFeedConfig *config);
static bool check_feed(const RelayFeedConfig *config);
static void start_feed(Feed *feed, const RelayFeedConfig *config);
static void open_again(BaseTimer *timer);
static void open_sink(Feed *feed, SinkOpen how);
static void opened(Sink *sink, const SinkEnd *end);
static bool is_fenced(Feed *feed, const SinkEnd *end);
static void acknowledged(Sink *sink);
static void failed(Sink *sink, SinkFailure failure, const char *message);
static void retry(Feed *feed, int64_t delay);
static void judge_reader(Feed *feed, int64_t now);
static bool send_entries(Feed *feed);
static void tell(Feed *feed, int64_t now);
static void end_if_idle(Feed *feed);
static void news(Oid relid);
static void news_of_all(void);
static void lost(void);

static const SinkOwner owner = {opened, acknowledged, failed};
static const DbHearer hearer = {news, news_of_all, lost};

const Feed *
feed_first(void)
{
	return feeds;
}

const char *
feed_state_name(const Feed *feed)
{
	return state_names[feed->state];
}

/* Let a runner have the feeds with URLs of its schemes. */
void
feed_add_runner(const FeedRunner *runner)
{
	int			n = 0;

	while (runners[n] != NULL)
		n++;
	runners[n] = runner;
}

/* The runner of a feed's settings; NULL: it is read by cursor. */
static const FeedRunner *
find_runner(const RelayFeedConfig *config)
{
	for (int i = 0; runners[i] != NULL; i++)
		if (sink_has_scheme(runners[i]->schemes, config->to))
			return runners[i];
	return NULL;
}

/* Are the settings of a feed right?  If not, that has been logged. */
static bool
check_feed(const RelayFeedConfig *config)
{
	const FeedRunner *runner = find_runner(config);

	return runner != NULL ? runner->check(config) : sink_find(config) != NULL;
}

/* Start all feeds; false if the settings of one are wrong, as logged. */
bool
feed_start(void)
{
	const RelayConfig *config = relay_config();

	for (int i = 0; i < config->nfeeds; i++)
		if (!check_feed(config->feeds[i]))
			return false;
	db_listener_start(&hearer);
	return feed_reload();
}

/*
 * Take the settings: start what is new or was stopped, and what has other
 * settings once more, and stop what is gone.
 */
bool
feed_reload(void)
{
	const RelayConfig *config = relay_config();
	bool		good = true;

	for (Feed *feed = feeds; feed != NULL; feed = feed->next)
		if (!feed->is_removed && relay_config_feed(feed->name) == NULL)
		{
			feed_report(feed, BASE_LOG_INFO, "is not relayed any more");
			feed_stop(feed, FEED_ENDED);
			feed->is_removed = true;
		}
	for (int i = 0; i < config->nfeeds; i++)
	{
		Feed	   *feed = feeds;

		while (feed != NULL && strcmp(feed->name, config->feeds[i]->section) != 0)
			feed = feed->next;
		if (feed != NULL && !feed->is_removed && feed->state != FEED_STOPPED &&
			relay_config_equal(feed->config, config->feeds[i]))
		{
			if (feed->runner != NULL)
				feed->runner->reload(feed);
			continue;
		}
		if (!check_feed(config->feeds[i]))
		{
			good = false;
			continue;
		}
		if (feed != NULL)
			feed_stop(feed, FEED_ENDED);
		if (feed != NULL && feed->runner != find_runner(config->feeds[i]))
		{
			/* its name is that of no other feed, so it is not found again */
			*feed->name = '\0';
			feed->is_removed = true;
			feed = NULL;
		}
		if (feed == NULL)
		{
			const FeedRunner *runner = find_runner(config->feeds[i]);

			feed = runner != NULL ? runner->make() : base_alloc(sizeof(Feed));
			feed->runner = runner;
			feed->name = base_copy(config->feeds[i]->section);
			feed->next = feeds;
			feeds = feed;
		}
		start_feed(feed, config->feeds[i]);
	}
	return good;
}

static void
start_feed(Feed *feed, const RelayFeedConfig *config)
{
	const SinkKind *kind = feed->runner == NULL ? sink_find(config) : NULL;

	relay_config_free(feed->config);
	feed->config = relay_config_copy(config);
	if (feed->runner != NULL)
	{
		feed->is_removed = false;
		feed->is_ending = false;
		feed->problem[0] = '\0';
		feed->state = FEED_OPENING;
		feed->runner->start(feed);
		return;
	}
	if (feed->sink == NULL || feed->sink->kind != kind)
	{
		feed->sink = kind->make();
		feed->sink->owner = &owner;
		feed->sink->feed = feed;
	}
	feed->sink->config = feed->config;
	feed->timer.due = open_again;
	feed->is_removed = false;
	feed->is_ending = false;
	feed->delay = FIRST_DELAY;
	feed->problem[0] = '\0';
	feed->fenced_at = 0;
	feed->idle_since = 0;
	feed_reader_start(&feed->reader, feed->config);
	open_sink(feed, relay_config()->check ? SINK_LOOK : SINK_FIRST);
}

void
feed_stop(Feed *feed, FeedState state)
{
	feed->state = state;
	if (feed->runner != NULL)
	{
		feed->runner->stop(feed);
		return;
	}
	base_timer_stop(&feed->timer);
	feed->sink->kind->close(feed->sink);
	feed_reader_stop(&feed->reader);
}

static void
open_again(BaseTimer *timer)
{
	open_sink((Feed *) ((char *) timer - offsetof(Feed, timer)), SINK_AGAIN);
}

static void
open_sink(Feed *feed, SinkOpen how)
{
	if (feed->state != FEED_FENCED)
		feed->state = FEED_OPENING;
	feed->counted = 0;
	feed->sink->kind->open(feed->sink, how);
}

/* Log something of a feed, if it is not what was logged last. */
void
feed_report(Feed *feed, BaseLogLevel level, const char *format, ...)
{
	char		message[sizeof(feed->problem)];
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	if (strcmp(message, feed->problem) == 0)
		return;
	strcpy(feed->problem, message);
	base_log(level, "feed \"%s\": %s", feed->name, message);
}

/* The sink is open: go on after what it has. */
static void
opened(Sink *sink, const SinkEnd *end)
{
	Feed	   *feed = sink->feed;
	const char *from = *feed->config->from != '\0' ? feed->config->from : "earliest";

	if (end->other != NULL && !relay_config()->check && is_fenced(feed, end))
	{
		sink->kind->close(sink);
		base_timer_set(&feed->timer, base_now() + LOOK_INTERVAL);
		return;
	}
	feed_reader_begin(&feed->reader, end->cursor != NULL ? end->cursor : from,
					  end->cursor == NULL);
	if (feed->state == FEED_FENCED)
		feed_report(feed, BASE_LOG_WARNING, "takes over from relay \"%s\" at sequence %llu",
					end->other, (unsigned long long) end->sequence);
	else
		feed_report(feed, BASE_LOG_INFO, end->cursor != NULL ? "goes on after sequence %llu, cursor %s" : "begins after sequence %llu at %s",
					(unsigned long long) end->sequence, end->cursor != NULL ? end->cursor : from);
	feed->state = FEED_RUNNING;
	feed->told_at = 0;
	feed->idle_since = 0;
	feed->fenced_at = 0;
}

/* Is it to wait, because another relay sends? */
static bool
is_fenced(Feed *feed, const SinkEnd *end)
{
	int64_t		now = base_now();

	if (feed->state != FEED_FENCED)
		feed_report(feed, BASE_LOG_WARNING, "is fenced: relay \"%s\" sends; it waits until that one has "
											"left work undone for %d s",
					end->other, feed->config->takeover);
	if (feed->state != FEED_FENCED || end->sequence != feed->fenced_at)
	{
		feed->state = FEED_FENCED;
		feed->fenced_at = end->sequence;
		feed->idle_since = 0;
		/* another relay may have committed nothing but its name */
		feed_reader_begin(&feed->reader, end->cursor != NULL ? end->cursor : "earliest", end->cursor == NULL);
	}
	else if (feed->idle_since == 0 && feed_reader_entry(&feed->reader) != NULL)
		feed->idle_since = now;
	return feed->idle_since == 0 || now - feed->idle_since < feed->config->takeover * INT64_C(1000);
}

static void
acknowledged(Sink *sink)
{
	Feed	   *feed = sink->feed;

	feed->sent += sink->acknowledged - feed->counted;
	if (sink->acknowledged > feed->counted)
	{
		feed->delay = FIRST_DELAY;
		feed->reader.latest[0] = '\0';
	}
	feed->counted = sink->acknowledged;
}

static void
failed(Sink *sink, SinkFailure failure, const char *message)
{
	Feed	   *feed = sink->feed;
	bool		progress = sink->acknowledged > 0;

	feed->failures++;
	if (failure == SINK_STOP || relay_config()->check)
	{
		feed_report(feed, BASE_LOG_ERROR, "stopped: %s", message);
		feed_stop(feed, FEED_STOPPED);
		return;
	}
	feed_report(feed, BASE_LOG_WARNING, "%s", message);
	sink->kind->close(sink);
	retry(feed, failure == SINK_RETRY_NOW && progress ? 0 : feed->delay);
}

/* Open the sink after a time, which grows. */
static void
retry(Feed *feed, int64_t delay)
{
	if (feed->state != FEED_FENCED)
		feed->state = FEED_RETRYING;
	base_timer_set(&feed->timer, base_now() + delay);
	if (delay > 0)
		feed->delay = feed->delay * 2 < MAX_DELAY ? feed->delay * 2 : MAX_DELAY;
}

/*
 * Reading has failed.  Some errors do not go away by themselves, and going on
 * elsewhere would skip entries; others may.
 */
static void
judge_reader(Feed *feed, int64_t now)
{
	FeedReader *reader = &feed->reader;
	const char *advice = NULL;

	if (strcmp(reader->sqlstate, "PF001") == 0)
		advice = "the feed's history is not that of the sink's last entry: begin again, in another "
				 "stream or topic, or in this one after it was deleted, with consumers that know of it";
	else if (strcmp(reader->sqlstate, "PF002") == 0)
		advice = "entries after the sink's last one have been removed by retention, so consumers would "
				 "miss them: begin again, in another stream or topic, or in this one after it was deleted";
	else if (strcmp(reader->sqlstate, "22023") == 0 || strcmp(reader->sqlstate, "0A000") == 0 ||
			 strcmp(reader->sqlstate, "42809") == 0 || strcmp(reader->sqlstate, "22P02") == 0)
		advice = "see --feed, --from and --types";
	else if (relay_config()->check)
		advice = "it cannot be read now";
	feed->failures++;
	if (advice != NULL)
	{
		feed_report(feed, BASE_LOG_ERROR, "stopped: %s (%s); %s", reader->message, reader->sqlstate, advice);
		feed_stop(feed, FEED_STOPPED);
		return;
	}
	feed_report(feed, BASE_LOG_WARNING, "could not read: %s%s%s%s", reader->message,
				reader->sqlstate[0] != '\0' ? " (" : "", reader->sqlstate, reader->sqlstate[0] != '\0' ? ")" : "");
	reader->has_failed = false;
	reader->retry_at = now + READ_RETRY;
}

/* Send what there is.  Returns whether there may be more at once. */
static bool
send_entries(Feed *feed)
{
	Sink	   *sink = feed->sink;
	const SinkEntry *entry;

	for (int i = 0; i < TURN; i++)
	{
		entry = feed_reader_entry(&feed->reader);
		if (entry == NULL)
			break;
		switch (sink->kind->send(sink, entry))
		{
			case SINK_SENT:
				feed_reader_take(&feed->reader);
				continue;
			case SINK_REFUSED:
				/* what is before it is taken first */
				if (sink->acknowledged < sink->sent)
					return false;
				feed_report(feed, BASE_LOG_ERROR, "stopped: the entry with cursor %s cannot be sent: %s; make it "
												  "possible, or set --errors-to",
							entry->cursor, sink->refusal);
				feed_stop(feed, FEED_STOPPED);
				return false;
			case SINK_FULL:
			case SINK_BROKEN:
				return false;
		}
	}
	if (entry == NULL && sink->kind->flush != NULL)
		sink->kind->flush(sink);
	return entry != NULL;
}

/*
 * What is left has been counted.  Log it if, at the rate since the last count
 * before which something was sent, it takes longer than until the next one.
 */
static void
tell(Feed *feed, int64_t now)
{
	int64_t		ms = now - feed->told_at;
	uint64_t	sent = feed->sent - feed->told;
	int64_t		left = feed->reader.left;

	feed->reader.has_counted = false;
	if (feed->told_at > 0 && ms > 0 && left > 0 && (uint64_t) left > sent)
	{
		int64_t		rate = sent * 1000 / ms;
		int64_t		seconds = rate > 0 ? left / rate : 0;

		if (sent == 0)
			base_log(BASE_LOG_INFO, "feed \"%s\": has sent nothing for %lld s, and about %lld entries are left",
					 feed->name, (long long) (ms + 500) / 1000, (long long) left);
		else
			base_log(BASE_LOG_INFO, "feed \"%s\": has sent %llu entries, %lld a second, and about %lld are left, for %lld:%02lld:%02lld",
					 feed->name, (unsigned long long) feed->sent, (long long) rate, (long long) left,
					 (long long) seconds / 3600, (long long) seconds / 60 % 60, (long long) seconds % 60);
	}
	if (feed->told_at > 0 && sent == 0)
		return;
	feed->told_at = now;
	feed->told = feed->sent;
}

/* If all that was read is in the sink, have that kept, and end if it is to. */
static void
end_if_idle(Feed *feed)
{
	Sink	   *sink = feed->sink;
	bool		ends = feed->is_ending || relay_config()->once;

	if (sink->acknowledged < sink->sent ||
		!(feed->is_ending || feed_reader_at_end(&feed->reader)))
		return;
	if (sink->kind->is_idle != NULL && feed->reader.position[0] != '\0' && !sink->kind->is_idle(sink, feed->reader.position, ends))
		return;
	if (ends)
		feed_stop(feed, FEED_ENDED);
}

/* One round.  Returns when to be called again. */
int64_t
feed_work(int64_t now)
{
	int64_t		next = db_listener_sweep(now);

	for (Feed *feed = feeds; feed != NULL; feed = feed->next)
	{
		int64_t		at;

		if (feed->state == FEED_STOPPED || feed->state == FEED_ENDED)
			continue;
		if (feed->runner != NULL)
		{
			at = feed->runner->work(feed, now);
			if (at < next)
				next = at;
			continue;
		}
		if (feed->reader.has_failed)
			judge_reader(feed, now);
		if (feed->state == FEED_RUNNING && relay_config()->check)
		{
			if (feed_reader_entry(&feed->reader) != NULL || feed_reader_at_end(&feed->reader))
			{
				feed_report(feed, BASE_LOG_INFO, "can be read, and its sink is there");
				feed_stop(feed, FEED_ENDED);
			}
		}
		else if (feed->state == FEED_RUNNING)
		{
			if (feed_reader_at_end(&feed->reader))
				feed->told_at = feed->reader.left = 0;
			else if (feed->reader.has_counted)
				tell(feed, now);
			/* what was sent is to be acknowledged, though nothing follows it */
			if (feed->is_ending && feed->sink->kind->flush != NULL)
				feed->sink->kind->flush(feed->sink);
			else if (!feed->is_ending && send_entries(feed))
				next = now;
			if (feed->state == FEED_RUNNING)
				end_if_idle(feed);
		}
		else if (feed->is_ending)
			feed_stop(feed, FEED_ENDED);
		if (feed->state == FEED_STOPPED || feed->state == FEED_ENDED)
			continue;
		at = feed_reader_sweep(&feed->reader, now);
		if (at < next)
			next = at;
	}
	return next;
}

/* Send nothing more, and end when what was sent is acknowledged. */
void
feed_end(void)
{
	ending = true;
	for (Feed *feed = feeds; feed != NULL; feed = feed->next)
		feed->is_ending = true;
}

/* Have all feeds ended, or been stopped?  Then that is how the process ends. */
bool
feed_all_ended(int *status)
{
	*status = 0;
	for (Feed *feed = feeds; feed != NULL; feed = feed->next)
	{
		if (feed->state == FEED_STOPPED)
			*status = 1;
		else if (feed->state != FEED_ENDED)
			return false;
	}
	return true;
}

static void
news(Oid relid)
{
	for (Feed *feed = feeds; feed != NULL; feed = feed->next)
		if (feed->runner != NULL)
			feed->runner->news(feed, relid, false);
		else if (feed->reader.feed == relid || feed->reader.feed == InvalidOid)
			feed_reader_wake(&feed->reader, false);
}

static void
news_of_all(void)
{
	for (Feed *feed = feeds; feed != NULL; feed = feed->next)
		if (feed->runner != NULL)
			feed->runner->news(feed, InvalidOid, true);
		else
			feed_reader_wake(&feed->reader, true);
}

/* The listener is there again soon, and then there is news of all. */
static void
lost(void)
{
}
