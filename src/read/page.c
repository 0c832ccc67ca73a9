/*-------------------------------------------------------------------------
 *
 * page.c
 *	  A page of a feed in published order, from request to result: feed_page().
 *
 * A page is read in three steps. feedpub_page_arguments() makes a request of
 * the caller's arguments. feedpub_page_read() opens the feed, has the batches
 * read (page_merge.c), and waits for the publisher if it finds nothing.  The
 * result becomes rows (page_rows.c), JSON (json.c) or what feed_poll() delivers.
 *
 * Why no row is skipped.  Batches and rows are read with one snapshot: that of
 * the calling query, or a newer one if the table was altered since.  If the
 * snapshot sees a batch, it sees all transactions in it, for they had
 * committed before the batch was (publish/publish.c).  So it sees their rows,
 * less those that have been deleted since.  This holds for an old snapshot of
 * REPEATABLE READ, which sees fewer batches, and on a standby, where commits
 * become visible in the order of the WAL.
 *
 * What is in a batch does not depend on who reads it or when, and a batch
 * never changes: one that others were merged into is another batch
 * (publish/merge_batches.c).  So the same rows are after a cursor (batch,
 * position) for every reader.  A page that goes on from the last row of the
 * page before leaves none out and delivers none twice.
 *
 * Rows are read without what the reader's own transaction has done
 * (feedpub_own_changes_hide()).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_page);

/* A page being written as JSON. */
typedef struct PageWriter
{
	StringInfoData json;
	FeedpubPageRow *last;		/* the last row that was written */
} PageWriter;

static bool write_entry(FeedpubJsonEntry *entry, void *arg);
static void begin_scan(FeedpubPageScan *scan);
static void open_partitions(FeedpubPageScan *scan, Snapshot snapshot);
static void scan_batches(FeedpubPageScan *scan);
static bool is_to_wait(FeedpubPageScan *scan);

/*
 * feed_page(feed regclass, after text DEFAULT '', max_rows int DEFAULT 100,
 * shard int DEFAULT NULL, shards int DEFAULT NULL, types text[] DEFAULT NULL)
 * returns json, VOLATILE
 *
 * Returns the page that feed_read() returns as a JSON object: {"entries":
 * [...], "cursor": "...", "more": true|false}. json.c describes an entry; a
 * row that feed_read() returns with "end" is none.  "cursor" is where to go
 * on, "more" whether there may be something after it already.
 *
 * Locks and errors are those of feed_read().
 */
Datum
feed_page(PG_FUNCTION_ARGS)
{
	FeedpubPage page = {0};
	PageWriter	writer = {0};
	StringInfo	json = &writer.json;
	FeedpubCursor cursor;
	bool		whole;

	feedpub_argument_check(fcinfo, 0, 1);
	feedpub_page_arguments(fcinfo, PG_GETARG_OID(0), &page.request);
	page.heap = feedpub_registry_open(PG_GETARG_OID(0));
	feedpub_page_read(&page);

	/* the text's header, then the object: no copy */
	initStringInfo(json);
	appendStringInfoSpaces(json, VARHDRSZ);
	appendStringInfoString(json, "{\"entries\": [");
	whole = feedpub_json_entries(&page, json, write_entry, &writer);
	if (writer.last != NULL)
		json->len -= strlen(", ");

	cursor = whole ? page.passed : writer.last->cursor;
	appendStringInfo(json, "], \"cursor\": \"%s\", \"more\": %s%s}",
					 text_to_cstring(feedpub_cursor_text(&cursor)), page.more || !whole ? "true" : "false",
					 !page.feed.is_changes							 ? "" :
						 (whole ? page.moment : writer.last->moment) ? ", \"moment\": true" :
																	   ", \"moment\": false");
	relation_close(page.heap, NoLock);
	SET_VARSIZE(json->data, json->len);
	PG_RETURN_TEXT_P((text *) json->data);
}

/*
 * An entry of the page has been written: set it off from the next.  Takes as
 * many as the page may be large.
 */
static bool
write_entry(FeedpubJsonEntry *entry, void *arg)
{
	PageWriter *writer = arg;

	writer->last = entry->row;
	appendStringInfoString(entry->json, ", ");
	return entry->json->len < FEEDPUB_MAX_PAGE_BYTES;
}

/*
 * Check the arguments "after", max_rows, shard, shards and types, from the
 * second on.
 */
void
feedpub_page_arguments(FunctionCallInfo fcinfo, Oid relid,
					   FeedpubPageRequest *request)
{
	feedpub_argument_check(fcinfo, 1, 2);
	request->latest = feedpub_head_parse(relid, PG_GETARG_TEXT_PP(1), &request->after);
	feedpub_argument_least(fcinfo, 2, PG_GETARG_INT32(2), 1);
	request->max_rows = Min(PG_GETARG_INT32(2), feedpub_max_page_rows);

	if (PG_ARGISNULL(3) != PG_ARGISNULL(4))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("arguments \"shard\" and \"shards\" must be given together")));
	request->shards = 1;
	if (!PG_ARGISNULL(3))
	{
		request->shard = PG_GETARG_INT32(3);
		request->shards = PG_GETARG_INT32(4);
	}
	feedpub_argument_least(fcinfo, 4, request->shards, 1);
	if (request->shard < 0 || request->shard >= request->shards)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"shard\" must be at least 0 and less than \"shards\"")));
	if (!PG_ARGISNULL(5))
		request->types = feedpub_types_parse(PG_GETARG_ARRAYTYPE_P(5));
}

/*
 * Read the page of page->request; page->heap is open.
 *
 * If no worker runs, one is started: what the page finds may be the rest of a
 * backlog.  With feedpub.read_wait = 0 none is started, for then others
 * publish.
 */
void
feedpub_page_read(FeedpubPage *page)
{
	FeedpubPageScan scan = {.page = page};
	int64		left = feedpub_read_wait;
	TimestampTz end;
	bool		pushed = false;
	bool		waited = false;

	feedpub_access_keep_memory();
	begin_scan(&scan);

	/* a snapshot that is older than the table sees none of its rows */
	if (!feedpub_partition_sees_tables(scan.partitions, GetActiveSnapshot()))
	{
		feedpub_access_push_snapshot(page->heap);
		pushed = true;
		open_partitions(&scan, GetActiveSnapshot());
	}
	scan_batches(&scan);
	if (left > 0 && feedpub_launcher_is_starting())
		left += FEEDPUB_START_WAIT;
	end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), left);
	while (left > 0 && is_to_wait(&scan) &&
		   feedpub_wait_for_batch(page->feed.relid, &page->passed, left,
								  FEEDPUB_WAIT_CHECKED |
									  (page->request.after.given ? 0 : FEEDPUB_WAIT_FROM_START)))
	{
		/* the snapshot without own changes, and the one of the turn before */
		PopActiveSnapshot();
		if (waited)
			PopActiveSnapshot();
		waited = true;
		PushActiveSnapshot(GetLatestSnapshot());
		open_partitions(&scan, GetActiveSnapshot());
		page->nrows = 0;
		page->nbytes = 0;
		scan.npassed = 0;
		scan_batches(&scan);
		left = (end - GetCurrentTimestamp()) / 1000;
	}
	PopActiveSnapshot();
	if (waited)
		PopActiveSnapshot();
	if (pushed)
		PopActiveSnapshot();
	if (scan.key != NULL)
		index_close(scan.key, NoLock);
	feedpub_partition_close(scan.partitions);
}

/*
 * Look the feed up, check the caller's rights, open its partitions and its
 * key.
 */
static void
begin_scan(FeedpubPageScan *scan)
{
	FeedpubPage *page = scan->page;
	FeedpubFeed *feed = &page->feed;

	feedpub_registry_get(RelationGetRelid(page->heap), feed);
	scan->direct = feedpub_access_is_direct(page->heap);
	if (feedpub_read_wait > 0)
		(void) feedpub_launcher_ensure(InvalidOid);
	scan->sees_all = scan->direct ||
		check_enable_rls(feed->relid, InvalidOid, true) != RLS_ENABLED;
	scan->partitions = feedpub_partition_open(feed, page->heap, GetActiveSnapshot(), true);
	feedpub_history_check(feed, scan->partitions);

	if (OidIsValid(feed->keyid) || feed->deletes)
		scan->key = feedpub_access_open_key(page->heap, feed->keyid);
	if (page->request.shards > 1)
		feedpub_key_check_shards(feed, page->heap);
	if (feed->is_changes)
		feedpub_changes_begin(page);
	if (page->request.types != NULL)
		feedpub_types_begin(page->request.types, feed, page->heap);
	feedpub_own_changes_refuse(page->heap);
	feedpub_history_check_changes(feed, page->heap, GetActiveSnapshot());
}

/*
 * Read the batches with the active snapshot, and leave another one pushed:
 * that of the rows.
 */
static void
scan_batches(FeedpubPageScan *scan)
{
	scan->state = GetActiveSnapshot();
	feedpub_own_changes_hide(scan->state);
	scan->snapshot = GetActiveSnapshot();
	scan->reader = feedpub_run_begin(&scan->page->feed, scan->partitions,
									 scan->snapshot, scan->state);
	feedpub_merge_page(scan);
	feedpub_run_end(scan->reader);
}

/*
 * Is the publisher to be waited for?
 *
 * A session that commits a row and reads at once must not get an empty page.
 * If the page has nothing to deliver, but rows have been committed that are
 * not published yet, the worker is woken, and started if there is none, and
 * what it publishes within feedpub.read_wait is read with a new snapshot; if it
 * is just being started, within FEEDPUB_START_WAIT more.  The
 * batch that comes may have been begun before that commit, and its rows may be
 * gone.  So this is asked after each batch.  Not if the snapshot must stay,
 * nor where nothing is published.  A transaction that has an id does not wait
 * (feedpub_wait_may_sleep()).
 */
static bool
is_to_wait(FeedpubPageScan *scan)
{
	const FeedpubPage *page = scan->page;

	return !page->more && page->nrows == 0 &&
		!page->request.subscribed &&
		!RecoveryInProgress() && !scan->snapshot->takenDuringRecovery &&
		!IsolationUsesXactSnapshot() &&
		feedpub_unpublished_exists(&page->feed, page->heap, scan->snapshot,
								   &scan->last.snapshot);
}

/*
 * Another snapshot may know of other partitions.
 */
static void
open_partitions(FeedpubPageScan *scan, Snapshot snapshot)
{
	if (!scan->page->feed.is_partitioned)
		return;
	feedpub_partition_close(scan->partitions);
	scan->partitions = feedpub_partition_open(&scan->page->feed, scan->page->heap, snapshot, true);
}
