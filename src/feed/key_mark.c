/*-------------------------------------------------------------------------
 *
 * key_mark.c
 *	  Whether the key of a table feed is what it was when its history began.
 *
 * ALTER TABLE can write other values into a column of the key, as ALTER COLUMN
 * k TYPE int USING k + 10 does.  No trigger fires, and the type may stay.  But
 * three things change together, and the registry keeps them as the key's mark:
 * the table has another file, the column another row in pg_attribute, and its
 * index another OID, since the server makes each index of such a column anew
 * (tablecmds.c: ATExecAlterColumnType, ATPostAlterTypeCleanup).  What keeps the
 * values changes one of them or two:
 *
 *		VACUUM FULL, CLUSTER, SET TABLESPACE, TRUNCATE,
 *		another column's rewrite						file
 *		RENAME, SET STATISTICS, SET DEFAULT, GRANT		column
 *		REINDEX CONCURRENTLY, another primary key		index
 *		ALTER TYPE that rewrites nothing				column, index
 *
 * So that these do not add up over the years, the publisher writes the mark
 * again if a part of it differs (feedpub_registry_note_key).  If all three
 * happen between two of its steps with news, that looks like other values, and
 * consumers begin again for nothing.
 *
 * Of a column's row the mark has the xmin, raw: freezing keeps it, in a rewrite
 * of pg_attribute too.  A partitioned table has no file; that of its first
 * partition that has one stands for it, for ALTER TABLE rewrites all of them.
 * If they have other ones because the first partition is another, that counts
 * as another file.  A mark of another server, or of another table, as a dump
 * brings it, says nothing; nor does a mark that is not there.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_inherits.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "feed/feed.h"

/* The mark of a key: an array of these, and then one for each column. */
#define MARK_SYSTEM		0		/* the server */
#define MARK_TABLE		1
#define MARK_FILE		2
#define MARK_INDEX		3
#define MARK_COLUMNS	4

/*
 * The file of a table, or the first one of its partitions.  No lock is taken on
 * them: the caller's lock on the table keeps ALTER TABLE away.
 */
static Oid
first_file(Oid relid)
{
	Oid			file = InvalidOid;
	ListCell   *lc;

	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(lfirst_oid(lc)));

		if (!HeapTupleIsValid(tuple))
			continue;
		file = ((Form_pg_class) GETSTRUCT(tuple))->relfilenode;
		ReleaseSysCache(tuple);
		if (OidIsValid(file))
			break;
	}
	return file;
}

/*
 * The mark of a key as it is now.  Returns its length.
 */
int
feedpub_mark_read(Relation rel, Oid keyid, int64 *mark)
{
	AttrNumber	attnos[INDEX_MAX_KEYS];
	int			nkeys = feedpub_key_columns(keyid, attnos);

	mark[MARK_SYSTEM] = (int64) GetSystemIdentifier();
	mark[MARK_TABLE] = RelationGetRelid(rel);
	mark[MARK_FILE] = first_file(RelationGetRelid(rel));
	mark[MARK_INDEX] = keyid;
	for (int i = 0; i < nkeys; i++)
	{
		HeapTuple	tuple = SearchSysCache2(ATTNUM,
											ObjectIdGetDatum(RelationGetRelid(rel)),
											Int16GetDatum(attnos[i]));

		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "cache lookup failed for attribute %d of relation %u",
				 attnos[i], RelationGetRelid(rel));
		mark[MARK_COLUMNS + i] = HeapTupleHeaderGetRawXmin(tuple->t_data);
		ReleaseSysCache(tuple);
	}
	return MARK_COLUMNS + nkeys;
}

/*
 * What has become of the key since the feed's history began?  It has changed if
 * a column has another type, or other values, or if it is another column, of
 * the same name.
 */
FeedpubKeyState
feedpub_mark_compare(Relation rel, Oid keyid, const FeedpubKey *key)
{
	AttrNumber	attnos[INDEX_MAX_KEYS];
	int			nkeys = feedpub_key_columns(keyid, attnos);
	int64		mark[FEEDPUB_KEY_MARK_LENGTH];
	int			nmark = feedpub_mark_read(rel, keyid, mark);
	bool		is_held = key->nmark == nmark &&
		mark[MARK_SYSTEM] == key->mark[MARK_SYSTEM] &&
		mark[MARK_TABLE] == key->mark[MARK_TABLE];
	bool		file_differs = mark[MARK_FILE] != key->mark[MARK_FILE];
	bool		index_differs = mark[MARK_INDEX] != key->mark[MARK_INDEX];
	bool		column_differs = memcmp(&mark[MARK_COLUMNS], &key->mark[MARK_COLUMNS],
										nkeys * sizeof(int64)) != 0;

	for (int i = 0; i < nkeys; i++)
	{
		if (feedpub_key_type(rel, attnos[i]) != key->types[i] ||
			(is_held && attnos[i] != key->attnos[i]))
			return FEEDPUB_KEY_CHANGED;
	}
	if (!is_held)
		return FEEDPUB_KEY_UNMARKED;
	if (file_differs && index_differs && column_differs)
		return FEEDPUB_KEY_CHANGED;
	return file_differs || index_differs || column_differs ?
		FEEDPUB_KEY_UNMARKED :
		FEEDPUB_KEY_SAME;
}
