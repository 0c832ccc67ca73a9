/*-------------------------------------------------------------------------
 *
 * link.c
 *	  What a connection of a sink has to tell the loop, and who still has it.
 *
 * It is told under a lock, and an eventfd wakes the loop.  It is freed by the
 * last of those who have it: the sink, threads, and what calls back, each of
 * which tells when its last callback has returned.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/link.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The name of a relay, and a number that is drawn, which tells it from namesakes. */
void
sink_link_name(char *relay, size_t size, const RelayFeedConfig *config)
{
	char		host[64] = "relay";
	uint64_t	number = 0;

	gethostname(host, sizeof(host) - 1);
	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		abort();
	/* a header's value has no line break, and the number comes after a space */
	snprintf(relay, size, "%.63s", *config->name != '\0' ? config->name : host);
	for (char *c = relay; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			*c = '_';
	snprintf(relay + strlen(relay), size - strlen(relay), " %016" PRIx64, number);
}

/*
 * The name of a feed, with all but ASCII letters, digits, "-" and "_" encoded:
 * "=XX" if the escape is "=".  An escape that may be in a name is encoded too.
 */
char *
sink_link_feed(const char *feed, char escape)
{
	BaseText	name = {0};

	for (const char *c = feed; *c != '\0'; c++)
	{
		if (*c != escape && strchr("-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", *c) != NULL)
			base_text_add(&name, c, 1);
		else
			base_text_print(&name, "%c%02X", escape, (unsigned char) *c);
	}
	return name.data;
}

/* Fill a link that has one reference, its caller's. */
void
sink_link_start(SinkLink *link, int event, const RelayFeedConfig *config)
{
	pthread_mutex_init(&link->lock, NULL);
	link->refs = 1;
	link->event = dup(event);
	if (link->event < 0)
		abort();
	link->config = relay_config_copy(config);
}

/*
 * Has the last entry been sent by another relay, which may send more?  One of
 * this relay's name is this one before it was started again, unless it has sent
 * something since.
 */
bool
sink_link_is_other(const SinkLink *link, const char *sender)
{
	size_t		length = strcspn(sender, " ");

	if (strcmp(sender, link->relay) == 0)
		return false;
	return link->has_sent || strncmp(sender, link->relay, length + 1) != 0;
}

/* Wake the loop; the caller has the lock. */
void
sink_link_tell(SinkLink *link)
{
	uint64_t	one = 1;

	/* a full counter is told as well */
	if (!link->is_told && write(link->event, &one, sizeof(one)) < 0)
		abort();
	link->is_told = true;
}

/*
 * Something may have been told: take it, and keep the lock, so that the caller
 * takes what else its kind tells.  False, without the lock, if there is nothing,
 * or no link any more: what an earlier one has told is not looked at.
 */
bool
sink_link_look(SinkLink *link, int event, SinkLinkNews *news)
{
	uint64_t	count;

	if (read(event, &count, sizeof(count)) < 0 || link == NULL)
		return false;
	pthread_mutex_lock(&link->lock);
	link->is_told = false;
	*news = link->news;
	if (news->state == SINK_LINK_OPENED)
		link->news.state = SINK_LINK_OPEN;
	return true;
}

void
sink_link_release(SinkLink *link)
{
	bool		is_last;

	pthread_mutex_lock(&link->lock);
	is_last = --link->refs == 0;
	pthread_mutex_unlock(&link->lock);
	if (!is_last)
		return;
	if (link->release != NULL)
		link->release(link);
	pthread_mutex_destroy(&link->lock);
	close(link->event);
	relay_config_free(link->config);
	free(link->cursor);
	free(link->sender);
	free(link);
}

void
sink_link_retain(SinkLink *link)
{
	pthread_mutex_lock(&link->lock);
	link->refs++;
	pthread_mutex_unlock(&link->lock);
}

/* Something has failed; the first thing that has is told. */
void
sink_link_fail(SinkLink *link, SinkFailure failure, const char *format, ...)
{
	va_list		arguments;

	pthread_mutex_lock(&link->lock);
	if (link->news.state != SINK_LINK_FAILED)
	{
		link->news.state = SINK_LINK_FAILED;
		link->news.failure = failure;
		va_start(arguments, format);
		vsnprintf(link->news.message, sizeof(link->news.message), format, arguments);
		va_end(arguments);
		sink_link_tell(link);
	}
	pthread_mutex_unlock(&link->lock);
}

/* Run a function in a thread of its own, which has a reference. */
bool
sink_link_run(SinkLink *link, void *(*run)(void *) )
{
	pthread_attr_t attributes;
	pthread_t	thread;
	int			error;

	sink_link_retain(link);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	error = pthread_create(&thread, &attributes, run, link);
	pthread_attr_destroy(&attributes);
	if (error != 0)
		sink_link_release(link);
	return error == 0;
}
