/*-------------------------------------------------------------------------
 *
 * position.c
 *	  Takes the next position of a feed from its sequence.
 *
 * nextval() would do, but the session would notice: lastval() would be the
 * position, and fail for a writer that has no right on the sequence.  So the
 * sequence's one tuple is advanced here, as sequence.c does it: under the lock
 * and the buffer's lock that nextval() takes, logged ahead so that a crash
 * takes back no position.  The sequence's options do not count, nor does its
 * type: positions go on beyond MAXVALUE, which only a dump's setval() minds.
 *
 * A position must not come twice.  setval(), RESTART, a load of rows that
 * brings the sequence, and CREATE SEQUENCE set the sequence without asking us.
 * They are found out by log_cnt, in which the server counts the values that
 * are logged ahead.  Here that number is not needed: what is logged ahead are
 * the values up to the next multiple of LOG_VALUES.  So log_cnt has a value of
 * its own, MARK, in all states that this file leaves, in the page and in the
 * WAL.  nextval() subtracts from it or sets it to at most LOG_VALUES, and all
 * others set it to 0.  So with another log_cnt, somebody else has written the
 * tuple.  This holds after a crash, on a promoted standby, and in a copy of
 * the files.  After pg_restore and pg_upgrade, which call setval(), one writer
 * finds log_cnt 0.
 *
 * With wal_level = minimal the transaction that has made the sequence's file
 * logs none of its positions: its commit logs the page, or writes it to disk, as
 * it is then.  So log_cnt is UNLOGGED in that page, which is ours as well, and
 * the next position is logged ahead, whatever the page's LSN says.
 *
 * The one that finds it goes on from a position that is beyond all that were
 * assigned before, also by transactions that have not committed.  It cannot
 * look for these, but the WAL tells: each LOG_VALUES positions, or as many as are
 * taken at once, write a record of more bytes (99, and LOG_VALUES is 32), so
 * positions that began with 1 are smaller than the LSN of the next record, and
 * stay so if they go on from there.  An LSN
 * does not come twice: a crash or a failover that takes WAL back takes the
 * positions back, too, since the transactions with them were not flushed.  Two
 * cases are left, in which positions are larger than the LSN:
 *
 * - They came with a dump of another server, or the sequence was set forward,
 *   so the sequence's last value is larger.  Then it goes on from that.
 * - And if it is set back later, the last value tells no more.  Then the newest
 *   batches tell what was published, and it goes on from the sum of that and
 *   the LSN.  The sum grows as they do, so this is right again and again.
 *
 * What remains is a sequence that is set forward beyond all this, and then set
 * back before a batch was made of what was written in between.  The backend
 * that wrote it remembers: so TRUNCATE ... RESTART IDENTITY, whose trigger
 * takes a position in the same transaction and excludes other writers, is right
 * there, too.
 *
 * Concurrency.  All who write the tuple do so under the buffer's exclusive
 * lock.  The first writer after a setval() finds another log_cnt, and sets it
 * to MARK together with the new position; those after it go on from there.
 * What those before it got is smaller than the LSN that it reads under the
 * lock.  What was published is read without the lock, and may be larger by now;
 * but what was taken until then is smaller than the older sum, too.  RESTART and
 * TRUNCATE ... RESTART IDENTITY make a new file and lock the sequence against
 * us to the end of their transaction, and we hold our lock to the end of ours.
 * If they are rolled back, the old file is there, with MARK.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/rmgr.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/resowner.h"

#include "write/write.h"

/* how many positions are logged at once; a power of two */
#define LOG_VALUES		32

/* log_cnt of a sequence that we wrote last */
#define MARK			INT64CONST(0x66656564)

/* the same while the file is not logged; nextval() never leaves such a value */
#define UNLOGGED		(-MARK)

#define IS_OURS(data)	((data)->log_cnt == MARK || (data)->log_cnt == UNLOGGED)

/* what a backend knows of a sequence */
typedef struct Sequence
{
	FeedpubCached head;			/* by its OID; what follows is never out of date */
	LocalTransactionId locked_by;	/* the transaction that holds the lock */
	int64		largest;		/* position that this backend has taken */
} Sequence;

static Sequence *find_sequence(Oid seqid);
static Relation open_sequence(Sequence *sequence);
static Form_pg_sequence_data lock_tuple(Relation rel, Buffer *buf,
										HeapTuple tuple);
static int64 beyond_all(const Sequence *sequence, int64 last, int64 published);
static void write_tuple(Relation rel, Buffer buf, HeapTuple tuple, int64 last,
						bool is_called, bool logged);

/*
 * Take the next positions of a feed, n of them, at most FEEDPUB_MAX_POSITIONS.
 * Returns the last one.  Checks no right: the caller has.
 */
int64
feedpub_position_take(Oid feed, Oid seqid, int n)
{
	static FeedpubStatement newest = {
		.sql = "SELECT max(last_pos) FROM (SELECT last_pos FROM feedpub._batch WHERE feed = $1 ORDER BY sync_id DESC LIMIT 100) b",
		.latest = true,
	};
	Sequence   *sequence = find_sequence(seqid);
	Relation	rel = open_sequence(sequence);
	int64		published = -1;
	HeapTupleData tuple;
	Form_pg_sequence_data data;
	Buffer		buf;
	int64		last;
	bool		logged;

	data = lock_tuple(rel, &buf, &tuple);
	if (!IS_OURS(data))
	{
		UnlockReleaseBuffer(buf);
		published = feedpub_store_number(&newest, (Datum[]){ObjectIdGetDatum(feed)}, 0);
		data = lock_tuple(rel, &buf, &tuple);
	}
	last = data->is_called ? data->last_value : data->last_value - 1;
	if (!IS_OURS(data))
		last = beyond_all(sequence, last, published);
	if (last > PG_INT64_MAX - (LOG_VALUES - 1) - n)
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("sequence \"%s\" has no more positions",
						RelationGetRelationName(rel)),
				 errhint("Set it back by setval().  Positions that were published do not come again.")));

	/* see nextval_internal() for why a record is needed after a checkpoint */
	logged = data->log_cnt != MARK || !data->is_called ||
		last + n > (last | (LOG_VALUES - 1)) ||
		PageGetLSN(BufferGetPage(buf)) <= GetRedoRecPtr();
	last += n;
	write_tuple(rel, buf, &tuple, last, true, logged);
	UnlockReleaseBuffer(buf);
	relation_close(rel, NoLock);
	sequence->largest = last;
	return last;
}

/*
 * Begin with the start value of the sequence, which this transaction has
 * created for a new feed.
 */
void
feedpub_position_begin(Oid seqid)
{
	Relation	rel = open_sequence(find_sequence(seqid));
	Form_pg_sequence_data data;
	HeapTupleData tuple;
	Buffer		buf;

	data = lock_tuple(rel, &buf, &tuple);
	write_tuple(rel, buf, &tuple, data->last_value, false, true);
	UnlockReleaseBuffer(buf);
	relation_close(rel, NoLock);
}

static Sequence *
find_sequence(Oid seqid)
{
	static FeedpubCache sequences = {"feedpub sequences", sizeof(Sequence)};
	static Sequence *sequence = NULL;

	if (sequence == NULL || sequence->head.relid != seqid)
		sequence = feedpub_cache_enter(&sequences, seqid);
	return sequence;
}

/*
 * Lock what is written to the end of the transaction.  The lock belongs to the top
 * transaction, as sequence.c does it, so it is taken once: *locked_by tells.
 */
void
feedpub_position_lock(Oid relid, LocalTransactionId *locked_by)
{
	LocalTransactionId own = feedpub_own_lxid();
	ResourceOwner owner = CurrentResourceOwner;

	if (*locked_by == own)
		return;
	CurrentResourceOwner = TopTransactionResourceOwner;
	LockRelationOid(relid, RowExclusiveLock);
	CurrentResourceOwner = owner;
	*locked_by = own;
}

static Relation
open_sequence(Sequence *sequence)
{
	feedpub_position_lock(sequence->head.relid, &sequence->locked_by);
	return relation_open(sequence->head.relid, NoLock);
}

/*
 * Lock the buffer of a sequence, and find its tuple.
 */
static Form_pg_sequence_data
lock_tuple(Relation rel, Buffer *buf, HeapTuple tuple)
{
	Page		page;
	ItemId		item;

	*buf = ReadBuffer(rel, 0);
	LockBuffer(*buf, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(*buf);
	item = PageGetItemId(page, FirstOffsetNumber);
	tuple->t_data = (HeapTupleHeader) PageGetItem(page, item);
	tuple->t_len = ItemIdGetLength(item);
	return (Form_pg_sequence_data) GETSTRUCT(tuple);
}

/*
 * A position that is not smaller than any that was assigned before, given the
 * last value of the sequence, and what was published.  The caller has the
 * buffer locked.
 */
static int64
beyond_all(const Sequence *sequence, int64 last, int64 published)
{
	int64		largest = (int64) GetXLogInsertRecPtr();

	if (published >= largest)
		largest += Min(published, PG_INT64_MAX - largest);
	return Max(Max(largest, sequence->largest), last);
}

/*
 * Write the tuple of a sequence, whose buffer is locked, and log it ahead if
 * logged is true.  The order is that of nextval_internal(): the record has
 * the state after the last position that it covers, and the page gets its own
 * state afterwards, before any other process can look.
 */
static void
write_tuple(Relation rel, Buffer buf, HeapTuple tuple, int64 last,
			bool is_called, bool logged)
{
	Form_pg_sequence_data data = (Form_pg_sequence_data) GETSTRUCT(tuple);

	logged = logged && RelationNeedsWAL(rel);

	/* so that the commit flushes the record */
	if (logged)
		(void) GetTopTransactionId();

	START_CRIT_SECTION();
	MarkBufferDirty(buf);
	data->is_called = is_called;
	data->log_cnt = RelationNeedsWAL(rel) ? MARK : UNLOGGED;
	if (logged)
	{
		xl_seq_rec	record = {rel->rd_locator};
		XLogRecPtr	end;

		data->last_value = is_called ? last | (LOG_VALUES - 1) : last;
		XLogBeginInsert();
		XLogRegisterBuffer(0, buf, REGBUF_WILL_INIT);
		XLogRegisterData((char *) &record, sizeof(record));
		XLogRegisterData((char *) tuple->t_data, tuple->t_len);
		end = XLogInsert(RM_SEQ_ID, XLOG_SEQ_LOG);
		PageSetLSN(BufferGetPage(buf), end);
	}
	data->last_value = last;
	END_CRIT_SECTION();
}
