/*-------------------------------------------------------------------------
 *
 * key.c
 *	  The key of a table feed's rows.
 *
 * A key is the columns of a unique index on columns that are not null: the
 * primary key, or an index that was named.  A deleted row's key is kept as
 * texts, as the types' output functions write it, so that it survives a dump.
 * It is read by the same types: the registry keeps those that the columns had
 * when the feed's history began, and if a column has another by now, readers
 * are refused until another history begins (history.c); and so they are if
 * ALTER TABLE has written other values into it (key_mark.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/stratnum.h"
#include "catalog/pg_am.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_type.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/typcache.h"

#include "feed/feed.h"

/* A key that was kept as texts, to be read as values. */
typedef struct KeyTexts
{
	Relation	rel;
	Relation	index;
	Datum		key;
	Datum	   *values;
} KeyTexts;

/*
 * The reason why an index cannot be a key, as the end of a sentence; NULL if
 * it can.
 */
const char *
feedpub_key_problem(Relation rel, Relation index)
{
	Form_pg_index form = index->rd_index;

	if (index->rd_rel->relam != BTREE_AM_OID || !form->indisunique)
		return "is not unique";
	if (!form->indisvalid || !form->indisready || !form->indislive)
		return "is not valid";
	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return "is partial";
	if (!form->indimmediate)
		return "is deferrable";
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		AttrNumber	attno = form->indkey.values[i];

		if (attno <= 0)
			return "is on an expression";
		if (!TupleDescAttr(RelationGetDescr(rel), attno - 1)->attnotnull)
			return "is on a column that may be null";

		/* it is computed after our trigger has run */
		if (TupleDescAttr(RelationGetDescr(rel), attno - 1)->attgenerated != '\0')
			return "is on a generated column";
	}
	return NULL;
}

/*
 * The index of a table's primary key.  It may be deferrable: then it can be no
 * key, and the error says why.  The relcache of some versions leaves it out.
 */
Oid
feedpub_key_primary(Relation rel)
{
	Oid			constraint;

	(void) get_primary_key_attnos(RelationGetRelid(rel), true, &constraint);
	return OidIsValid(constraint) ? get_constraint_index(constraint) : InvalidOid;
}

/*
 * The elements of an array, none of them null; *n becomes at most their number.
 */
static Datum *
load_array(Datum array, Oid type, int *n)
{
	int16		length;
	bool		by_value;
	char		align;
	Datum	   *values;
	bool	   *nulls;
	int			nvalues;

	get_typlenbyvalalign(type, &length, &by_value, &align);
	deconstruct_array(DatumGetArrayTypeP(array), type, length, by_value, align,
					  &values, &nulls, &nvalues);
	*n = Min(*n, nvalues);
	return values;
}

/*
 * A key as the registry keeps it: names, numbers and types of its columns, and
 * its mark, 0 if there is none.
 */
void
feedpub_key_load(FeedpubKey *key, Datum names, Datum attnums, Datum types,
				 Datum mark)
{
	int			n = INDEX_MAX_KEYS;
	Datum	   *name_values = load_array(names, NAMEOID, &n);
	Datum	   *attnum_values = load_array(attnums, INT2OID, &n);
	Datum	   *type_values = load_array(types, REGTYPEOID, &n);
	Datum	   *mark_values;

	for (int i = 0; i < n; i++)
	{
		namestrcpy(&key->names[i], NameStr(*DatumGetName(name_values[i])));
		key->attnos[i] = DatumGetInt16(attnum_values[i]);
		key->types[i] = DatumGetObjectId(type_values[i]);
	}
	key->ncolumns = n;
	key->nmark = 0;
	MemSet(key->mark, 0, sizeof(key->mark));
	if (DatumGetPointer(mark) == NULL)
		return;
	key->nmark = FEEDPUB_KEY_MARK_LENGTH;
	mark_values = load_array(mark, INT8OID, &key->nmark);
	for (int i = 0; i < key->nmark; i++)
		key->mark[i] = DatumGetInt64(mark_values[i]);
}

/*
 * The type by which the texts of a column are read, as the registry keeps it.
 * Of a domain it is the base type.  varchar and text read and write the same
 * texts, and a length matters to neither.
 */
Oid
feedpub_key_type(Relation rel, AttrNumber attno)
{
	Oid			type = getBaseType(TupleDescAttr(RelationGetDescr(rel), attno - 1)->atttypid);

	return type == VARCHAROID ? TEXTOID : type;
}

/*
 * The index that is a table feed's key: one on these columns, by number or,
 * after a dump, by name.  InvalidOid if there is none.  If the numbers hold,
 * they come first, since two columns may have swapped their names.
 */
Oid
feedpub_key_index(Relation rel, const FeedpubKey *key)
{
	Oid			by_number = InvalidOid;
	Oid			by_name = InvalidOid;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		bool		same_numbers = index->rd_index->indnkeyatts == key->ncolumns &&
			key->ncolumns > 0 && feedpub_key_problem(rel, index) == NULL;
		bool		same_names = same_numbers;

		for (int i = 0; i < key->ncolumns && (same_numbers || same_names); i++)
		{
			AttrNumber	attno = index->rd_index->indkey.values[i];

			if (attno != key->attnos[i])
				same_numbers = false;
			if (strcmp(NameStr(TupleDescAttr(RelationGetDescr(rel), attno - 1)->attname),
					   NameStr(key->names[i])) != 0)
				same_names = false;
		}
		if (same_numbers)
			by_number = RelationGetRelid(index);
		if (same_names)
			by_name = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	if (key->numbers_hold)
		return OidIsValid(by_number) ? by_number : by_name;
	return OidIsValid(by_name) ? by_name : by_number;
}

/*
 * A key's columns, whether or not its index exists, by number or name as
 * above.  Returns their number, 0 if one of them is gone.
 */
int
feedpub_key_attnos(Relation rel, const FeedpubKey *key, AttrNumber *attnos)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < key->ncolumns; i++)
	{
		AttrNumber	by_number = key->attnos[i];
		AttrNumber	by_name = get_attnum(RelationGetRelid(rel), NameStr(key->names[i]));

		/* a partition may have no such column any more: then it is 0 */
		if (by_number <= 0 || by_number > desc->natts ||
			TupleDescAttr(desc, by_number - 1)->attisdropped)
			by_number = InvalidAttrNumber;
		attnos[i] = by_name;
		if (by_number > 0 && (key->numbers_hold || by_name <= 0))
			attnos[i] = by_number;
		if (attnos[i] <= 0)
			return 0;
	}
	return key->ncolumns;
}

/*
 * Turn a partitioned table's key into a partition's.  The columns have the
 * same names there but may have other numbers.
 */
void
feedpub_key_of_partition(Oid relid, Oid partition, FeedpubKey *key)
{
	for (int i = 0; i < key->ncolumns; i++)
	{
		/* renamed after it was stored? */
		if (key->numbers_hold ||
			get_attnum(relid, NameStr(key->names[i])) == InvalidAttrNumber)
		{
			char	   *name = get_attname(relid, key->attnos[i], true);

			if (name != NULL)
				namestrcpy(&key->names[i], name);
		}
		key->attnos[i] = get_attnum(partition, NameStr(key->names[i]));
	}
}

/*
 * The columns of a key, in their order in the index.  Returns their number.
 */
int
feedpub_key_columns(Oid keyid, AttrNumber *attnos)
{
	Relation	index = index_open(keyid, AccessShareLock);
	int			nkeys = index->rd_index->indnkeyatts;

	for (int i = 0; i < nkeys; i++)
		attnos[i] = index->rd_index->indkey.values[i];
	index_close(index, AccessShareLock);
	return nkeys;
}

/*
 * Do a type's texts not depend on settings, neither written nor read?
 */
static bool
prints_the_same_everywhere(Oid type)
{
	switch (type)
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case UUIDOID:
			return true;
		default:
			return false;
	}
}

/*
 * Set what texts of values depend on, in both directions: what one session has
 * written, another reads.  As in postgres_fdw.c: set_transmission_modes.
 * Returns the level for AtEOXact_GUC().
 *
 * array_nulls is about reading only; lc_monetary is for money, search_path and
 * quote_all_identifiers are for regclass and its like.
 */
int
feedpub_key_pin_settings(void)
{
	static const char *const settings[][2] = {
		{"datestyle", "ISO"},
		{"timezone", "UTC"},
		{"intervalstyle", "postgres"},
		{"extra_float_digits", "3"},
		{"bytea_output", "hex"},
		{"array_nulls", "on"},
		{"lc_monetary", "C"},
		{"quote_all_identifiers", "off"},
		{"search_path", "pg_catalog"},
	};
	int			nestlevel = NewGUCNestLevel();

	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i][0], settings[i][1],
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	return nestlevel;
}

/*
 * The same if the text of a key depends on them, for feedpub_key_pinned_texts().
 * To be ended by feedpub_key_unpin().
 */
int
feedpub_key_pin(TupleDesc desc, int nkeys, const AttrNumber *attnos)
{
	for (int i = 0; i < nkeys; i++)
	{
		if (!prints_the_same_everywhere(TupleDescAttr(desc, attnos[i] - 1)->atttypid))
			return feedpub_key_pin_settings();
	}
	return -1;
}

void
feedpub_key_unpin(int pinned)
{
	if (pinned >= 0)
		AtEOXact_GUC(false, pinned);
}

/*
 * A row's key as a text[].  The caller has pinned the settings.
 */
Datum
feedpub_key_pinned_texts(TupleDesc desc, int nkeys, const AttrNumber *attnos,
						 TupleTableSlot *slot)
{
	Datum		texts[INDEX_MAX_KEYS];

	for (int i = 0; i < nkeys; i++)
	{
		Oid			output;
		bool		is_varlena;
		bool		isnull;
		Datum		value = slot_getattr(slot, attnos[i], &isnull);

		if (isnull)
			elog(ERROR, "column %d of a key is null", attnos[i]);
		getTypeOutputInfo(TupleDescAttr(desc, attnos[i] - 1)->atttypid, &output, &is_varlena);
		texts[i] = CStringGetTextDatum(OidOutputFunctionCall(output, value));
	}
	return PointerGetDatum(construct_array(texts, nkeys, TEXTOID, -1, false,
										   TYPALIGN_INT));
}

Datum
feedpub_key_texts(TupleDesc desc, int nkeys, const AttrNumber *attnos,
				  TupleTableSlot *slot)
{
	int			pinned = feedpub_key_pin(desc, nkeys, attnos);
	Datum		texts = feedpub_key_pinned_texts(desc, nkeys, attnos, slot);

	feedpub_key_unpin(pinned);
	return texts;
}

/*
 * The first column of a key whose texts cannot be read without running an
 * owner's code, or 0.  Those of a domain are read by its base type, since a
 * domain's check is its owner's code.  Inside of an array, a composite type or a
 * range, the server's input functions run it.  Of the types that users create,
 * only a base type, which is a superuser's, and an enum have none inside.
 */
AttrNumber
feedpub_key_runs_code(Relation rel, Relation index)
{
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		AttrNumber	attno = index->rd_index->indkey.values[i];
		Oid			type = feedpub_key_type(rel, attno);
		Oid			element = get_element_type(type);
		char		kind = get_typtype(OidIsValid(element) ? element : type);

		if (type >= FirstNormalObjectId && kind != TYPTYPE_BASE && kind != TYPTYPE_ENUM)
			return attno;
	}
	return 0;
}

/*
 * Read the values, by the columns' base types.  No length or precision is
 * applied: it was when the row was written.
 */
static void
read_values(void *arg)
{
	KeyTexts   *read = arg;
	Form_pg_index form = read->index->rd_index;
	int			ntexts = INT_MAX;
	Datum	   *texts = load_array(read->key, TEXTOID, &ntexts);
	int			nestlevel = -1;

	if (ntexts != form->indnkeyatts)
		elog(ERROR, "a key of %d columns was kept as %d texts",
			 form->indnkeyatts, ntexts);
	for (int i = 0; i < ntexts; i++)
	{
		Oid			type = feedpub_key_type(read->rel, form->indkey.values[i]);
		Oid			input;
		Oid			param;

		if (nestlevel < 0 && !prints_the_same_everywhere(type))
			nestlevel = feedpub_key_pin_settings();
		getTypeInputInfo(type, &input, &param);
		read->values[i] = OidInputFunctionCall(input, TextDatumGetCString(texts[i]),
											   param, -1);
	}
	feedpub_key_unpin(nestlevel);
}

/*
 * The values of a key that was kept as texts, in the order of the index.
 * Returns NULL, or the error of an input function: a type may have lost a
 * value, as an enum can.  A row that is gone must not stop a reader.
 *
 * This runs no owner's code: feed_attach() makes sure of that, but a column may
 * have got another type after it.  Then the page is refused with 55000.  The
 * delete must not be left out, and it must not be delivered either, since a
 * row may have its key.
 */
const char *
feedpub_key_values(Relation rel, Relation index, Datum key, Datum *values)
{
	KeyTexts	read = {.rel = rel, .index = index, .key = key, .values = values};
	AttrNumber	attno = feedpub_key_runs_code(rel, index);

	if (attno != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("deletes of feed \"%s\" cannot be read",
						RelationGetRelationName(rel)),
				 errdetail("The type of the key's column \"%s\" can have a domain inside.",
						   NameStr(TupleDescAttr(RelationGetDescr(rel), attno - 1)->attname)),
				 errhint("Detach the table, change the type, and attach it again.")));
	return feedpub_attempt(read_values, &read);
}

/*
 * The row with this key in a snapshot, in a slot of its own; NULL if there is
 * none.
 */
TupleTableSlot *
feedpub_key_find(Relation rel, Relation index, Datum *values, Snapshot snapshot)
{
	ScanKeyData keys[INDEX_MAX_KEYS];
	int			nkeys = index->rd_index->indnkeyatts;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	bool		found;

	for (int i = 0; i < nkeys; i++)
	{
		Oid			equal = get_opfamily_member(index->rd_opfamily[i],
												index->rd_opcintype[i],
												index->rd_opcintype[i],
												BTEqualStrategyNumber);

		if (!OidIsValid(equal))
			elog(ERROR, "index %u has no equality operator for column %d",
				 RelationGetRelid(index), i + 1);
		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber,
							   index->rd_opcintype[i], index->rd_indcollation[i],
							   get_opcode(equal), values[i]);
	}
	slot = table_slot_create(rel, NULL);
	scan = feedpub_snapshot_begin_scan(rel, index, snapshot, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	index_endscan(scan);
	if (found)
		return slot;
	ExecDropSingleTupleTableSlot(slot);
	return NULL;
}

/*
 * Is there a row with this key in a snapshot?  If so, *living is its key as
 * texts.
 */
bool
feedpub_key_lives(Relation rel, Relation index, Datum *values,
				  Snapshot snapshot, Datum *living)
{
	TupleTableSlot *slot = feedpub_key_find(rel, index, values, snapshot);

	if (slot == NULL)
		return false;
	*living = feedpub_key_texts(RelationGetDescr(rel), index->rd_index->indnkeyatts,
								index->rd_index->indkey.values, slot);
	ExecDropSingleTupleTableSlot(slot);
	return true;
}

/*
 * The columns by which a feed is divided into shards: those of a table feed's
 * key; of a change feed relation and key; of an outbox message_key and, for
 * rows without, message_id.  Returns
 * their number.  Raises 55000 if there is no key.
 */
int
feedpub_key_of_feed(const FeedpubFeed *feed, Relation rel, AttrNumber *attnos)
{
	if (feed->is_outbox)
	{
		attnos[0] = get_attnum(feed->relid, feed->is_changes ? "relation" : "message_key");
		attnos[1] = get_attnum(feed->relid, feed->is_changes ? "key" : "message_id");
		if (attnos[0] != InvalidAttrNumber && attnos[1] != InvalidAttrNumber)
			return 2;
	}
	else if (OidIsValid(feed->keyid))
		return feedpub_key_columns(feed->keyid, attnos);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("feed \"%s\" has no key to divide it by",
					RelationGetRelationName(rel))));
}

/*
 * Do values of a column print alike if they are equal for an operator class?
 *
 * The classes of bpchar, which ignore trailing blanks, cannot say.  In a
 * column of char(n) all values are padded alike.  In a bpchar column without a
 * length they are not, nor in a varchar column that is compared as bpchar.
 */
static bool
equal_is_same_text(Form_pg_attribute att, Oid opfamily, Oid opcintype,
				   Oid collation)
{
	Oid			proc;

	if (!OidIsValid(opfamily))
		return false;
	if (opcintype == BPCHAROID)
	{
		int32		typmod = att->atttypmod;

		return getBaseTypeAndTypmod(att->atttypid, &typmod) == BPCHAROID &&
			typmod >= 0 && get_collation_isdeterministic(collation);
	}
	proc = get_opfamily_proc(opfamily, opcintype, opcintype, BTEQUALIMAGE_PROC);
	return OidIsValid(proc) &&
		DatumGetBool(OidFunctionCall1Coll(proc, collation, ObjectIdGetDatum(opcintype)));
}

/*
 * Raise 0A000 if two values of a feed's key can be equal and print
 * differently: they would be in two shards, and so could an upsert of a row
 * and its delete.
 *
 * The operator class decides, as it does for deduplication in an index: it
 * says whether equal values have the same image (nbtutils.c:
 * _bt_allequalimage).  Those of numeric, floats, citext, arrays and
 * nondeterministic collations do not say so.  For an outbox the default
 * classes of its columns' types decide.  The key of a change feed is text that
 * we have made, so its rows are always told apart.
 *
 * This is checked at each page, since a column's type and collation may
 * change.  If feed_attach() finds another key than before, it begins a new
 * history.
 */
void
feedpub_key_check_shards(const FeedpubFeed *feed, Relation rel)
{
	AttrNumber	attnos[INDEX_MAX_KEYS];
	int			nkeys = feed->is_changes ? 0 : feedpub_key_of_feed(feed, rel, attnos);
	Relation	index = feed->is_outbox ? NULL : index_open(feed->keyid, AccessShareLock);

	for (int i = 0; i < nkeys; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(rel), attnos[i] - 1);
		bool		prints_as_equal;

		if (index != NULL)
			prints_as_equal = equal_is_same_text(att, index->rd_opfamily[i],
												 index->rd_opcintype[i],
												 index->rd_indcollation[i]);
		else
		{
			TypeCacheEntry *type = lookup_type_cache(att->atttypid, TYPECACHE_BTREE_OPFAMILY);

			prints_as_equal = equal_is_same_text(att, type->btree_opf,
												 type->btree_opintype,
												 att->attcollation);
		}
		if (!prints_as_equal)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("feed \"%s\" cannot be divided into shards",
							RelationGetRelationName(rel)),
					 errdetail("Values of column \"%s\", which is in its key, can be equal and print differently, and would lie in different shards.",
							   NameStr(att->attname)),
					 errhint("Read the feed whole, or give it a key of a type and collation whose equal values print alike.")));
	}
	if (index != NULL)
		index_close(index, AccessShareLock);
}

/*
 * The shard of a key, from 0: the first four bytes of the SHA-256 of its
 * texts, with a unit separator (0x1f) between them, as a big-endian number,
 * modulo shards.  Any program can compute that, in any version, so it does not
 * change.
 *
 * The bytes are those of the database's encoding.  A conversion could fail: a
 * database in WIN1252 accepts the byte 0x81, which is no character.
 */
int
feedpub_key_shard(Datum key, int shards)
{
	StringInfoData joined;
	int			ntexts = INT_MAX;
	Datum	   *texts = load_array(key, TEXTOID, &ntexts);
	Datum		hash;
	uint32		number;

	initStringInfo(&joined);
	for (int i = 0; i < ntexts; i++)
	{
		if (i > 0)
			appendStringInfoChar(&joined, '\x1f');
		appendBinaryStringInfo(&joined, VARDATA_ANY(DatumGetPointer(texts[i])),
							   VARSIZE_ANY_EXHDR(DatumGetPointer(texts[i])));
	}
	hash = DirectFunctionCall1(sha256_bytea,
							   PointerGetDatum(cstring_to_text_with_len(joined.data, joined.len)));
	memcpy(&number, VARDATA_ANY(DatumGetPointer(hash)), sizeof(number));
	return (int) (pg_ntoh32(number) % (uint32) shards);
}
