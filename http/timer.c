/*-------------------------------------------------------------------------
 *
 * timer.c
 *	  The deadlines of requests that wait.
 *
 * Deadlines are kept in a ring of slots, each of TICK ms.  One that is further
 * away than the ring is long stays in its slot for another turn.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#define TICK 250
#define SLOTS 256

static HttpRequest *slots[SLOTS];
static int64_t swept;			/* the last tick that has been swept */
static int64_t next_sweep = INT64_MAX;	/* a tick */

static void add(HttpRequest *request, int64_t tick);

static void
add(HttpRequest *request, int64_t tick)
{
	HttpRequest **slot = &slots[tick % SLOTS];

	request->slot = slot;
	request->previous_of_slot = NULL;
	request->next_of_slot = *slot;
	if (*slot != NULL)
		(*slot)->previous_of_slot = request;
	*slot = request;
	if (tick < next_sweep)
		next_sweep = tick;
}

void
http_timer_add(HttpRequest *request)
{
	int64_t		tick = request->deadline / TICK + 1;

	add(request, tick > swept ? tick : swept + 1);
}

void
http_timer_remove(HttpRequest *request)
{
	if (request->previous_of_slot != NULL)
		request->previous_of_slot->next_of_slot = request->next_of_slot;
	else
		*request->slot = request->next_of_slot;
	if (request->next_of_slot != NULL)
		request->next_of_slot->previous_of_slot = request->previous_of_slot;
	request->slot = NULL;
}

/*
 * Call a function for each request whose deadline has come.  If it returns
 * false, it is called again at the next tick, else it has removed the timer.
 * Returns in how many ms there is something to do again, -1 if there is
 * nothing.
 */
int
http_timer_sweep(bool (*due)(HttpRequest *request, void *arg), void *arg)
{
	int64_t		now = http_now();
	int64_t		last = swept;

	swept = now / TICK;
	if (last < swept - SLOTS)
		last = swept - SLOTS;
	while (last < swept)
	{
		HttpRequest *next;

		for (HttpRequest *request = slots[++last % SLOTS]; request != NULL;
			 request = next)
		{
			next = request->next_of_slot;
			if (request->deadline > now || due(request, arg))
				continue;
			http_timer_remove(request);
			add(request, swept + 1);
		}
	}

	next_sweep = INT64_MAX;
	for (int i = 1; i <= SLOTS && next_sweep == INT64_MAX; i++)
		if (slots[(swept + i) % SLOTS] != NULL)
			next_sweep = swept + i;
	return next_sweep == INT64_MAX ? -1 : next_sweep * TICK - now;
}
