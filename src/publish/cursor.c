/*-------------------------------------------------------------------------
 * cursor.c
 *	  The cursor of published order, as text.
 *
 * It is opaque to consumers: numbers of fixed width in base 64, without the
 * spaces below.  The digits ascend in ASCII, so cursors of one history sort as
 * text (COLLATE "C") in feed order; and they need no escape in JSON, in a URL or
 * in a header.  44 characters:
 *
 *		1				version
 *		0FLSdB			history: the feed's random number
 *		K-----e			number of the batch, with BATCH_BIT; in the initial
 *						snapshot without it: which table it is in, 0 if the
 *						feed is one table
 *		---------k4		position in it; initial: a row identifier
 *		1SDgcN			fingerprint of the batch, with MERGED_BIT if others
 *						were merged into it; initial: of the table's file
 *		1SDgcN			seed of the server start that made the cursor, with
 *						FALLBACK_BIT if it goes on
 *		------f			base: see feedpub_cursor_check_floor()
 *
 * A cursor of a page of a table feed has 64 characters: it goes on with its
 * fallback (read/proof.c).  The seed before is that of the proof then, and
 * numbers are differences, so that they are short.
 *
 *		1SDgcN			seed of the proof of where it goes back to
 *		----4			the proof: from the cursor's batch or the base on,
 *						whichever is larger
 *		---3			the proof of where it goes back to: from the proof back
 *		----2			where it goes back to: from the cursor back, in batches;
 *						initial: in pages of the table; BEGINNING; NOWHERE
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
#include "access/xlogrecovery.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "utils/lsyscache.h"

#include "publish/publish.h"

PG_FUNCTION_INFO_V1(feedpub_cursor_compare_texts);
PG_FUNCTION_INFO_V1(feedpub_cursor_moves_texts);

#define VERSION			'1'

/* digits of the numbers, and the largest number of so many digits */
#define HASH_DIGITS			6
#define BATCH_DIGITS		7
#define POS_DIGITS			11
#define PROOF_DIGITS		5
#define BACK_PROOF_DIGITS	4
#define BACK_DIGITS			5
#define LARGEST(ndigits)	((UINT64CONST(1) << 6 * (ndigits)) - 1)
#define BEGINNING			LARGEST(BACK_DIGITS)
#define NOWHERE				(LARGEST(BACK_DIGITS) - 1)

/* in a batch's number, in its fingerprint, and in the seed of the start */
#define BATCH_BIT			(UINT64CONST(1) << 41)
#define MERGED_BIT			(UINT64CONST(1) << 32)
#define FALLBACK_BIT		(UINT64CONST(1) << 33)

static const char digits[] =
	"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz";

static char *put(char *p, uint64 value, int ndigits);
static bool get(const char **p, int ndigits, uint64 largest, uint64 *value);
static char *put_fallback(char *p, const FeedpubCursor *cursor);
static bool get_fields(const char *p, FeedpubCursor *cursor, uint64 fallback_bit);
static bool get_fallback(const char *p, const FeedpubCursor *cursor,
						 FeedpubFallback *fallback);
static uint64 proof_to_number(const FeedpubProof *proof, int64 distance, int ndigits);
static int64 proof_from_number(uint64 number, FeedpubProof *proof);

/*
 * Print a cursor into a buffer of FEEDPUB_CURSOR_MAX_LENGTH bytes; no
 * terminator.  Returns its length.
 */
int
feedpub_cursor_print(const FeedpubCursor *cursor, char *buffer)
{
	char	   *p = buffer;

	*p++ = VERSION;
	p = put(p, cursor->history, HASH_DIGITS);
	p = put(p, (uint64) cursor->sync_id | (cursor->initial ? 0 : BATCH_BIT), BATCH_DIGITS);
	p = put(p, (uint64) cursor->pos, POS_DIGITS);
	p = put(p, cursor->fingerprint | (cursor->merged ? MERGED_BIT : 0), HASH_DIGITS);
	p = put(p, cursor->fallback != NULL ? cursor->fallback->proof.seed | FALLBACK_BIT : cursor->start,
			HASH_DIGITS);
	p = put(p, Min((uint64) cursor->base, LARGEST(BATCH_DIGITS)), BATCH_DIGITS);
	if (cursor->fallback != NULL)
		p = put_fallback(p, cursor);
	return p - buffer;
}

/*
 * The same into a buffer with another one of its page, or with none.  Mostly
 * only the position is another.
 */
int
feedpub_cursor_print_next(const FeedpubCursor *cursor, const FeedpubCursor *before, char *buffer)
{
	if (before == NULL || cursor->sync_id != before->sync_id ||
		cursor->initial != before->initial || cursor->fingerprint != before->fingerprint ||
		(cursor->initial && cursor->pos >> 16 != before->pos >> 16))
		return feedpub_cursor_print(cursor, buffer);
	(void) put(buffer + 1 + HASH_DIGITS + BATCH_DIGITS, (uint64) cursor->pos, POS_DIGITS);
	return cursor->fallback != NULL ? FEEDPUB_CURSOR_MAX_LENGTH : FEEDPUB_CURSOR_LENGTH;
}

/*
 * Its end.  If its differences are too large, its consumer cannot go back.
 */
static char *
put_fallback(char *p, const FeedpubCursor *cursor)
{
	const FeedpubFallback *fallback = cursor->fallback;
	const FeedpubCursor *back = &fallback->back;
	int64		from = Max(feedpub_cursor_batch(cursor), cursor->base);
	int64		batch = Max(fallback->proof.batch, from);
	uint64		back_proof = proof_to_number(&fallback->back_proof,
											 batch - fallback->back_proof.batch, BACK_PROOF_DIGITS);
	uint64		distance;

	if (fallback->is_final || back_proof == LARGEST(BACK_PROOF_DIGITS))
		distance = NOWHERE;
	else if (!cursor->initial && !back->initial)
		distance = Min((uint64) (cursor->sync_id + 1 - back->sync_id), NOWHERE);
	else if (cursor->initial && back->initial &&
			 cursor->sync_id == back->sync_id && cursor->fingerprint == back->fingerprint)
		distance = Min((uint64) ((cursor->pos >> 16) - (back->pos >> 16)), NOWHERE);
	else
		distance = BEGINNING;
	p = put(p, fallback->back_proof.seed, HASH_DIGITS);
	p = put(p, proof_to_number(&fallback->proof, batch - from, PROOF_DIGITS), PROOF_DIGITS);
	p = put(p, back_proof, BACK_PROOF_DIGITS);
	return put(p, distance, BACK_DIGITS);
}

/*
 * A proof whose batch is so far away, as a number; 0 if there is nothing to be
 * proved, and the largest if it is too far.
 */
static uint64
proof_to_number(const FeedpubProof *proof, int64 distance, int ndigits)
{
	if (proof->batch == 0)
		return 0;
	return distance > (LARGEST(ndigits) - 3) / 2 ? LARGEST(ndigits) :
												   ((uint64) distance << 1 | proof->is_to_come) + 1;
}

/*
 * Such a number as a distance, and whether the proof is to come.
 */
static int64
proof_from_number(uint64 number, FeedpubProof *proof)
{
	if (number == 0)
		return 0;
	proof->is_to_come = (number - 1) & 1;
	return (number - 1) >> 1;
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
	if ((length != FEEDPUB_CURSOR_LENGTH && fallback == NULL) ||
		!get_fields(p, cursor, fallback != NULL ? FALLBACK_BIT : 0) ||
		(fallback != NULL && !get_fallback(p + FEEDPUB_CURSOR_LENGTH, cursor, fallback)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("malformed cursor: \"%s\"",
						pnstrdup(p, pg_mbcliplen(p, length, FEEDPUB_CURSOR_MAX_LENGTH))),
				 errhint("Use a cursor as it was delivered, or '' for the beginning.")));
	cursor->given = true;
	cursor->fallback = fallback;
}

static bool
get_fields(const char *p, FeedpubCursor *cursor, uint64 fallback_bit)
{
	uint64		history;
	uint64		number;
	uint64		pos;
	uint64		fingerprint;
	uint64		start;
	uint64		base;

	if (*p++ != VERSION ||
		!get(&p, HASH_DIGITS, PG_UINT32_MAX, &history) ||
		!get(&p, BATCH_DIGITS, LARGEST(BATCH_DIGITS), &number) ||
		!get(&p, POS_DIGITS, PG_INT64_MAX, &pos) ||
		!get(&p, HASH_DIGITS, PG_UINT32_MAX | MERGED_BIT, &fingerprint) ||
		!get(&p, HASH_DIGITS, PG_UINT32_MAX | FALLBACK_BIT, &start) ||
		!get(&p, BATCH_DIGITS, LARGEST(BATCH_DIGITS), &base))
		return false;

	/* a long cursor that has been cut is none: it would be taken as it is */
	if ((start & ~(uint64) PG_UINT32_MAX) != fallback_bit)
		return false;
	cursor->history = (uint32) history;
	cursor->initial = (number & BATCH_BIT) == 0;
	cursor->sync_id = (int64) (number & ~BATCH_BIT);
	cursor->pos = (int64) pos;
	cursor->merged = (fingerprint & MERGED_BIT) != 0;
	cursor->fingerprint = (uint32) fingerprint;
	cursor->start = (uint32) start;
	cursor->base = base == LARGEST(BATCH_DIGITS) ? PG_INT64_MAX : (int64) base;
	return true;
}

static bool
get_fallback(const char *p, const FeedpubCursor *cursor, FeedpubFallback *fallback)
{
	FeedpubCursor *back = &fallback->back;
	int64		batch = Max(feedpub_cursor_batch(cursor), cursor->base);
	uint64		seed;
	uint64		proof;
	uint64		back_proof;
	uint64		distance;

	/* no page has the largest base */
	if (batch == PG_INT64_MAX ||
		!get(&p, HASH_DIGITS, PG_UINT32_MAX, &seed) ||
		!get(&p, PROOF_DIGITS, LARGEST(PROOF_DIGITS), &proof) ||
		!get(&p, BACK_PROOF_DIGITS, LARGEST(BACK_PROOF_DIGITS), &back_proof) ||
		!get(&p, BACK_DIGITS, LARGEST(BACK_DIGITS), &distance))
		return false;
	fallback->proof.seed = cursor->start;
	batch += proof_from_number(proof, &fallback->proof);
	if (proof == LARGEST(PROOF_DIGITS))
		fallback->proof.batch = PG_INT64_MAX;
	else if (proof != 0)
		fallback->proof.batch = batch;
	fallback->is_final = distance == NOWHERE;
	if (fallback->is_final)
		return true;
	fallback->back_proof.seed = (uint32) seed;
	if (back_proof != 0)
		fallback->back_proof.batch = batch - proof_from_number(back_proof, &fallback->back_proof);
	*back = *cursor;
	if (distance == BEGINNING)
		*back = (FeedpubCursor){.initial = true};
	else if (cursor->initial)
		back->pos = ((cursor->pos >> 16) - (int64) distance) << 16;
	else
		back->sync_id = cursor->sync_id + 1 - (int64) distance;
	return back->pos >= 0 && back->sync_id >= 0 && fallback->back_proof.batch >= 0;
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
put(char *p, uint64 value, int ndigits)
{
	for (int i = ndigits - 1; i >= 0; i--)
	{
		p[i] = digits[value & 0x3f];
		value >>= 6;
	}
	Assert(value == 0);
	return p + ndigits;
}

/*
 * Read a number.  Eleven digits can have more than 64 bits.
 */
static bool
get(const char **p, int ndigits, uint64 largest, uint64 *value)
{
	*value = 0;
	for (int i = 0; i < ndigits; i++)
	{
		const char *digit = **p == '\0' ? NULL : strchr(digits, *(*p)++);

		if (digit == NULL || *value > largest >> 6)
			return false;
		*value = *value << 6 | (digit - digits);
	}
	return *value <= largest;
}

/*
 * The seed of the server start that makes a page with this snapshot, by which
 * its batches are known, too.
 *
 * A standby continues its primary, so it has the seed of the last batch that
 * the snapshot sees: until a primary has published after its start, its standbys
 * have the seed of the start before.  But after a promotion, that start may have
 * gone on elsewhere, and may go on still; and a dump brings batches of another
 * server.  So a batch has a number of the site where it was made.  If the
 * standby is another site, its pages have a seed made of both, which is no
 * start's: no batch proves them (read/proof.c), and cursors of the start
 * before are checked.  The timeline is read after the snapshot was taken; it
 * only grows, and it has changed before a change of the new primary can be seen.
 * (A copy of the storage that is booted without a promotion has the timeline
 * of its original.  The first batch that it makes ends that.)
 */
uint32
feedpub_cursor_start(Oid feed, uint32 history, Snapshot snapshot)
{
	FeedpubBatch last;
	TimeLineID	replayed;
	uint32		site;

	if (!RecoveryInProgress())
		return feedpub_seed_make(feed, history, false);
	feedpub_batch_last(feed, PG_INT64_MAX, snapshot, &last);
	(void) GetXLogReplayRecPtr(&replayed);
	site = feedpub_seed_site(replayed);
	return last.site == site ? last.seed : hash_combine(last.seed, site);
}

/*
 * The cursor of the end of a batch, which is or was the last one.  A consumer
 * that begins here has no row that was deleted before: that is its base.
 */
void
feedpub_cursor_at_end(Oid feed, const FeedpubBatch *batch, Snapshot snapshot,
					  FeedpubCursor *cursor)
{
	FeedpubFloor end = {
		.history = feedpub_floor_history(feed, snapshot),
		.sync_id = batch->sync_id,
		.pos = batch->last_pos,
		.merged = batch->is_merged,
		.fingerprint = batch->fingerprint,
	};

	feedpub_cursor_at_floor(feed, &end, snapshot, cursor);
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
		.start = feedpub_cursor_start(feed, floor->history, snapshot),
		.base = feedpub_registry_is_table(feed) ? floor->sync_id : 0,
	};
}

/*
 * Is a cursor before the floor?  In a table feed it must be with its position
 * and with its base (feedpub_cursor_check_floor()); cursors of an outbox have
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
