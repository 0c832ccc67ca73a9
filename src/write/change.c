/*-------------------------------------------------------------------------
 *
 * change.c
 *	  Where a change is written into a change feed, in the order of the
 *	  versions of its row.
 *
 * A change is written by the AFTER trigger of its table (capture.c).  The
 * server calls such triggers when the rows of a statement have been written.
 * So if the statement's own functions or triggers change a row again, by a
 * statement inside, the trigger is called for the later version first.  If that
 * is so, is known only when the trigger is called for the earlier version.
 *
 * Then the later change is taken out of the feed and written again, after the
 * earlier one.  Nobody has seen it: both are this transaction's.  For that, a
 * change of a version that this transaction has made is remembered: its link
 * says which version it replaced, by which, and which entry of the feed tells
 * of it.  When the trigger is called for a version, what the links say of it,
 * and of the versions after it, is written again, in their order.
 *
 * The argument.  After each call, the entries that are in the feed of each row
 * are in the order of its versions.  It holds for none.  A call for version v
 * writes its entry at the end.  Entries of versions before v may be there, and
 * lie before.  Entries of versions after v lie before it only if they have been
 * written; these are, or follow, changes of versions that this transaction has
 * made, so their links are there, one for each step, and all of them are
 * written again.  At the end of a statement the trigger has been called for each
 * change of it, so the entries of all versions are there.
 *
 * A change that writes no entry (none of the captured columns differs) has a
 * link, too, so the chain is whole.
 *
 * Links are kept until the next statement of the client, which begins when all
 * triggers of the one before have been called, or to the end of the
 * transaction.  A link that was made in a savepoint which was rolled back counts
 * as none: the space of its versions may have been used again, for others.
 * None can go earlier: it is needed while a statement around this one has still to
 * call our trigger, and nothing tells a function whether there is such a statement.
 *
 * One key has several rows, one after the other.  They have no links, so a delete,
 * or an UPDATE of the key, can be written (again) after the entry of the row that has
 * the key now: a trigger or function in the statement has inserted that, in a later
 * command than the delete's, of which our trigger is called first.  Then that row
 * is told again, by an insert after the delete (capture.c): a consumer that applies
 * the entries by key ends with it.  It is looked for if an entry of a later command
 * was written before: while a row has the key, no other gets it, and what a
 * command has inserted no earlier one deletes, so that row came after.
 *
 * An UPDATE that moves a row to another partition calls the triggers of DELETE
 * on one and of INSERT on the other, one after the other.  The deleted version
 * says that it has moved, and both have the same command.  So the delete is
 * written, and when the insert comes, taken out again: the entry is an update.
 * If a trigger of the user's has prevented the insert, it stays a delete.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/index.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "storage/proc.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "write/write.h"

/* The columns that we write, by enum FeedpubChangeColumn. */
const FeedpubChangeColumnType feedpub_change_columns[] = {
	{FEEDPUB_XID_COLUMN, XID8OID},
	{FEEDPUB_POS_COLUMN, INT8OID},
	{"op", TEXTOID},
	{"relation", TEXTOID},
	{"key", JSONOID},
	{FEEDPUB_CHANGES_COLUMN, JSONOID},
	{"row", JSONOID},
	{"old", JSONOID},
	{"error", TEXTOID},
	{"statement", INT8OID},
};

/* What has become of it. */
typedef struct Link
{
	FeedpubVersion version;		/* the hash key */
	TransactionId xid;			/* that has changed it */
	bool		has_next;
	FeedpubVersion next;
	FeedpubWritten entry;		/* pos 0: none */
} Link;

/* of this statement of the client, in this transaction; else they are old */
static LocalTransactionId links_lxid = InvalidLocalTransactionId;
static TimestampTz links_statement;
static HTAB *links = NULL;
static List *moves = NIL;

static bool learn_indexes(FeedpubChangeFeed *to, Relation feed);
static void insert(FeedpubChangeFeed *to, Relation feed, FullTransactionId xid,
				   FeedpubWritten *written);
static bool take_out(FeedpubChangeFeed *to, Relation feed, const FeedpubWritten *written);
static void forget_old_links(void);
static void set_version(FeedpubVersion *version, Oid feed, Relation rel, ItemPointer tid);

/*
 * Learn how to write into a change feed, in the current memory context, to
 * which the result belongs.  Returns false if it cannot be done: the owner has
 * altered what it needs, or has added what our INSERT would have to run.  The
 * caller has locked it, as for an INSERT.
 */
bool
feedpub_change_learn(FeedpubChangeFeed *to, Oid relid)
{
	Relation	feed;
	bool		result = feedpub_registry_kind(relid) == FEEDPUB_KIND_CHANGES;

	to->nindexes = 0;
	to->relid = relid;
	to->seqid = feedpub_relation_sequence(relid);
	if (!result || !OidIsValid(to->seqid))
		return false;
	feed = table_open(relid, NoLock);
	result = feed->rd_rel->relkind == RELKIND_RELATION && feed->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT &&
		get_rel_persistence(to->seqid) == RELPERSISTENCE_PERMANENT;
	for (int i = 0; i < FEEDPUB_CHANGE_NCOLUMNS; i++)
	{
		Form_pg_attribute att;

		to->attnos[i] = get_attnum(relid, feedpub_change_columns[i].name);
		att = to->attnos[i] > 0 ? TupleDescAttr(RelationGetDescr(feed), to->attnos[i] - 1) : NULL;
		result = result && att != NULL && att->atttypid == feedpub_change_columns[i].type &&
			(att->attlen > 0 || att->attstorage != TYPSTORAGE_PLAIN);
	}
	for (AttrNumber attno = 1; attno <= RelationGetDescr(feed)->natts; attno++)
	{
		if (attno != to->attnos[FEEDPUB_CHANGE_XID] && attno != to->attnos[FEEDPUB_CHANGE_POS] &&
			attno != to->attnos[FEEDPUB_CHANGE_OP] &&
			TupleDescAttr(RelationGetDescr(feed), attno - 1)->attnotnull)
			result = false;
	}
	result = result && learn_indexes(to, feed);
	if (result)
		to->slot = MakeSingleTupleTableSlot(CreateTupleDescCopy(RelationGetDescr(feed)), &TTSOpsVirtual);
	table_close(feed, NoLock);
	return result;
}

/*
 * Why a row cannot be entered into an index without running anybody's code, or
 * without a reason to fail, as the end of a sentence; NULL if it can.
 * Expressions are not looked at, for that would run them (feed/catalog.c).  A
 * unique index that has the position cannot find its values twice: REINDEX
 * CONCURRENTLY makes such a one beside the index on the stamp.
 */
const char *
feedpub_change_index_problem(Relation index)
{
	AttrNumber	pos = get_attnum(index->rd_index->indrelid, FEEDPUB_POS_COLUMN);
	bool		has_pos = false;

	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL))
		return "has an expression";
	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return "is partial";
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		has_pos |= index->rd_index->indkey.values[i] == pos;
	if (index->rd_index->indisexclusion || (index->rd_index->indisunique && !has_pos))
		return "is unique";
	return NULL;
}

static bool
learn_indexes(FeedpubChangeFeed *to, Relation feed)
{
	List	   *indexes = RelationGetIndexList(feed);
	bool		result = OidIsValid(feedpub_relation_index(feed));
	ListCell   *lc;

	to->indexes = palloc0((list_length(indexes) + 1) * sizeof(*to->indexes));
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		result = result && feedpub_change_index_problem(index) == NULL;
		if (result)
		{
			to->indexes[to->nindexes].indexid = lfirst_oid(lc);
			to->indexes[to->nindexes++].info = BuildIndexInfo(index);
		}
		index_close(index, AccessShareLock);
	}
	return result;
}

/*
 * Write an entry.  values and nulls have the columns from FEEDPUB_CHANGE_OP on.
 * No right is checked: the writer needs none.
 */
void
feedpub_change_write(FeedpubChangeFeed *to, const Datum *values, const bool *nulls,
					 FeedpubWritten *written)
{
	FullTransactionId xid = GetTopFullTransactionId();
	Relation	feed = table_open(to->relid, NoLock);
	TupleTableSlot *slot = to->slot;

	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, slot->tts_tupleDescriptor->natts * sizeof(bool));
	for (int i = FEEDPUB_CHANGE_OP; i < FEEDPUB_CHANGE_NCOLUMNS; i++)
	{
		slot->tts_values[to->attnos[i] - 1] = values[i];
		slot->tts_isnull[to->attnos[i] - 1] = nulls[i];
	}
	insert(to, feed, xid, written);
	feedpub_wake_note(to->relid);
	table_close(feed, NoLock);
}

/*
 * Insert what is in the slot, with a new stamp.  The xid is assigned before the
 * position is taken (stamp.c).
 */
static void
insert(FeedpubChangeFeed *to, Relation feed, FullTransactionId xid, FeedpubWritten *written)
{
	TupleTableSlot *slot = to->slot;

	written->pos = feedpub_position_take(to->relid, to->seqid, 1);
	slot->tts_values[to->attnos[FEEDPUB_CHANGE_XID] - 1] = FullTransactionIdGetDatum(xid);
	slot->tts_values[to->attnos[FEEDPUB_CHANGE_POS] - 1] = Int64GetDatum(written->pos);
	slot->tts_isnull[to->attnos[FEEDPUB_CHANGE_XID] - 1] = false;
	slot->tts_isnull[to->attnos[FEEDPUB_CHANGE_POS] - 1] = false;
	ExecStoreVirtualTuple(slot);
	table_tuple_insert(feed, slot, GetCurrentCommandId(true), 0, NULL);
	written->tid = slot->tts_tid;
	for (int i = 0; i < to->nindexes; i++)
	{
		struct IndexInfo *info = to->indexes[i].info;
		Relation	index;
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		feedpub_position_lock(to->indexes[i].indexid, &to->indexes[i].locked_by);
		index = index_open(to->indexes[i].indexid, NoLock);

		/* no two positions are equal, so nothing is looked for */
		FormIndexDatum(info, slot, NULL, values, nulls);
		if (index->rd_index->indisready)
			index_insert(index, values, nulls, &slot->tts_tid, feed, UNIQUE_CHECK_NO, false, info);
		index_close(index, NoLock);
	}
	ExecClearTuple(slot);
}

/*
 * Remove an entry that this transaction has written, if it is still there, and
 * leave its values in the slot.  They may lie out of line, so they go only at
 * the end of the transaction.
 */
static bool
take_out(FeedpubChangeFeed *to, Relation feed, const FeedpubWritten *written)
{
	TupleTableSlot *slot = to->slot;
	TupleTableSlot *found = table_slot_create(feed, NULL);
	ItemPointerData tid = written->tid;
	bool		isnull;
	bool		is_there = written->pos != 0 &&
		table_tuple_fetch_row_version(feed, &tid, SnapshotSelf, found) &&
		DatumGetInt64(slot_getattr(found, to->attnos[FEEDPUB_CHANGE_POS], &isnull)) == written->pos;

	if (is_there)
	{
		slot_getallattrs(found);
		ExecClearTuple(slot);
		for (int i = 0; i < found->tts_tupleDescriptor->natts; i++)
		{
			Form_pg_attribute att = TupleDescAttr(found->tts_tupleDescriptor, i);

			slot->tts_isnull[i] = found->tts_isnull[i];
			if (found->tts_isnull[i] || att->attisdropped)
				continue;
			slot->tts_values[i] = att->attlen == -1 ?
				PointerGetDatum(PG_DETOAST_DATUM_COPY(found->tts_values[i])) :
				datumCopy(found->tts_values[i], att->attbyval, att->attlen);
		}
		/* a command sees only what commands before it have written */
		CommandCounterIncrement();
		simple_table_tuple_delete(feed, &tid, SnapshotSelf);
	}
	ExecDropSingleTupleTableSlot(found);
	return is_there;
}

/*
 * Keep the order of a row's versions, after the entry of a change has been
 * written, or none.  old is the version that was replaced, or NULL; new the one
 * that has replaced it, or NULL.  *versions gets new, and the versions after
 * it, if there are any.
 */
void
feedpub_change_link(FeedpubChangeFeed *to, Relation old_rel, HeapTuple old,
					Relation new_rel, HeapTuple new, const FeedpubWritten *written,
					List **versions)
{
	FeedpubVersion version;
	Link	   *link;

	forget_old_links();
	if (new != NULL && links != NULL)
	{
		Relation	feed = table_open(to->relid, NoLock);
		FullTransactionId xid = GetTopFullTransactionId();

		set_version(&version, to->relid, new_rel, &new->t_self);
		for (bool has_next = true; has_next; version = link->next)
		{
			link = hash_search(links, &version, HASH_FIND, NULL);
			if (link != NULL && !TransactionIdIsCurrentTransactionId(link->xid))
				link = NULL;
			if (link != NULL || *versions != NIL)
				*versions = lappend(*versions, memcpy(palloc_object(FeedpubVersion), &version, sizeof(version)));
			if (link == NULL)
				break;
			if (take_out(to, feed, &link->entry))
				insert(to, feed, xid, &link->entry);
			has_next = link->has_next;
		}
		table_close(feed, NoLock);
	}

	/*
	 * Others' versions, and those of earlier transactions, have their entries.
	 * COPY ... (FREEZE) hides whose a version is.
	 */
	if (old == NULL ||
		!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(old->t_data)))
		return;
	if (links == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(FeedpubVersion), .entrysize = sizeof(Link), .hcxt = TopTransactionContext};

		links = hash_create("feedpub changes", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	set_version(&version, to->relid, old_rel, &old->t_self);
	link = hash_search(links, &version, HASH_ENTER, NULL);
	link->xid = GetCurrentTransactionId();
	link->has_next = new != NULL;
	if (new != NULL)
		set_version(&link->next, to->relid, new_rel, &new->t_self);
	link->entry = *written;
}

static void
set_version(FeedpubVersion *version, Oid feed, Relation rel, ItemPointer tid)
{
	memset(version, 0, sizeof(FeedpubVersion));
	version->feed = feed;
	version->table = RelationGetRelid(rel);
	version->file = rel->rd_rel->relfilenode;
	ItemPointerCopy(tid, &version->tid);
}

/*
 * Forget the links of another transaction, whose memory is gone, or of the
 * client's statement before.
 */
static void
forget_old_links(void)
{
	LocalTransactionId lxid = feedpub_own_lxid();
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	if (links_lxid == lxid && links_statement == statement)
		return;
	if (links_lxid == lxid && links != NULL)
		hash_destroy(links);
	links = NULL;
	moves = NIL;
	links_lxid = lxid;
	links_statement = statement;
}

/*
 * Remember a row that was deleted since it moves to another partition of root,
 * and the entry of the delete.
 */
void
feedpub_changes_begin_move(FeedpubChangeFeed *to, Oid root, Relation rel, HeapTuple old,
						   const FeedpubWritten *written)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	FeedpubMoved *move = palloc_object(FeedpubMoved);

	forget_old_links();
	move->feed = to->relid;
	move->root = root;
	move->partition = RelationGetRelid(rel);
	move->command = HeapTupleHeaderGetCmax(old->t_data);
	move->old = heap_copytuple(old);
	move->written = *written;
	moves = lappend(moves, move);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Is this the insert of a row that moves?  Then its delete is taken out of the
 * feed, and returned.  The newest move of this command is the one: the triggers
 * of the two are called one after the other, but for those of commands inside,
 * which have ended.  Older ones have no insert.
 */
FeedpubMoved *
feedpub_change_end_move(FeedpubChangeFeed *to, Oid root, HeapTuple new)
{
	CommandId	command;

	forget_old_links();
	if (moves == NIL || !TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(new->t_data)))
		return NULL;
	command = HeapTupleHeaderGetCmin(new->t_data);
	for (int i = list_length(moves) - 1; i >= 0; i--)
	{
		FeedpubMoved *move = list_nth(moves, i);
		Relation	feed;
		bool		is_there;

		if (move->command < command)
			break;
		if (move->feed != to->relid || move->root != root || move->command != command)
			continue;
		moves = list_delete_nth_cell(moves, i);
		feed = table_open(to->relid, NoLock);
		is_there = take_out(to, feed, &move->written);
		table_close(feed, NoLock);
		return is_there ? move : NULL;
	}
	return NULL;
}
