/*-------------------------------------------------------------------------
 *
 * loop.c
 *	  The loop: what one thread does when a descriptor is ready, or at a time.
 *
 * A source is a descriptor with a function, and lives as long as the process:
 * an event of a descriptor that has been closed meanwhile finds its source,
 * which knows.
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

static int	poller = -1;
static BaseSource signals;
static void (*take_signal)(int number);

static void signals_ready(BaseSource *source, uint32_t events);

void
base_loop_start(void)
{
	poller = epoll_create1(EPOLL_CLOEXEC);
	if (poller < 0)
		abort();
}

/*
 * Call a function for each SIGTERM, SIGINT and SIGHUP, from the loop; SIGPIPE is
 * ignored.  Threads that are started later inherit the mask.
 */
void
base_loop_signals(void (*take)(int number))
{
	sigset_t	set;
	int			fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		abort();
	take_signal = take;
	signals.ready = signals_ready;
	base_loop_watch(&signals, fd, EPOLLIN);
}

static void
signals_ready(BaseSource *source, uint32_t events)
{
	struct signalfd_siginfo info;

	while (read(source->fd, &info, sizeof(info)) == sizeof(info))
		take_signal((int) info.ssi_signo);
}

/*
 * Call a source's function when its descriptor has one of these events; 0 for
 * none, until this is called again.  With another descriptor it forgets the one
 * before, which may be closed.
 */
void
base_loop_watch(BaseSource *source, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	if (fd == source->fd && events == source->events && source->is_watched)
		return;

	/* a descriptor that was closed has left the set by itself */
	if (source->is_watched && fd != source->fd)
		epoll_ctl(poller, EPOLL_CTL_DEL, source->fd, NULL);
	if (!source->is_watched || fd != source->fd ||
		epoll_ctl(poller, EPOLL_CTL_MOD, fd, &event) != 0)
	{
		if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0)
			abort();
	}
	source->fd = fd;
	source->events = events;
	source->is_watched = true;
}

/* The descriptor of a source is about to be closed. */
void
base_loop_forget(BaseSource *source)
{
	if (source->is_watched)
		epoll_ctl(poller, EPOLL_CTL_DEL, source->fd, NULL);
	source->is_watched = false;
}

/* Wait for events, for so many ms at most, -1 without end, and handle them. */
void
base_loop_wait(int64_t timeout)
{
	struct epoll_event events[64];
	int			count = epoll_wait(poller, events, lengthof(events),
								   timeout > 60000 ? 60000 : (int) timeout);

	for (int i = 0; i < count; i++)
	{
		BaseSource *source = events[i].data.ptr;

		if (source->is_watched)
			source->ready(source, events[i].events);
	}
}
