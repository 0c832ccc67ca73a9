/*-------------------------------------------------------------------------
 *
 * message_id.c
 *	  The message_id of a message that is inserted without one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bswap.h"
#include "utils/timestamp.h"

#include "write/write.h"

/* Random bytes, fetched in bulk: the system call is what costs most. */
static uint8 randomness[4096];
static int	randomness_used = sizeof(randomness);

/*
 * A new message_id, a text: a UUID of version 7 (RFC 9562), so that ids of
 * neighbouring messages are neighbours in a consumer's index too.  48 bits of
 * milliseconds, 12 of their fraction, 62 of strong randomness.
 */
Datum
feedpub_message_id(void)
{
	static const char hex[] = "0123456789abcdef";
	uint8		id[16];
	uint64		now;
	uint64		micros;
	text	   *result;
	char	   *p;

	/* microseconds since 1970 */
	now = (uint64) (GetCurrentTimestamp() +
					(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY);
	micros = now % 1000;
	now = pg_hton64((now / 1000) << 16 | 0x7000 | (micros * 4096 / 1000));

	if (randomness_used + 8 > sizeof(randomness))
	{
		if (!pg_strong_random(randomness, sizeof(randomness)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
		randomness_used = 0;
	}
	memcpy(id, &now, 8);
	memcpy(id + 8, randomness + randomness_used, 8);
	randomness_used += 8;
	id[8] = (id[8] & 0x3f) | 0x80;	/* the variant */

	result = (text *) palloc(VARHDRSZ + 36);
	SET_VARSIZE(result, VARHDRSZ + 36);
	p = VARDATA(result);
	for (int i = 0; i < 16; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		*p++ = hex[id[i] >> 4];
		*p++ = hex[id[i] & 0xf];
	}
	return PointerGetDatum(result);
}
