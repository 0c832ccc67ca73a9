/*-------------------------------------------------------------------------
 *
 * json_value.c
 *	  Values, and columns of rows, as JSON.
 *
 * A value becomes what row_to_json() makes of it, with one exception.  If a
 * user has made a cast to json for a type, row_to_json() calls it: code of the
 * table's owner would run as the reader.  Here a value is written by its type
 * alone.  Numbers, booleans, times, json and jsonb are written as the server's
 * datum_to_json() writes them, arrays and rows value by value, a domain as its
 * base type.  Everything else is a string, which the type's output function
 * makes; only a superuser can make such a function.
 *
 * What is written has a bound.  Text that would exceed it is refused before
 * memory is taken for it.  What an output function makes is refused when it is
 * there.  Text of control characters is six times as long in JSON.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/hsearch.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/typcache.h"

#include "base/base.h"

/*
 * The largest object.  The largest page is this and FEEDPUB_MAX_PAGE_BYTES,
 * and the client's encoding may make it three times as long: less than the 1
 * GB that a message can have.
 */
#define MAX_OBJECT_BYTES	(240 * 1024 * 1024)

/*
 * What surely is smaller than the largest object.  A byte of a number may become
 * 16 kB: ten bytes have up to 150,000 digits.  A control character becomes six.
 */
#define SMALL_BYTES			(200 * 1024 * 1024)
#define BYTES_OF_NUMBERS	(16 * 1024)
#define BYTES_OF_TEXT		6

/* The memory of written values is freed when it is larger than this. */
#define MAX_KEPT_BYTES		(1024 * 1024)

/* How values of a type are written; up to JSON_PLAIN, that raises no error. */
typedef enum JsonKind
{
	JSON_BOOL,
	JSON_INT4,
	JSON_INT8,
	JSON_NUMBER,				/* as its output function has it */
	JSON_TIME,
	JSON_JSON,
	JSON_JSONB,
	JSON_TEXT,
	JSON_PLAIN,					/* as a string */
	JSON_STRING,				/* what its output function makes, quoted */
	JSON_ARRAY,
	JSON_ROW,
} JsonKind;

struct FeedpubJsonType
{
	Oid			type;			/* must be first */
	bool		is_known;		/* the rest is there */
	JsonKind	kind;
	Oid			base;			/* not a domain */
	int16		len;
	FmgrInfo	output;
	bool		has_time;		/* the last one that was written: rows of a */
	int64		time;			/* transaction often have the same */
	char		time_text[MAXDATELEN + 1];
};

struct FeedpubJsonValues
{
	HTAB	   *types;
	bool		in_utc;			/* times with a zone are, not in the session's */
	Size		start;			/* where in its buffer the object begins */
	MemoryContext context;		/* of what is known of types */
};

static FeedpubJsonType *find_type(FeedpubJsonValues *values, Oid typid);
static void append_value(FeedpubJsonValues *values, StringInfo out,
						 FeedpubJsonType *type, Datum value);
static void append_time(FeedpubJsonValues *values, StringInfo out,
						FeedpubJsonType *type, Datum value);
static void append_jsonb(FeedpubJsonValues *values, StringInfo out,
						 Jsonb *jsonb);
static void append_jsonb_scalar(FeedpubJsonValues *values, StringInfo out,
								const JsonbValue *value);
static void append_brackets(StringInfo out, ArrayType *array, int n,
							char bracket);
static void append_array(FeedpubJsonValues *values, StringInfo out,
						 ArrayType *array);
static void append_row(FeedpubJsonValues *values, StringInfo out,
					   HeapTupleHeader header);
static void check_room(const FeedpubJsonValues *values, StringInfo out,
					   Size more);

/*
 * Begin to write values, in the current memory context; times with a zone in
 * UTC, or in the session's.
 */
FeedpubJsonValues *
feedpub_jsonvalue_begin(bool in_utc)
{
	FeedpubJsonValues *values = palloc0_object(FeedpubJsonValues);
	HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(FeedpubJsonType), .hcxt = CurrentMemoryContext};

	values->in_utc = in_utc;
	values->context = CurrentMemoryContext;
	values->types = hash_create("feedpub JSON types", 16, &ctl,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	return values;
}

/*
 * An object begins in a buffer: the bound is for what is written from here on.
 */
void
feedpub_jsonvalue_limit(FeedpubJsonValues *values, StringInfo out)
{
	values->start = out->len;
}

/*
 * Some columns of a table as an object.
 */
void
feedpub_jsonvalue_shape(FeedpubJsonValues *values, TupleDesc desc, int natts,
						const AttrNumber *attnos, FeedpubJsonShape *shape)
{
	Size		start = values->start;
	StringInfoData label;

	initStringInfo(&label);
	feedpub_jsonvalue_limit(values, &label);
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
		shape->columns[i].type = find_type(values, att->atttypid);
	}
	values->start = start;
}

/*
 * Append an object of columns of a row, but for those that skip names, by their
 * number in the shape; it may be NULL.
 *
 * The memory of the values is several times that of the row, and lies in
 * context, which may be reset meanwhile, unless it is the current one.  Of a large page it would be tens of
 * megabytes, and getting them from the system takes as long as all the rest.
 */
void
feedpub_jsonvalue_object(FeedpubJsonValues *values, StringInfo out,
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
			append_value(values, out, column->type, columns[column->attno - 1]);
		else
			appendBinaryStringInfo(out, "null", 4);
		if (context != oldcontext && context->mem_allocated > MAX_KEPT_BYTES)
			MemoryContextReset(context);
	}
	if (separator == '{')
		appendStringInfoChar(out, '{');
	appendStringInfoChar(out, '}');
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Can the values of these columns be written as JSON, whatever they are, unless
 * they are too large?
 */
bool
feedpub_jsonvalue_is_safe(const FeedpubJsonShape *shape)
{
	for (int i = 0; i < shape->natts; i++)
	{
		if (shape->columns[i].type->kind > JSON_PLAIN)
			return false;
	}
	return true;
}

/*
 * Is a row surely small enough for an object?
 */
bool
feedpub_jsonvalue_is_small(const FeedpubJsonShape *shape, const Datum *columns, const bool *nulls)
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
 * Append a value of this type, which is not null.
 */
void
feedpub_jsonvalue_append(FeedpubJsonValues *values, StringInfo out, Oid typid, Datum value)
{
	append_value(values, out, find_type(values, typid), value);
}

/*
 * How values of a type are written; the server's json_categorize_type(),
 * less its look for casts.
 */
static FeedpubJsonType *
find_type(FeedpubJsonValues *values, Oid typid)
{
	bool		found;
	FeedpubJsonType *type = hash_search(values->types, &typid, HASH_ENTER, &found);
	Oid			output;
	bool		is_varlena;

	if (found && type->is_known)
		return type;
	type->is_known = false;
	type->has_time = false;
	type->base = getBaseType(typid);
	type->len = get_typlen(type->base);
	switch (type->base)
	{
		case BOOLOID:
			type->kind = JSON_BOOL;
			break;
		case INT4OID:
			type->kind = JSON_INT4;
			break;
		case INT8OID:
			type->kind = JSON_INT8;
			break;
		case INT2OID:
		case FLOAT4OID:
		case FLOAT8OID:
		case NUMERICOID:
			type->kind = JSON_NUMBER;
			break;
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			type->kind = JSON_TIME;
			break;
		case JSONOID:
			type->kind = JSON_JSON;
			break;
		case JSONBOID:
			type->kind = JSON_JSONB;
			break;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			type->kind = JSON_TEXT;
			break;
		case BYTEAOID:
		case CIDROID:
		case INETOID:
		case INTERVALOID:
		case NAMEOID:
		case OIDOID:
		case TIMEOID:
		case TIMETZOID:
		case UUIDOID:
			type->kind = JSON_PLAIN;
			break;
		default:
			type->kind = OidIsValid(get_element_type(type->base)) ? JSON_ARRAY :
				type_is_rowtype(type->base)						  ? JSON_ROW :
																	JSON_STRING;
	}
	if (type->kind == JSON_NUMBER || type->kind == JSON_PLAIN || type->kind == JSON_STRING)
	{
		getTypeOutputInfo(type->base, &output, &is_varlena);
		fmgr_info_cxt(output, &type->output, values->context);
	}
	type->is_known = true;
	return type;
}

/*
 * Append a value that is not null.
 */
static void
append_value(FeedpubJsonValues *values, StringInfo out, FeedpubJsonType *type, Datum value)
{
	char		buffer[MAXINT8LEN + 1];
	const char *s;
	text	   *t;

	if (type->len == -1)
		check_room(values, out, toast_raw_datum_size(value) - VARHDRSZ);
	switch (type->kind)
	{
		case JSON_BOOL:
			appendStringInfoString(out, DatumGetBool(value) ? "true" : "false");
			break;
		case JSON_INT4:
			appendBinaryStringInfo(out, buffer, pg_ltoa(DatumGetInt32(value), buffer));
			break;
		case JSON_INT8:
			appendBinaryStringInfo(out, buffer, pg_lltoa(DatumGetInt64(value), buffer));
			break;
		case JSON_NUMBER:
			/* not a number in JSON: NaN, Infinity */
			s = OutputFunctionCall(&type->output, value);
			if (s[s[0] == '-'] >= '0' && s[s[0] == '-'] <= '9')
				appendStringInfoString(out, s);
			else
				feedpub_jsonvalue_string(values, out, s, strlen(s));
			break;
		case JSON_TIME:
			append_time(values, out, type, value);
			break;
		case JSON_JSON:
			t = DatumGetTextPP(value);
			appendBinaryStringInfo(out, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
			break;
		case JSON_JSONB:
			append_jsonb(values, out, DatumGetJsonbP(value));
			break;
		case JSON_TEXT:
			t = DatumGetTextPP(value);
			feedpub_jsonvalue_string(values, out, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
			break;
		case JSON_ARRAY:
			append_array(values, out, DatumGetArrayTypeP(value));
			break;
		case JSON_ROW:
			append_row(values, out, DatumGetHeapTupleHeader(value));
			break;
		case JSON_PLAIN:
		case JSON_STRING:
			s = OutputFunctionCall(&type->output, value);
			feedpub_jsonvalue_string(values, out, s, strlen(s));
			break;
	}
	check_room(values, out, 0);
}

static void
append_time(FeedpubJsonValues *values, StringInfo out, FeedpubJsonType *type, Datum value)
{
	int			utc = 0;
	int64		time = type->base == DATEOID ? DatumGetDateADT(value) : DatumGetTimestamp(value);

	if (!type->has_time || type->time != time)
	{
		type->has_time = false;
		JsonEncodeDateTime(type->time_text, value, type->base, values->in_utc ? &utc : NULL);
		type->time = time;
		type->has_time = true;
	}
	feedpub_jsonvalue_string(values, out, type->time_text, strlen(type->time_text));
}

/*
 * Append a jsonb value, as the server's JsonbToCString() does, which would
 * copy each string and write it character by character, and knows no bound.
 */
static void
append_jsonb(FeedpubJsonValues *values, StringInfo out, Jsonb *jsonb)
{
	JsonbIterator *iterator = JsonbIteratorInit(&jsonb->root);
	JsonbIteratorToken part;
	JsonbValue	value;
	bool		is_scalar = false;
	bool		first = true;	/* no comma before what comes next */

	while ((part = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if (!first && part != WJB_END_ARRAY && part != WJB_END_OBJECT)
			appendBinaryStringInfo(out, ", ", 2);
		first = part == WJB_BEGIN_ARRAY || part == WJB_BEGIN_OBJECT || part == WJB_KEY;
		switch (part)
		{
			case WJB_BEGIN_ARRAY:
				/* a scalar alone is the only element of an array */
				is_scalar = value.val.array.rawScalar;
				if (!is_scalar)
					appendStringInfoCharMacro(out, '[');
				break;
			case WJB_END_ARRAY:
				if (!is_scalar)
					appendStringInfoCharMacro(out, ']');
				break;
			case WJB_BEGIN_OBJECT:
				appendStringInfoCharMacro(out, '{');
				break;
			case WJB_END_OBJECT:
				appendStringInfoCharMacro(out, '}');
				break;
			case WJB_KEY:
				append_jsonb_scalar(values, out, &value);
				appendBinaryStringInfo(out, ": ", 2);
				break;
			default:
				append_jsonb_scalar(values, out, &value);
		}
		check_room(values, out, 0);
	}
}

static void
append_jsonb_scalar(FeedpubJsonValues *values, StringInfo out, const JsonbValue *value)
{
	char	   *number;

	switch (value->type)
	{
		case jbvNull:
			appendBinaryStringInfo(out, "null", 4);
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			number = DatumGetCString(DirectFunctionCall1(numeric_out,
														 NumericGetDatum(value->val.numeric)));
			appendStringInfoString(out, number);
			pfree(number);
			break;
		case jbvString:
			feedpub_jsonvalue_string(values, out, value->val.string.val, value->val.string.len);
			break;
		default:
			elog(ERROR, "unexpected type %d in a jsonb value", (int) value->type);
	}
}

/*
 * Append a bracket for each dimension that begins, or ends, at the nth element.
 */
static void
append_brackets(StringInfo out, ArrayType *array, int n, char bracket)
{
	int			slice = 1;

	for (int i = ARR_NDIM(array) - 1; i >= 0; i--)
	{
		slice *= ARR_DIMS(array)[i];
		if (n % slice == 0)
			appendStringInfoChar(out, bracket);
	}
}

/*
 * Append an array, of each dimension in brackets of its own.
 */
static void
append_array(FeedpubJsonValues *values, StringInfo out, ArrayType *array)
{
	ArrayIterator iterator;
	FeedpubJsonType *type;
	Datum		value;
	bool		isnull;

	check_stack_depth();
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) <= 0)
	{
		appendBinaryStringInfo(out, "[]", 2);
		return;
	}
	type = find_type(values, ARR_ELEMTYPE(array));
	iterator = array_create_iterator(array, 0, NULL);
	for (int n = 0; array_iterate(iterator, &value, &isnull); n++)
	{
		CHECK_FOR_INTERRUPTS();
		if (n > 0)
			appendStringInfoChar(out, ',');
		append_brackets(out, array, n, '[');
		if (isnull)
			appendBinaryStringInfo(out, "null", 4);
		else
			append_value(values, out, type, value);
		append_brackets(out, array, n + 1, ']');
	}
	array_free_iterator(iterator);
}

/*
 * Append a row that is a column's value.
 */
static void
append_row(FeedpubJsonValues *values, StringInfo out, HeapTupleHeader header)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header),
											  HeapTupleHeaderGetTypMod(header));
	Datum	   *columns = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	AttrNumber *attnos = palloc(desc->natts * sizeof(AttrNumber));
	HeapTupleData tuple = {.t_data = header, .t_len = HeapTupleHeaderGetDatumLength(header)};
	FeedpubJsonShape shape;
	int			n = 0;

	check_stack_depth();
	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped)
			attnos[n++] = i + 1;
	}
	heap_deform_tuple(&tuple, desc, columns, nulls);
	feedpub_jsonvalue_shape(values, desc, n, attnos, &shape);
	feedpub_jsonvalue_object(values, out, &shape, NULL, columns, nulls, CurrentMemoryContext);
	ReleaseTupleDesc(desc);
}

static inline bool
is_escaped(unsigned char c)
{
	return c < ' ' || c == '"' || c == '\\';
}

/*
 * Where the next byte is that has to be escaped, or the end.  Eight bytes are
 * looked at together: if none of them has its highest bit set, subtracting 1
 * from each sets that bit of those that were 0.
 */
static const char *
find_escaped(const char *s, const char *end)
{
#define EACH(byte)	(UINT64CONST(0x0101010101010101) * (byte))
	for (; end - s >= 8; s += 8)
	{
		uint64		bytes;
		uint64		found;

		memcpy(&bytes, s, 8);
		found = (bytes - EACH(' ')) | ((bytes ^ EACH('"')) - EACH(1)) |
			((bytes ^ EACH('\\')) - EACH(1));
		if (((found | bytes) & EACH(0x80)) != 0)
			break;
	}
#undef EACH
	while (s < end && !is_escaped(*s))
		s++;
	return s;
}

/*
 * Append a string, as the server's escape_json() does, which would take it
 * terminated, and character by character.
 */
void
feedpub_jsonvalue_string(FeedpubJsonValues *values, StringInfo out, const char *s, Size len)
{
	static const char hex[] = "0123456789abcdef";
	static const char letters[] = "uuuuuuuubtnufruuuuuuuuuuuuuuuuuu";
	const char *end = s + len;

	enlargeStringInfo(out, len + 2);
	appendStringInfoCharMacro(out, '"');
	for (;;)
	{
		const char *from = s;
		char		escape;

		s = find_escaped(s, end);
		appendBinaryStringInfo(out, from, s - from);
		if (s == end)
			break;
		escape = (unsigned char) *s < ' ' ? letters[(int) *s] : *s;
		appendStringInfoCharMacro(out, '\\');
		appendStringInfoCharMacro(out, escape);
		if (escape == 'u')
		{
			char		digits[4] = {'0', '0', hex[*s >> 4], hex[*s & 15]};

			appendBinaryStringInfo(out, digits, 4);
		}
		s++;
		check_room(values, out, end - s);
	}
	appendStringInfoCharMacro(out, '"');
}

/*
 * Refuse what would make the object too large.
 */
static void
check_room(const FeedpubJsonValues *values, StringInfo out, Size more)
{
	if (out->len - values->start + more > MAX_OBJECT_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("row is larger than %d MB as JSON",
						MAX_OBJECT_BYTES / (1024 * 1024))));
}
