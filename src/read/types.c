/*-------------------------------------------------------------------------
 *
 * types.c
 *	  Which messages a reader wants: the argument "types".
 *
 * It is a list of message types of an outbox, or of relations of a change feed.
 * One that ends with * stands for all that begin with what is before it;
 * anywhere else * is itself.  Texts are compared byte by byte, whatever the
 * collation.  NULL is taken for ''.
 *
 * A row that is not wanted is passed before it is copied (entry.c).  What is
 * passed is what the reader asked not to get, so a subscription may be moved
 * past it.  Under row security the executor comes first, and its rows are
 * chosen from: otherwise, how far a page gets would tell the types of rows
 * that the reader must not see.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_attribute.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "read/read.h"

/* how many types may be given */
#define MAX_TYPES		1000

/* the column that has the type of a feed's entries, but of a table feed's */
#define COLUMN(feed)	((feed)->is_changes ? "relation" : "message_type")

/*
 * Check the argument "types", and take it; NULL if all are wanted.
 */
FeedpubTypes *
feedpub_types_parse(ArrayType *array)
{
	FeedpubTypes *types = palloc0_object(FeedpubTypes);

	if (ARR_NDIM(array) != 1 || ArrayGetNItems(1, ARR_DIMS(array)) > MAX_TYPES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"types\" must be a one-dimensional array of 1 to %d texts",
						MAX_TYPES),
				 errhint("Give '{*}' for all types.")));
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"types\" must not contain null values")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &types->names, NULL, &types->n);
	for (int i = 0; i < types->n; i++)
	{
		types->names[i] = PointerGetDatum(DatumGetTextPP(types->names[i]));
		if (VARSIZE_ANY_EXHDR(DatumGetPointer(types->names[i])) == 1 &&
			*VARDATA_ANY(DatumGetPointer(types->names[i])) == '*')
			return NULL;
	}
	return types;
}

/*
 * Do readers with these types, or NULL, get no more than one?
 */
bool
feedpub_types_is_one(const FeedpubTypes *types)
{
	const text *name = types != NULL && types->n > 0 ? DatumGetTextPP(types->names[0]) : NULL;

	for (int i = 1; name != NULL && i < types->n; i++)
	{
		if (!datum_image_eq(types->names[0], types->names[i], false, -1))
			return false;
	}
	return name != NULL && (VARSIZE_ANY_EXHDR(name) == 0 || VARDATA_ANY(name)[VARSIZE_ANY_EXHDR(name) - 1] != '*');
}

/*
 * Find the column by which readers choose: it holds text, and is stored.  Raises
 * 0A000 if the feed has none.
 */
void
feedpub_types_begin(FeedpubTypes *types, const FeedpubFeed *feed, Relation heap)
{
	Form_pg_attribute att = NULL;
	Oid			type = InvalidOid;

	types->attno = feed->is_outbox ? get_attnum(feed->relid, COLUMN(feed)) : InvalidAttrNumber;
	if (types->attno != InvalidAttrNumber)
	{
		att = TupleDescAttr(RelationGetDescr(heap), types->attno - 1);
		type = getBaseType(att->atttypid);
	}
	if ((type != TEXTOID && type != VARCHAROID) ||
		(att->attgenerated != '\0' && att->attgenerated != ATTRIBUTE_GENERATED_STORED))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("feed \"%s\" cannot be read by types", RelationGetRelationName(heap)),
				 feed->is_outbox ?
					 errdetail("It has no column %s of type text.", COLUMN(feed)) :
					 errdetail("It is a table feed, whose entries have no types."),
				 errhint("Read all of it, and choose in the consumer.")));
}

/*
 * Is a row with this value in the column wanted?
 */
bool
feedpub_types_want(const FeedpubTypes *types, Datum value, bool isnull)
{
	text	   *type = isnull ? NULL : DatumGetTextPP(value);
	const char *s = type != NULL ? VARDATA_ANY(type) : "";
	int			length = type != NULL ? VARSIZE_ANY_EXHDR(type) : 0;
	bool		found = false;

	for (int i = 0; i < types->n && !found; i++)
	{
		const char *name = VARDATA_ANY(DatumGetPointer(types->names[i]));
		int			name_length = VARSIZE_ANY_EXHDR(DatumGetPointer(types->names[i]));

		if (name_length > 0 && name[name_length - 1] == '*')
			found = length >= name_length - 1 && memcmp(s, name, name_length - 1) == 0;
		else
			found = length == name_length && memcmp(s, name, length) == 0;
	}
	if (type != NULL && type != (text *) DatumGetPointer(value))
		pfree(type);
	return found;
}
