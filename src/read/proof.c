/*-------------------------------------------------------------------------
 *
 * proof.c
 *	  What a page of a table feed rests on, and where its consumer goes back to
 *	  if that has been taken back.
 *
 * A page passes rows that have another version by now, which is published
 * later.  If the server is lost, and another one goes on from an earlier state
 * (a standby that lagged, a restore to an earlier time, a booted copy of the
 * storage), the update may be lost with it.  The row is back then, before the
 * cursor, and would never be delivered.  So it is with a delete whose key was
 * inserted again.  In an outbox rows do not change, so nothing is before a
 * cursor that was not delivered, or removed for good.
 *
 * Therefore cursors of table feeds carry a proof: which batch has to be there
 * so that all that their page saw is there.  A server that has not made the
 * cursor looks for it.  If it is not there, the consumer goes back to a
 * position that the cursor carries too, with a proof of its own, and what is
 * after that is delivered again.  If that proof is missing as well, the cursor
 * is refused.
 *
 * Which batch that is.  Let S be the page's snapshot.  A batch proves S if it
 * was made by the server start that made the page, and if its commit comes
 * later in the WAL than that of each transaction of this feed that S sees.
 * For what a server goes on from is a beginning of the WAL of the one before;
 * if it has that batch, it has what comes before it.
 *
 * - If S sees no row or tombstone of the feed that is in no batch, that is the
 *	 last batch that S sees, of any start.
 * - Else let b be the number after that of the last batch that S sees.  Then it
 *	 is any batch that is published after b, by another transaction.  S does not
 *	 see the transaction that writes b, so S was taken before that had ended.  A
 *	 publisher keeps the publishing lock to its end.  So the next one takes its
 *	 snapshot later than S, and its commit record comes later than those of all
 *	 that S sees.  The batch b alone would not do: its commit record can be in
 *	 the WAL though S does not see it yet.  While it waits for the disk or a
 *	 standby, a transaction commits that S sees, and that record comes later.
 *	 One transaction may write many batches, so each has the number of the first
 *	 one of its publication; a merged batch has that of the youngest in it.
 * - On a standby b itself would do, since commits become visible there in the
 *	 order of the WAL.  It has to be of this WAL: the start that a standby shows
 *	 is that of its primary's timeline (feedpub_cursor_start()).
 *
 * Batches of a start are known by their seed, which merged ones keep, and which
 * a copy of the database, or a dump of it, does not have.
 *
 * The position to go back to can become that of the cursor with which the page
 * before ended, as soon as the page's snapshot shows that a proof of what was
 * seen up to there is there: that cursor's own, or the last batch, if the page
 * sees all published and the cursor's proof has no larger number.  (Then the
 * page's snapshot is the later one, so what the page before saw is published
 * too.)  Until then the cursor keeps its position to go back to, and its proof
 * becomes one of all pages since.  So between two pages nothing is
 * forgotten that is still to be proved.  The position may stay longer, since a
 * later proof is one of what came before it too.  It stays for a minute, by the
 * times of batches.  A standby mostly lags by less, so the position's proof is
 * there, though those of several pages since are lost; and what a consumer gets
 * again is what it read in about a minute.
 *
 * The position is the beginning of a batch, or of a page of a table that is read
 * in place, if the cursor is in the same file of it; else the beginning of the
 * feed.  So it is a small number (publish/cursor.c), and needs no fingerprint:
 * if the cursor's batch is here, all before it are.
 *
 * All that a consumer got up to its cursor is in batches up to the cursor's, or
 * was in the initial snapshot.  So before it goes back the cursor's own batch is
 * looked for.  If that is lost, the consumer may have rows that never were, and
 * is refused.
 *
 * After it has gone back, its cursors do not tell how far it had got, and it may
 * have to go back once more.  So the proof of the position is then the last
 * batch that the page sees: if that is there, so is the one that the consumer
 * had come to, and what proved the position before.
 *
 * The base is a number of a batch that all pages since '' have seen.  Where the
 * consumer goes back to it must be a batch of this server.  It is if the proof
 * of the position is there, whose page saw that batch.  If nothing proves the
 * position, the base is the last batch that is known to be the same here.
 *
 * The server start whose seed the proof has takes the cursor as it is: nothing
 * of what the page saw has been lost, or the start would be another.  That start
 * can also serve another database, which was copied or restored before the page
 * was read; there the seed is another.  Without shared memory all starts have
 * the id 0, so there nothing is checked.
 *
 * With deletes => false a delete leaves nothing in the feed, and neither does a
 * partition that is detached or dropped.  A page that ends at the head then
 * rests on that without a proof.
 *
 * Subscriptions need none of this.  Their cursors are in the database, written
 * after the page was read: a server that has the cursor has what the page saw.
 * (What the consumer was given after that may be lost without a word.)
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/lsyscache.h"

#include "read/read.h"

/* how long the position to go back to stays, by the times of batches */
#define BACK_INTERVAL	(60 * USECS_PER_SEC)

static bool must_go_back(Oid relid, const FeedpubCursor *after, uint32 start,
						 Snapshot snapshot);
static bool is_recent(FeedpubPageScan *scan, const FeedpubFallback *before);

/*
 * If what the page of the request's cursor saw has been taken back, begin at
 * the position to which its consumer goes back.  Raises PF001 if it cannot.
 */
void
feedpub_proof_check(FeedpubPageScan *scan)
{
	FeedpubCursor *after = &scan->page->request.after;
	Oid			relid = scan->page->feed.relid;
	FeedpubBatch batch = {0};
	FeedpubProof base = {.batch = after->base};
	const FeedpubFallback *fallback;

	if (!must_go_back(relid, after, scan->start, scan->state))
		return;
	fallback = after->fallback;
	if (fallback->is_final || !feedpub_batch_proves(relid, &fallback->back_proof, scan->state))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
				 errmsg("cursor of feed \"%s\" is from another history",
						get_rel_name(relid)),
				 errdetail("Changes that were made when its page was read are not in this server."),
				 errhint("The server was replaced by a standby that lagged, or put back to an earlier state.  Begin again from '', with an empty copy.")));
	base.seed = fallback->proof.seed;
	if (fallback->back_proof.batch == 0 && !feedpub_batch_proves(relid, &base, scan->state))
		after->base = Min(after->base, feedpub_cursor_batch(after));
	if (!fallback->back.initial)
		feedpub_batch_last(relid, fallback->back.sync_id, scan->state, &batch);
	after->initial = fallback->back.initial;
	after->merged = batch.is_merged;
	after->sync_id = after->initial ? fallback->back.sync_id : batch.sync_id;
	after->pos = after->initial ? fallback->back.pos : batch.last_pos;
	after->fingerprint = after->initial ? fallback->back.fingerprint : batch.fingerprint;
	after->start = scan->start;

	/* made when the page has been read, also if it passes nothing */
	after->fallback = &scan->page->fallback;
	scan->went_back = true;
}

/*
 * Would a page after this cursor go back, so that something may be after it?
 */
bool
feedpub_proof_goes_back(Oid relid, const FeedpubCursor *after, Snapshot snapshot)
{
	return after->fallback != NULL &&
		must_go_back(relid, after, feedpub_cursor_start(relid, after->history, snapshot), snapshot);
}

/*
 * Has what a cursor's page saw been taken back?  If the cursor's own batch is
 * not here, that is for the caller to find out: it is lost, or this standby has
 * not got it yet.
 */
static bool
must_go_back(Oid relid, const FeedpubCursor *after, uint32 start, Snapshot snapshot)
{
	if (after->fallback == NULL || after->start == start ||
		feedpub_batch_proves(relid, &after->fallback->proof, snapshot))
		return false;
	return feedpub_cursor_batch(after) == 0 || feedpub_batch_has_arrived(relid, after, snapshot);
}

/*
 * Make what the page's cursors carry, when it has been read.
 */
void
feedpub_proof_end(FeedpubPageScan *scan)
{
	FeedpubPage *page = scan->page;
	FeedpubFallback *fallback = &page->fallback;
	const FeedpubFallback *before = page->request.after.fallback;

	*fallback = (FeedpubFallback){
		.proof.batch = scan->newest.sync_id,
		.proof.seed = scan->newest.seed,
		.back = page->request.after,
	};
	if (!fallback->back.initial)
		fallback->back.sync_id = scan->first;
	if (page->more ||
		feedpub_unpublished_exists(&page->feed, page->heap, scan->snapshot,
								   &scan->newest.snapshot))
	{
		fallback->proof.batch++;
		fallback->proof.is_to_come = true;
		fallback->proof.seed = scan->start;
	}

	if (before == NULL)
		return;
	if (scan->went_back)
	{
		fallback->back_proof.batch = scan->newest.sync_id;
		fallback->back_proof.seed = scan->newest.seed;
		return;
	}
	if (feedpub_batch_is_proof(&scan->newest, &before->proof))
		fallback->back_proof = before->proof;
	else if (!fallback->proof.is_to_come && scan->newest.sync_id >= before->proof.batch)
		fallback->back_proof = fallback->proof;
	else
	{
		/*
		 * A proof that is still to come is of this start.  Those of others
		 * have been found, or the page would have gone back.
		 */
		fallback->proof.seed = before->proof.seed;
		fallback->proof.batch = Max(fallback->proof.batch, before->proof.batch);
		fallback->proof.is_to_come |= before->proof.is_to_come;
		fallback->back = before->back;
		fallback->back_proof = before->back_proof;
		return;
	}
	if (is_recent(scan, before))
	{
		fallback->back = before->back;
		fallback->back_proof = before->back_proof;
	}
}

/*
 * Is the position to go back to so near that it can stay?  In the beginning its
 * proof is none; then the last batch that the first page saw counts.
 */
static bool
is_recent(FeedpubPageScan *scan, const FeedpubFallback *before)
{
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	bool		recent;

	batches = feedpub_batch_begin(scan->page->feed.relid,
								  Max(before->back_proof.batch,
									  scan->page->request.after.base),
								  scan->state);
	recent = feedpub_batch_next(batches, &batch) &&
		scan->newest.published_at - batch.published_at < BACK_INTERVAL;
	feedpub_batch_end(batches);
	return recent;
}
