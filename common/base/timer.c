/*-------------------------------------------------------------------------
 *
 * timer.c
 *	  What is to be done at a time.
 *
 * Timers are kept in a ring of slots, each of TICK ms.  One that is further
 * away than the ring is long stays in its slot for another turn.  A timer is
 * late by a tick at most.
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#define TICK 250
#define SLOTS 256

static BaseTimer *slots[SLOTS];
static BaseTimer *due;			/* of the sweep that runs */
static int64_t swept;			/* the last tick that has been swept */

static void
insert(BaseTimer *timer, BaseTimer **slot)
{
	timer->slot = slot;
	timer->previous = NULL;
	timer->next = *slot;
	if (*slot != NULL)
		(*slot)->previous = timer;
	*slot = timer;
}

/* Set a timer, again if it is set; its function is called once. */
void
base_timer_set(BaseTimer *timer, int64_t at)
{
	int64_t		tick = at / TICK + 1;

	base_timer_stop(timer);
	timer->at = at;
	insert(timer, &slots[(tick > swept ? tick : swept + 1) % SLOTS]);
}

void
base_timer_stop(BaseTimer *timer)
{
	if (timer->slot == NULL)
		return;
	if (timer->previous != NULL)
		timer->previous->next = timer->next;
	else
		*timer->slot = timer->next;
	if (timer->next != NULL)
		timer->next->previous = timer->previous;
	timer->slot = NULL;
}

/*
 * Call the functions of the timers that are due.  They may set and stop any
 * timer: what is due is in a list of its own, and what is set again comes into
 * a slot that is swept later.  Returns in how many ms there is something to do
 * again, -1 if there is nothing.
 */
int64_t
base_timer_sweep(void)
{
	int64_t		now = base_now();
	int64_t		last = swept;

	swept = now / TICK;
	if (last < swept - SLOTS)
		last = swept - SLOTS;
	while (last < swept)
	{
		BaseTimer  *next;

		for (BaseTimer *timer = slots[++last % SLOTS]; timer != NULL; timer = next)
		{
			next = timer->next;
			if (timer->at > now)
				continue;
			base_timer_stop(timer);
			insert(timer, &due);
		}
	}
	while (due != NULL)
	{
		BaseTimer  *timer = due;

		base_timer_stop(timer);
		timer->due(timer);
	}
	for (int i = 1; i <= SLOTS; i++)
		if (slots[(swept + i) % SLOTS] != NULL)
			return (swept + i) * TICK - now;
	return -1;
}
