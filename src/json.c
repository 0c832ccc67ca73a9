/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Rows of a page as JSON objects: all columns but the stamp's, or those of
 *	  the key.  The objects are row_to_json()'s.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "feedpub.h"

/* Which columns of a row make an object. */
typedef struct JsonShape
{
	TupleDesc	full;			/* the table's */
	TupleDesc	desc;			/* the object's */
	int			natts;
	AttrNumber *attnos;			/* of its columns in the table */
	Datum	   *values;
	bool	   *nulls;
	MemoryContext context;		/* of one object being made */
} JsonShape;

struct FeedpubJson
{
	JsonShape	row;
	JsonShape	key;			/* without desc if there is no key */
};

static void make_shape(JsonShape *shape, TupleDesc full, int natts,
					   const AttrNumber *attnos);
static void append_object(StringInfo json, JsonShape *shape,
						  HeapTupleHeader entry);
static void append_key(StringInfo json, const JsonShape *shape,
					   HeapTupleHeader entry, Datum key);
static void append_values(StringInfo json, JsonShape *shape);

/*
 * The shapes of the entries of a page.
 */
FeedpubJson *
feedpub_json_begin(const FeedpubPage *page)
{
	FeedpubJson *json = palloc0_object(FeedpubJson);
	TupleDesc	full = RelationGetDescr(page->heap);
	AttrNumber *attnos = palloc(full->natts * sizeof(AttrNumber));
	int			natts = 0;

	for (int i = 0; i < full->natts; i++)
	{
		if (!TupleDescAttr(full, i)->attisdropped &&
			i + 1 != page->feed.xid_attno && i + 1 != page->feed.pos_attno)
			attnos[natts++] = i + 1;
	}
	make_shape(&json->row, full, natts, attnos);
	if (OidIsValid(page->feed.keyid))
	{
		AttrNumber	keys[INDEX_MAX_KEYS];

		make_shape(&json->key, full,
				   feedpub_key_columns(page->feed.keyid, keys), keys);
	}
	return json;
}

bool
feedpub_json_has_key(const FeedpubJson *json)
{
	return json->key.desc != NULL;
}

/*
 * Append a row as an object.
 */
void
feedpub_json_row(FeedpubJson *json, StringInfo out, HeapTupleHeader entry)
{
	append_object(out, &json->row, entry);
}

/*
 * Append a row's key as an object.
 */
void
feedpub_json_key(FeedpubJson *json, StringInfo out, const FeedpubPageRow *row)
{
	if (row->texts != (Datum) 0)
		append_key(out, &json->key, row->entry, row->texts);
	else
		append_object(out, &json->key, row->entry);
}

/*
 * Some columns of a table as the row type of an object.
 */
static void
make_shape(JsonShape *shape, TupleDesc full, int natts,
		   const AttrNumber *attnos)
{
	TupleDesc	desc = CreateTemplateTupleDesc(natts);

	for (int i = 0; i < natts; i++)
		TupleDescCopyEntry(desc, i + 1, full, attnos[i]);
	shape->desc = BlessTupleDesc(desc);
	shape->full = full;
	shape->natts = natts;
	shape->attnos = memcpy(palloc(natts * sizeof(AttrNumber)), attnos,
						   natts * sizeof(AttrNumber));
	shape->values = palloc(natts * sizeof(Datum));
	shape->nulls = palloc(natts * sizeof(bool));
	shape->context = AllocSetContextCreate(CurrentMemoryContext,
										   "feedpub JSON object",
										   ALLOCSET_DEFAULT_SIZES);
}

static void
append_object(StringInfo json, JsonShape *shape, HeapTupleHeader entry)
{
	HeapTupleData tuple = {0};

	tuple.t_data = entry;
	tuple.t_len = HeapTupleHeaderGetDatumLength(entry);
	for (int i = 0; i < shape->natts; i++)
		shape->values[i] = heap_getattr(&tuple, shape->attnos[i], shape->full,
										&shape->nulls[i]);
	append_values(json, shape);
}

/*
 * Append an object of a shape's present values.  What row_to_json() leaves
 * behind is several times the row: of a large page it would be tens of
 * megabytes, whose fetching from the system takes as long as all the rest.
 */
static void
append_values(StringInfo json, JsonShape *shape)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(shape->context);
	Datum		object = DirectFunctionCall1(row_to_json,
											 HeapTupleGetDatum(heap_form_tuple(shape->desc, shape->values, shape->nulls)));

	MemoryContextSwitchTo(oldcontext);
	appendBinaryStringInfo(json, VARDATA_ANY(DatumGetPointer(object)),
						   VARSIZE_ANY_EXHDR(DatumGetPointer(object)));
	MemoryContextReset(shape->context);
}

/*
 * A deleted row's key of which some columns cannot have their values any more:
 * those are strings.
 */
static void
append_key(StringInfo json, const JsonShape *shape, HeapTupleHeader entry,
		   Datum key)
{
	JsonShape	mixed = *shape;
	Datum	   *texts;
	bool	   *nulls;
	int			ntexts;
	HeapTupleData tuple = {0};
	TupleDesc	desc = CreateTupleDescCopy(shape->desc);

	/* another row type, which is not known yet */
	desc->tdtypmod = -1;
	deconstruct_array(DatumGetArrayTypeP(key), TEXTOID, -1, false,
					  TYPALIGN_INT, &texts, &nulls, &ntexts);
	tuple.t_data = entry;
	tuple.t_len = HeapTupleHeaderGetDatumLength(entry);
	for (int i = 0; i < shape->natts; i++)
	{
		shape->values[i] = heap_getattr(&tuple, shape->attnos[i], shape->full,
										&shape->nulls[i]);
		if (!shape->nulls[i] || i >= ntexts)
			continue;
		TupleDescInitEntry(desc, i + 1,
						   pstrdup(NameStr(TupleDescAttr(desc, i)->attname)),
						   TEXTOID, -1, 0);
		shape->values[i] = texts[i];
		shape->nulls[i] = false;
	}
	mixed.desc = BlessTupleDesc(desc);
	append_values(json, &mixed);
}
