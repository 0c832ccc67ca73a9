/*-------------------------------------------------------------------------
 *
 * nats_link.c
 *	  What a connection to NATS has to tell the loop, and who still has it.
 *
 * It is told under a lock, and an eventfd wakes the loop.  It is freed by the
 * last of those who have it: the sink, threads that connect or close, the
 * connection, and its subscription, each of which tells when its last callback
 * has returned.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/nats.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

void
sink_link_release(SinkLink *link)
{
	bool		is_last;

	pthread_mutex_lock(&link->lock);
	is_last = --link->refs == 0;
	pthread_mutex_unlock(&link->lock);
	if (!is_last)
		return;
	pthread_mutex_destroy(&link->lock);
	close(link->event);
	relay_config_free(link->config);
	free(link->stream);
	free(link->cursor_subject);
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
	if (link->state != SINK_LINK_FAILED)
	{
		link->state = SINK_LINK_FAILED;
		link->failure = failure;
		va_start(arguments, format);
		vsnprintf(link->message, sizeof(link->message), format, arguments);
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
