/*-------------------------------------------------------------------------
 *
 * cursor.c
 *	  The cursor of the published order, as text.
 *
 * Opaque to consumers: the format's version, the epoch, the number of the
 * batch, the position in it, and the batch's fingerprint, in hexadecimal of
 * fixed width, so that cursors of one epoch sort as text in feed order:
 *
 *		01 00000001 000000000000002a 0000000000000c35 9e3779b9
 *
 * without the spaces, 50 characters.  The empty text is the beginning.
 * In a table feed the epoch has in its upper three bytes how often tombstones
 * have expired.
 *
 * Stored cursors outlive us, so the layout does not change; another one gets
 * another version.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "feedpub.h"

#define VERSION		1
#define LENGTH		FEEDPUB_CURSOR_LENGTH

static char *put_hex(char *p, uint64 value, int ndigits);
static bool get_hex(const char **p, int ndigits, uint64 *value);

/*
 * Print a cursor into a buffer of FEEDPUB_CURSOR_LENGTH bytes; no terminator.
 */
void
feedpub_cursor_print(const FeedpubCursor *cursor, char *buffer)
{
	char	   *p = buffer;

	p = put_hex(p, VERSION, 2);
	p = put_hex(p, cursor->epoch, 8);
	p = put_hex(p, (uint64) cursor->sync_id, 16);
	p = put_hex(p, (uint64) cursor->pos, 16);
	p = put_hex(p, cursor->fingerprint, 8);
	Assert(p - buffer == LENGTH);
}

/*
 * The same as a text.
 */
text *
feedpub_cursor_text(const FeedpubCursor *cursor)
{
	text	   *result = palloc(VARHDRSZ + LENGTH);

	SET_VARSIZE(result, VARHDRSZ + LENGTH);
	feedpub_cursor_print(cursor, VARDATA(result));
	return result;
}

/*
 * Read a cursor.  Raises 22023 for what is none.
 */
void
feedpub_cursor_parse(const text *input, FeedpubCursor *cursor)
{
	const char *p = VARDATA_ANY(input);
	int			length = VARSIZE_ANY_EXHDR(input);
	uint64		version = 0;
	uint64		epoch = 0;
	uint64		sync_id = 0;
	uint64		pos = 0;
	uint64		fingerprint = 0;

	MemSet(cursor, 0, sizeof(FeedpubCursor));
	cursor->epoch = FEEDPUB_EPOCH;
	if (length == 0)
		return;

	if (length != LENGTH ||
		!get_hex(&p, 2, &version) ||
		!get_hex(&p, 8, &epoch) ||
		!get_hex(&p, 16, &sync_id) ||
		!get_hex(&p, 16, &pos) ||
		!get_hex(&p, 8, &fingerprint) ||
		version != VERSION || sync_id > PG_INT64_MAX || pos > PG_INT64_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("malformed cursor: \"%s\"",
						pnstrdup(VARDATA_ANY(input),
								 pg_mbcliplen(VARDATA_ANY(input), length, 64))),
				 errhint("Use a cursor as it was handed out, or '' for the beginning.")));

	cursor->epoch = (uint32) epoch;
	cursor->sync_id = (int64) sync_id;
	cursor->pos = (int64) pos;
	cursor->fingerprint = (uint32) fingerprint;
}

/*
 * Which life of the feed, and how often tombstones had expired in it: what
 * cursors of batch 0 carry, for a batch's fingerprint is not there yet.
 */
uint32
feedpub_cursor_generation(const FeedpubFloor *floor)
{
	return murmurhash32((uint32) floor->history + (uint32) floor->expiries);
}

/*
 * The place behind batch 0, before any other batch.
 */
void
feedpub_cursor_behind_initial(FeedpubCursor *cursor, const FeedpubFloor *floor)
{
	cursor->epoch = FEEDPUB_EPOCH_WITH(floor->expiries);
	cursor->sync_id = 0;
	cursor->pos = PG_INT64_MAX;
	cursor->fingerprint = feedpub_cursor_generation(floor);
}

bool
feedpub_cursor_is_behind_initial(const FeedpubCursor *cursor)
{
	return cursor->sync_id == 0 && cursor->pos == PG_INT64_MAX;
}

/*
 * Is a cursor at a row that its batch hands out with a partition?
 */
bool
feedpub_cursor_is_in_partition(const FeedpubCursor *cursor)
{
	return cursor->sync_id > 0 && cursor->pos >= FEEDPUB_PARTITION_POS &&
		cursor->pos < PG_INT64_MAX;
}

/*
 * Is a cursor in the batch of this number and fingerprint?  In a partition it
 * carries half of that (partition.c).
 */
bool
feedpub_cursor_is_of(const FeedpubCursor *cursor, int64 sync_id,
					 uint32 fingerprint)
{
	uint32		difference = cursor->fingerprint ^ fingerprint;

	if (feedpub_cursor_is_in_partition(cursor))
		difference &= 0xffff0000;
	return cursor->sync_id == sync_id && difference == 0;
}

static char *
put_hex(char *p, uint64 value, int ndigits)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = ndigits - 1; i >= 0; i--)
	{
		p[i] = digits[value & 0xf];
		value >>= 4;
	}
	return p + ndigits;
}

static bool
get_hex(const char **p, int ndigits, uint64 *value)
{
	*value = 0;
	for (int i = 0; i < ndigits; i++)
	{
		char		c = *(*p)++;

		if (c >= '0' && c <= '9')
			*value = *value << 4 | (c - '0');
		else if (c >= 'a' && c <= 'f')
			*value = *value << 4 | (c - 'a' + 10);
		else
			return false;
	}
	return true;
}
