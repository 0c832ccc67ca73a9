/*-------------------------------------------------------------------------
 *
 * json_row.c
 *	  Columns of a row as a JSON object.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/memutils.h"

#include "base/json.h"

/* The memory of written values is freed when it is larger than this. */
#define MAX_KEPT_BYTES		(1024 * 1024)

/*
 * What surely is smaller than the largest object.  A byte of a number may become
 * 16 kB: ten bytes have up to 150,000 digits.  A control character becomes six.
 */
#define SMALL_BYTES			(200 * 1024 * 1024)
#define BYTES_OF_NUMBERS	(16 * 1024)
#define BYTES_OF_TEXT		6

/*
 * Some columns of a table as an object.
 */
void
feedpub_jsonrow_shape(FeedpubJsonValues *values, TupleDesc desc, int natts,
					  const AttrNumber *attnos, FeedpubJsonShape *shape)
{
	StringInfoData label;

	initStringInfo(&label);
	shape->natts = natts;
	shape->columns = palloc(natts * sizeof(struct FeedpubJsonColumn));
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, attnos[i] - 1);
		const char *name = NameStr(att->attname);

		resetStringInfo(&label);
		feedpub_jsonvalue_string(values, &label, name, strlen(name));
		appendStringInfoChar(&label, ':');
		shape->columns[i].attno = attnos[i];
		shape->columns[i].label = pstrdup(label.data);
		shape->columns[i].label_length = label.len;
		shape->columns[i].type = feedpub_jsonvalue_type(values, att->atttypid);
	}
}

/*
 * Append an object of columns of a row, but for those that skip names, by their
 * number in the shape; it may be NULL.
 *
 * The memory of the values is several times that of the row, and lies in
 * context, which may be reset meanwhile.  Of a large page it would be tens of
 * megabytes, and getting them from the system takes as long as all the rest.
 */
void
feedpub_jsonrow_object(FeedpubJsonValues *values, StringInfo out,
					   const FeedpubJsonShape *shape, const bool *skip,
					   const Datum *columns, const bool *nulls,
					   MemoryContext context)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	char		separator = '{';

	for (int i = 0; i < shape->natts; i++)
	{
		const struct FeedpubJsonColumn *column = &shape->columns[i];

		if (skip != NULL && skip[i])
			continue;
		appendStringInfoCharMacro(out, separator);
		separator = ',';
		appendBinaryStringInfo(out, column->label, column->label_length);
		if (!nulls[column->attno - 1])
			feedpub_jsonvalue_append_as(values, out, column->type, columns[column->attno - 1]);
		else
			appendBinaryStringInfo(out, "null", 4);
		if (context->mem_allocated > MAX_KEPT_BYTES)
			MemoryContextReset(context);
	}
	if (separator == '{')
		appendStringInfoChar(out, '{');
	appendStringInfoChar(out, '}');
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Can the values of these columns be written as JSON, whatever they are, unless
 * they are too large?  The output functions of these types raise no error.
 */
bool
feedpub_jsonrow_is_safe(const FeedpubJsonShape *shape)
{
	for (int i = 0; i < shape->natts; i++)
	{
		const FeedpubJsonType *type = shape->columns[i].type;

		switch (type->base)
		{
			case BYTEAOID:
			case CIDROID:
			case INETOID:
			case INTERVALOID:
			case NAMEOID:
			case OIDOID:
			case TIMEOID:
			case TIMETZOID:
			case UUIDOID:
				break;
			default:
				if (type->kind >= JSON_ARRAY)
					return false;
		}
	}
	return true;
}

/*
 * Is a row surely small enough for an object?
 */
bool
feedpub_jsonrow_is_small(const FeedpubJsonShape *shape, const Datum *columns, const bool *nulls)
{
	Size		size = 0;

	for (int i = 0; i < shape->natts; i++)
	{
		const FeedpubJsonType *type = shape->columns[i].type;
		AttrNumber	attno = shape->columns[i].attno;

		if (!nulls[attno - 1] && type->len == -1)
			size += toast_raw_datum_size(columns[attno - 1]) *
				(type->kind == JSON_NUMBER || type->kind == JSON_JSONB ? BYTES_OF_NUMBERS : BYTES_OF_TEXT);
	}
	return size < SMALL_BYTES;
}

/*
 * Do the values of these columns depend on settings that the session has
 * changed?  Of types that we do not know, they may.
 */
bool
feedpub_jsonrow_needs_settings(const FeedpubJsonShape *shape)
{
	for (int i = 0; i < shape->natts; i++)
	{
		const FeedpubJsonType *type = shape->columns[i].type;

		switch (type->base)
		{
			case FLOAT4OID:
			case FLOAT8OID:
				if (extra_float_digits < 1)
					return true;
				break;
			case BYTEAOID:
				if (bytea_output != BYTEA_OUTPUT_HEX)
					return true;
				break;
			case INTERVALOID:
				if (IntervalStyle != INTSTYLE_POSTGRES)
					return true;
				break;
			case CIDROID:
			case INETOID:
			case NAMEOID:
			case OIDOID:
			case TIMEOID:
			case TIMETZOID:
			case UUIDOID:
				break;
			default:
				if (type->kind >= JSON_ARRAY)
					return true;
		}
	}
	return false;
}
