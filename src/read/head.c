/*-------------------------------------------------------------------------
 *
 * head.c
 *	  Cursors to begin at: feed_head(), feed_floor() and feed_cursor(), and
 *	  'earliest' and 'latest' in place of a cursor.
 *
 * feed_head() is the end of what is published. feed_cursor() is where a
 * consumer in xid order goes on in published order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_floor);
PG_FUNCTION_INFO_V1(feed_head);
PG_FUNCTION_INFO_V1(feed_cursor);

/* the newest batch that was made before an xid was assigned */
static FeedpubStatement find_batch = {
	.sql = "SELECT pg_catalog.max(sync_id) FROM feedpub._batch"
		   " WHERE feed = $1 AND pg_catalog.pg_snapshot_xmax(snapshot) <= $2",
	.latest = true,
};

static void check_readable(Oid relid, FeedpubFeed *feed, FeedpubBatch *last);

/*
 * feed_head(feed regclass) returns text, VOLATILE
 *
 * Returns the cursor of the end of the last batch.  Everything that is
 * published later is after it, also rows that have been committed and are not
 * published yet.  Needs SELECT on the table.  Errors: 42809 if it is no feed,
 * 42501, PF001 for a feed from another history.
 */
Datum
feed_head(PG_FUNCTION_ARGS)
{
	feedpub_argument_check(fcinfo, 0, 1);
	PG_RETURN_TEXT_P(feedpub_head_of(PG_GETARG_OID(0)));
}

text *
feedpub_head_of(Oid relid)
{
	FeedpubFeed feed;
	FeedpubBatch last;
	FeedpubCursor cursor;

	check_readable(relid, &feed, &last);
	feedpub_access_make_durable(last.publisher, GetActiveSnapshot());
	feedpub_cursor_at_end(relid, &last, GetActiveSnapshot(), &cursor);
	return feedpub_cursor_text(&cursor);
}

/*
 * Read a cursor of a feed that a caller gives: 'earliest' is the beginning, as
 * '' is, and 'latest' the end of what is published now.  Returns whether it is
 * 'latest'.
 */
bool
feedpub_head_parse(Oid relid, const text *input, FeedpubCursor *cursor)
{
	char	   *word = text_to_cstring(input);
	bool		latest = strcmp(word, "latest") == 0;

	if (strcmp(word, "earliest") == 0)
		input = cstring_to_text("");
	feedpub_cursor_parse(latest ? feedpub_head_of(relid) : input, cursor);
	return latest;
}

/*
 * feed_floor(feed regclass) returns text, VOLATILE
 *
 * Returns the cursor of the floor, the oldest one that is accepted: the rows
 * of an outbox before it, or the deletes of a table feed, have been removed.
 * If none have been, it is the cursor before the first batch.  A consumer that
 * wants the living rows of a table begins at '', not here.
 *
 * Needs SELECT on the table.  Errors: 42809 if it is no feed, 42501, PF001 for
 * a feed from another history.
 */
Datum
feed_floor(PG_FUNCTION_ARGS)
{
	Snapshot	snapshot = GetActiveSnapshot();
	FeedpubCursor cursor;
	FeedpubFeed feed;
	FeedpubFloor floor;
	FeedpubBatch last;
	Oid			relid;

	feedpub_argument_check(fcinfo, 0, 1);
	relid = PG_GETARG_OID(0);
	check_readable(relid, &feed, &last);
	feedpub_floor_read(relid, snapshot, &floor);
	feedpub_cursor_at_floor(relid, &floor, snapshot, &cursor);
	PG_RETURN_TEXT_P(feedpub_cursor_text(&cursor));
}

/*
 * feed_cursor(feed regclass, feed_xid xid8, feed_pos bigint) returns text,
 * VOLATILE
 *
 * Returns the cursor from which a consumer in xid order goes on in published
 * order if its last row has this stamp: the end of the newest batch that was
 * made before that xid was assigned.
 *
 * Nothing unread is passed.  What is before that cursor has smaller xids than
 * the stamp, and a consumer in xid order has read all of those.  What is after
 * it may come twice.  Snapshots of batches only grow, so the batches whose
 * snapshots end before the xid are the first ones.  A consumer in xid order gets no deletes;
 * those before the cursor are not delivered.
 *
 * Needs SELECT on the table.  Errors: 42809 if it is no feed, 42501, 22023 for
 * a negative position; 55000 if the row with that stamp is not published yet;
 * PF001 for a stamp of another history; PF002 if deletes after that cursor
 * have expired.
 */
Datum
feed_cursor(PG_FUNCTION_ARGS)
{
	Snapshot	snapshot = GetActiveSnapshot();
	FeedpubBatch batch;
	FeedpubCursor cursor;
	FeedpubFloor floor;
	FullTransactionId xid;
	Datum		values[2];
	FeedpubFeed feed;
	FeedpubBatch last;
	Oid			relid;

	feedpub_argument_check(fcinfo, 0, 3);
	relid = PG_GETARG_OID(0);
	xid = PG_GETARG_FULLTRANSACTIONID(1);
	feedpub_argument_least(fcinfo, 2, PG_GETARG_INT64(2), 0);
	check_readable(relid, &feed, &last);
	feedpub_foreign_refuse_cursor(&feed, xid);
	if (!feedpub_batch_sees(&last.snapshot, U64FromFullTransactionId(xid)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the row with that stamp is not published yet in feed \"%s\"",
						get_rel_name(relid)),
				 errhint("Try again, or call feed_flush() first.")));
	values[0] = ObjectIdGetDatum(relid);
	values[1] = FullTransactionIdGetDatum(xid);
	feedpub_batch_last(relid, feedpub_store_number(&find_batch, values, 0) + 1, snapshot, &batch);
	feedpub_access_make_durable(batch.publisher, snapshot);
	feedpub_cursor_at_end(relid, &batch, snapshot, &cursor);
	feedpub_floor_read(relid, snapshot, &floor);
	feedpub_cursor_refuse_expired(relid, &cursor, &floor, snapshot);
	PG_RETURN_TEXT_P(feedpub_cursor_text(&cursor));
}

/*
 * Check that the caller may read a feed, and that its rows and batches are of
 * this history.  Reads its last batch.
 */
static void
check_readable(Oid relid, FeedpubFeed *feed, FeedpubBatch *last)
{
	feedpub_access_check_feed(relid, feed);
	feedpub_batch_last(relid, PG_INT64_MAX, GetActiveSnapshot(), last);
	feedpub_batch_refuse_foreign(feed, last);
}
