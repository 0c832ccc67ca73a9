/*-------------------------------------------------------------------------
 *
 * backoff.c
 *	  After how long an entry that has failed is delivered again.
 *
 * A subscription's backoff is an array of intervals: for the first failure of
 * an entry, the second, and so on; the last is for all that follow.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/timestamp.h"

#include "subscription/subscription.h"

/* the delay of a subscription without a backoff, in us */
#define DEFAULT_DELAY	(10 * USECS_PER_SEC)

/* how many delays a backoff may have */
#define MAX_DELAYS		100

static Datum *get_delays(ArrayType *backoff, int *ndelays);

/*
 * Check the argument "backoff".
 */
void
feedpub_backoff_check(ArrayType *backoff)
{
	Datum	   *delays;
	int			ndelays = ArrayGetNItems(ARR_NDIM(backoff), ARR_DIMS(backoff));

	if (ARR_NDIM(backoff) != 1 || ndelays > MAX_DELAYS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"backoff\" must be a one-dimensional array of 1 to %d intervals",
						MAX_DELAYS)));
	if (array_contains_nulls(backoff))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"backoff\" must not contain null values")));
	delays = get_delays(backoff, &ndelays);
	for (int i = 0; i < ndelays; i++)
	{
		if (feedpub_argument_ms(DatumGetIntervalP(delays[i])) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"backoff\" must not contain negative intervals")));
	}
}

/*
 * When an entry that fails now is delivered again, an element for each failure:
 * after a delay, or, if that is NULL, as the backoff says, which may be NULL.
 */
Datum
feedpub_backoff_times(ArrayType *backoff, Interval *delay)
{
	TimestampTz now = GetCurrentTimestamp();
	Interval	default_delay = {.time = DEFAULT_DELAY};
	Datum		one = IntervalPGetDatum(delay != NULL ? delay : &default_delay);
	Datum	   *delays = &one;
	int			ndelays = 1;

	if (delay == NULL && backoff != NULL)
		delays = get_delays(backoff, &ndelays);
	for (int i = 0; i < ndelays; i++)
	{
		int64		ms = feedpub_argument_ms(DatumGetIntervalP(delays[i]));

		delays[i] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, ms));
	}
	return PointerGetDatum(construct_array(delays, ndelays, TIMESTAMPTZOID, sizeof(TimestampTz),
										   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

static Datum *
get_delays(ArrayType *backoff, int *ndelays)
{
	Datum	   *delays;

	deconstruct_array(backoff, INTERVALOID, sizeof(Interval), false,
					  TYPALIGN_DOUBLE, &delays, NULL, ndelays);
	return delays;
}
