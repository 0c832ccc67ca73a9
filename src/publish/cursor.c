/*-------------------------------------------------------------------------
 * cursor.c
 *	  The cursor of published order, as text.
 *
 * It is opaque to consumers: lower-case hexadecimal of fixed width, 99
 * characters, without the spaces below.  Cursors of one history sort as text
 * (COLLATE "C") in feed order.
 *
 *		1			version
 *		5be1d0c7	history: the feed's random number
 *		b			kind: a = in the initial snapshot, b = in a batch
 *		000000000000002a	number of the batch; kind a: which table it is in,
 *							0 if the feed is one table
 *		0000000000000c35	position in it; kind a: a row identifier
 *		0			1 if the batch is one that others were merged into
 *		9e3779b9	fingerprint of the batch; kind a: of the table's file
 *		00...		id of the server start that made the cursor
 *					(server_start.c)
 *		000000000000002b	base: see feedpub_page_check_floor()
 *		00...		zero, or a number of a batch, see below
 *
 * A cursor of a page of a table feed has 205 characters: it goes on with its
 * fallback (read/page_proof.c).
 *
 *		00...		the proof: number of a batch (above), next xid, seed
 *		a000...		where it goes back to: kind, number, position, 1 if merged,
 *					fingerprint
 *		00...		the proof of that: number of a batch, next xid, seed
 *
 * The empty text is the beginning.  Nothing is hidden in high bits, and no SQL
 * takes the text apart: SQL that compares cursors calls _cursor_compare().
 *
 * Stored cursors live longer than this version, so the layout does not change.
 * Another layout gets another version number.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "publish/publish.h"

PG_FUNCTION_INFO_V1(feedpub_cursor_compare_texts);
PG_FUNCTION_INFO_V1(feedpub_cursor_moves_texts);

#define VERSION			1
#define KIND_INITIAL	'a'
#define KIND_BATCH		'b'
#define LENGTH			FEEDPUB_CURSOR_LENGTH

static char *put_hex(char *p, uint64 value, int ndigits);
static bool get_hex(const char **p, int ndigits, uint64 *value);
static char *put_position(char *p, const FeedpubPosition *position);
static char *put_proof(char *p, const FeedpubProof *proof);
static bool get_fields(const char *p, FeedpubCursor *cursor, FeedpubFallback *fallback);
static bool get_position(const char **p, FeedpubPosition *position);
static bool get_proof(const char **p, FeedpubProof *proof);

/*
 * Print a cursor into a buffer of FEEDPUB_CURSOR_MAX_LENGTH bytes; no
 * terminator.  Returns its length.
 */
int
feedpub_cursor_print(const FeedpubCursor *cursor, char *buffer)
{
	const FeedpubFallback *fallback = cursor->fallback;
	FeedpubPosition position = feedpub_cursor_position(cursor);
	char	   *p = buffer;

	p = put_hex(p, VERSION, 1);
	p = put_hex(p, cursor->history, 8);
	p = put_position(p, &position);
	p = put_hex(p, cursor->server_start, 16);
	p = put_hex(p, (uint64) cursor->base, 16);
	if (fallback == NULL)
		return put_hex(p, 0, 16) - buffer;
	p = put_proof(p, &fallback->proof);
	p = put_position(p, &fallback->back);
	p = put_proof(p, &fallback->back_proof);
	Assert(p - buffer == FEEDPUB_CURSOR_MAX_LENGTH);
	return p - buffer;
}

/*
 * Its position, without what is only in a cursor.
 */
FeedpubPosition
feedpub_cursor_position(const FeedpubCursor *cursor)
{
	return (FeedpubPosition){
		.initial = cursor->initial,
		.merged = cursor->merged,
		.sync_id = cursor->sync_id,
		.pos = cursor->pos,
		.fingerprint = cursor->fingerprint,
	};
}

void
feedpub_cursor_set_position(FeedpubCursor *cursor, const FeedpubPosition *position)
{
	cursor->initial = position->initial;
	cursor->merged = position->merged;
	cursor->sync_id = position->sync_id;
	cursor->pos = position->pos;
	cursor->fingerprint = position->fingerprint;
}

static char *
put_position(char *p, const FeedpubPosition *position)
{
	*p++ = position->initial ? KIND_INITIAL : KIND_BATCH;
	p = put_hex(p, (uint64) position->sync_id, 16);
	p = put_hex(p, (uint64) position->pos, 16);
	p = put_hex(p, position->merged, 1);
	return put_hex(p, position->fingerprint, 8);
}

static char *
put_proof(char *p, const FeedpubProof *proof)
{
	p = put_hex(p, (uint64) proof->batch, 16);
	p = put_hex(p, proof->next_xid, 16);
	return put_hex(p, proof->seed, 8);
}

/*
 * The same as a text.
 */
text *
feedpub_cursor_text(const FeedpubCursor *cursor)
{
	text	   *result = palloc(VARHDRSZ + FEEDPUB_CURSOR_MAX_LENGTH);

	SET_VARSIZE(result, VARHDRSZ + feedpub_cursor_print(cursor, VARDATA(result)));
	return result;
}

/*
 * Read a cursor.  Raises 22023 if the text is none.
 */
void
feedpub_cursor_parse(const text *input, FeedpubCursor *cursor)
{
	const char *p = VARDATA_ANY(input);
	int			length = VARSIZE_ANY_EXHDR(input);
	FeedpubFallback *fallback = NULL;

	MemSet(cursor, 0, sizeof(FeedpubCursor));
	cursor->initial = true;
	if (length == 0)
		return;
	if (length == FEEDPUB_CURSOR_MAX_LENGTH)
		fallback = palloc0_object(FeedpubFallback);
	if ((length != LENGTH && fallback == NULL) || !get_fields(p, cursor, fallback))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("malformed cursor: \"%s\"",
						pnstrdup(p, pg_mbcliplen(p, length, LENGTH))),
				 errhint("Use a cursor as it was delivered, or '' for the beginning.")));
	cursor->given = true;
}

static bool
get_fields(const char *p, FeedpubCursor *cursor, FeedpubFallback *fallback)
{
	FeedpubPosition position;
	uint64		version;
	uint64		history;
	uint64		base;
	uint64		reserved;

	if (!get_hex(&p, 1, &version) || version != VERSION ||
		!get_hex(&p, 8, &history) ||
		!get_position(&p, &position) ||
		!get_hex(&p, 16, &cursor->server_start) ||
		!get_hex(&p, 16, &base) || base > PG_INT64_MAX)
		return false;
	feedpub_cursor_set_position(cursor, &position);
	cursor->history = (uint32) history;
	cursor->base = (int64) base;
	cursor->fallback = fallback;

	/* a long cursor that has been cut is none: it would be taken as it is */
	if (fallback == NULL)
		return get_hex(&p, 16, &reserved) && reserved == 0;
	return get_proof(&p, &fallback->proof) &&
		get_position(&p, &fallback->back) &&
		get_proof(&p, &fallback->back_proof);
}

static bool
get_position(const char **p, FeedpubPosition *position)
{
	uint64		sync_id;
	uint64		pos;
	uint64		merged;
	uint64		fingerprint;

	if (**p != KIND_INITIAL && **p != KIND_BATCH)
		return false;
	position->initial = *(*p)++ == KIND_INITIAL;
	if (!get_hex(p, 16, &sync_id) || sync_id > PG_INT64_MAX ||
		!get_hex(p, 16, &pos) || pos > PG_INT64_MAX ||
		!get_hex(p, 1, &merged) || merged > 1 ||
		!get_hex(p, 8, &fingerprint))
		return false;
	position->sync_id = (int64) sync_id;
	position->pos = (int64) pos;
	position->merged = merged == 1;
	position->fingerprint = (uint32) fingerprint;
	return true;
}

static bool
get_proof(const char **p, FeedpubProof *proof)
{
	uint64		batch;
	uint64		seed;

	if (!get_hex(p, 16, &batch) || batch > PG_INT64_MAX ||
		!get_hex(p, 16, &proof->next_xid) ||
		!get_hex(p, 8, &seed))
		return false;
	proof->batch = (int64) batch;
	proof->seed = (uint32) seed;
	return true;
}

/*
 * The number of the batch that a cursor is in; 0 if it is before the first
 * one.
 */
int64
feedpub_cursor_batch(const FeedpubCursor *cursor)
{
	return cursor->initial ? 0 : cursor->sync_id;
}

/*
 * Compare two cursors of one history by their positions: < 0 if a comes before
 * b.  The beginning comes before all others.
 */
int
feedpub_cursor_compare(const FeedpubCursor *a, const FeedpubCursor *b)
{
	if (a->given != b->given)
		return a->given ? 1 : -1;
	if (a->initial != b->initial)
		return a->initial ? -1 : 1;
	if (a->sync_id != b->sync_id)
		return a->sync_id < b->sync_id ? -1 : 1;
	if (a->pos != b->pos)
		return a->pos < b->pos ? -1 : 1;
	return 0;
}

/*
 * feedpub._cursor_compare(a text, b text) returns integer, IMMUTABLE
 *
 * The same for SQL: -1, 0 or 1.  Error: 22023 if a text is no cursor.
 */
Datum
feedpub_cursor_compare_texts(PG_FUNCTION_ARGS)
{
	FeedpubCursor a;
	FeedpubCursor b;

	feedpub_cursor_parse(PG_GETARG_TEXT_PP(0), &a);
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &b);
	PG_RETURN_INT32(feedpub_cursor_compare(&a, &b));
}

/*
 * If the committed cursor of a subscription is a, does it go forward when it
 * moves to b?  It does if b is after a.  While rows are read in place, row
 * identifiers of two files cannot be compared.  If a table was written into
 * another file, it is read from its beginning again, so any cursor in another
 * file counts as later.  In another database partitions have other OIDs, and
 * all is read again, so a cursor in any of them counts as later too.
 */
bool
feedpub_cursor_moves(const FeedpubCursor *a, const FeedpubCursor *b)
{
	bool		in_place = a->given && a->initial && b->given && b->initial;

	return feedpub_cursor_compare(a, b) < 0 ||
		(in_place && a->fingerprint != b->fingerprint &&
		 (a->sync_id == b->sync_id ||
		  !feedpub_cursor_same_partitions(a->fingerprint, b->fingerprint)));
}

/*
 * feedpub._cursor_moves(a text, b text) returns boolean, IMMUTABLE
 *
 * The same for SQL.  Error: 22023 if a text is no cursor.
 */
Datum
feedpub_cursor_moves_texts(PG_FUNCTION_ARGS)
{
	FeedpubCursor a;
	FeedpubCursor b;

	feedpub_cursor_parse(PG_GETARG_TEXT_PP(0), &a);
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &b);
	PG_RETURN_BOOL(feedpub_cursor_moves(&a, &b));
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

/*
 * The cursor of the end of a batch, which is or was the last one.
 */
text *
feedpub_cursor_at_end(Oid feed, const FeedpubBatch *batch, Snapshot snapshot)
{
	FeedpubCursor cursor = {0};

	cursor.given = true;
	cursor.history = feedpub_floor_history(feed, snapshot);
	cursor.sync_id = batch->sync_id;
	cursor.pos = batch->last_pos;
	cursor.merged = batch->is_merged;
	cursor.fingerprint = batch->fingerprint;
	cursor.server_start = feedpub_server_start_of_page(snapshot);

	/* a consumer that begins here has no row that was deleted before */
	cursor.base = feedpub_registry_is_table(feed) ? batch->sync_id : 0;
	return feedpub_cursor_text(&cursor);
}

/*
 * The cursor of the floor.  If nothing has been removed, it is before the
 * first batch.
 */
void
feedpub_cursor_at_floor(Oid feed, const FeedpubFloor *floor, Snapshot snapshot,
						FeedpubCursor *cursor)
{
	*cursor = (FeedpubCursor){
		.given = true,
		.history = floor->history,
		.sync_id = floor->sync_id,
		.pos = floor->pos,
		.merged = floor->merged,
		.fingerprint = floor->fingerprint,
		.server_start = feedpub_server_start_of_page(snapshot),
		.base = feedpub_registry_is_table(feed) ? floor->sync_id : 0,
	};
}

/*
 * Is a cursor before the floor?  In a table feed it must be with its position
 * and with its base (feedpub_page_check_floor()); cursors of an outbox have
 * base 0.
 *
 * If the floor is the end of a merged batch, a cursor at the end of the
 * youngest batch in it has passed all of it.
 */
bool
feedpub_cursor_is_expired(Oid feed, const FeedpubCursor *after,
						  const FeedpubFloor *floor, Snapshot snapshot)
{
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	bool		has_passed;

	if (!after->given || after->base >= floor->sync_id ||
		feedpub_cursor_batch(after) > floor->sync_id ||
		(feedpub_cursor_batch(after) == floor->sync_id && after->pos >= floor->pos))
		return false;
	if (feedpub_cursor_batch(after) < floor->sync_id)
		return true;
	batches = feedpub_batch_begin(feed, floor->sync_id, snapshot);
	has_passed = feedpub_batch_next(batches, &batch) &&
		batch.sync_id == floor->sync_id &&
		feedpub_batch_passed(&batch, after) >= floor->pos;
	feedpub_batch_end(batches);
	return !has_passed;
}

/*
 * Refuse such a cursor: raises PF002.
 */
void
feedpub_cursor_refuse_expired(Oid feed, const FeedpubCursor *after,
							  const FeedpubFloor *floor, Snapshot snapshot)
{
	bool		is_table;

	if (!feedpub_cursor_is_expired(feed, after, floor, snapshot))
		return;
	is_table = feedpub_registry_is_table(feed);
	ereport(ERROR,
			(errcode(ERRCODE_FEED_CURSOR_EXPIRED),
			 errmsg("cursor of feed \"%s\" has expired", get_rel_name(feed)),
			 errdetail(is_table ?
						   "Deletes that it has not got past are no longer retained since %s." :
						   "Rows after it are no longer retained since %s.",
					   timestamptz_to_str(floor->moved_at)),
			 is_table ?
				 errhint("Empty your copy and begin again from '', with a subscription by feed_seek(..., 'earliest'): rows that are gone are not announced.") :
				 errhint("Begin again from '', with a subscription by feed_seek(..., 'earliest'): what is retained comes then.")));
}

/*
 * Refuse a cursor of another history: raises PF001.
 */
void
feedpub_cursor_refuse(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
			 errmsg("cursor of feed \"%s\" is from another history",
					get_rel_name(relid)),
			 errdetail("This server has not published the batch that the cursor points to."),
			 RecoveryInProgress() ?
				 errhint("If a history of the feed has begun on the primary, try again when this standby has it.  Otherwise begin again from '', a copy of a table as an empty one.") :
				 errhint("The cursor is from another server, or this one has been restored or replaced since.  Begin again from '', with an empty copy if you keep one.  A subscription does so with feed_seek().  feed_head() would leave out what lies between.")));
}

/*
 * Were two cursors of the initial snapshot made where OIDs mean the same
 * partitions?  Given their fingerprints.
 */
bool
feedpub_cursor_same_partitions(uint32 a, uint32 b)
{
	return a >> 16 == b >> 16;
}
