/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Rows of a page as JSON objects: all columns but the stamp's, or those of
 *	  the key.
 *
 * An object is what row_to_json() makes of the same row, with one exception.
 * row_to_json() calls a cast to json that a user has made for a type of its
 * own: the code of the table's owner would run as the reader.  Here a value
 * is written by its type alone: numbers, booleans, times, json and jsonb as
 * json.c of the server writes them (datum_to_json()), arrays and rows value by
 * value, a domain as its base type, and everything else as a string, which the
 * type's output function makes.  Only a superuser can make such a function.
 *
 * An object has a bound, and a value that would exceed it is refused before
 * memory is taken for it.  Text of control characters is six times as long in
 * JSON.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/typcache.h"

#include "feedpub.h"

/*
 * The largest object.  The largest page is this and FEEDPUB_MAX_PAGE_BYTES, and
 * the client's encoding may make it three times as long: less than the 1 GB
 * that a message can have.
 */
#define MAX_OBJECT_BYTES	(240 * 1024 * 1024)

/* As much may lie in memory of the columns that have been written. */
#define MAX_KEPT_BYTES		(1024 * 1024)

/* How values of a type are written. */
typedef enum JsonKind
{
	JSON_BOOL,
	JSON_INT2,
	JSON_INT4,
	JSON_INT8,
	JSON_NUMBER,				/* as its output function has it */
	JSON_TIME,
	JSON_JSON,
	JSON_JSONB,
	JSON_TEXT,
	JSON_ARRAY,
	JSON_ROW,
	JSON_STRING,				/* what its output function makes, quoted */
} JsonKind;

typedef struct JsonType
{
	Oid			type;			/* must be first */
	bool		is_known;		/* the rest is there */
	JsonKind	kind;
	Oid			base;			/* not a domain */
	int16		len;
	FmgrInfo	output;
} JsonType;

/* Which columns of a row make an object. */
typedef struct JsonShape
{
	int			natts;
	AttrNumber *attnos;			/* of its columns in the table */
	char	  **labels;			/* {"a": or ,"b": */
	int		   *label_lengths;
	JsonType  **types;
} JsonShape;

struct FeedpubJson
{
	TupleDesc	desc;			/* the table's */
	Datum	   *values;
	bool	   *nulls;
	HTAB	   *types;
	JsonShape	row;
	JsonShape	key;			/* of no columns if there is no key */
	Size		start;			/* where the object begins */
	MemoryContext context;		/* of one object being made */
	MemoryContext parent;		/* of everything else */
};

static void make_shape(FeedpubJson *json, JsonShape *shape, int natts,
					   const AttrNumber *attnos);
static JsonType *get_type(FeedpubJson *json, Oid type);
static void append_object(FeedpubJson *json, StringInfo out,
						  const JsonShape *shape, HeapTuple entry,
						  Datum texts);
static void append_value(FeedpubJson *json, StringInfo out, JsonType *type,
						 Datum value);
static void append_jsonb(FeedpubJson *json, StringInfo out, Jsonb *jsonb);
static void append_array(FeedpubJson *json, StringInfo out, ArrayType *array);
static void append_row(FeedpubJson *json, StringInfo out,
					   HeapTupleHeader header);
static void append_string(FeedpubJson *json, StringInfo out, const char *s,
						  Size len);
static Size escaped_length(const char *s, Size len);
static void check_room(const FeedpubJson *json, StringInfo out, Size more);

/*
 * The shapes of the entries of a page.
 */
FeedpubJson *
feedpub_json_begin(const FeedpubPage *page)
{
	FeedpubJson *json = palloc0_object(FeedpubJson);
	TupleDesc	desc = RelationGetDescr(page->heap);
	AttrNumber *attnos = palloc(desc->natts * sizeof(AttrNumber));
	HASHCTL		ctl = {0};
	int			natts = 0;

	json->desc = desc;
	json->parent = CurrentMemoryContext;
	json->values = palloc(desc->natts * sizeof(Datum));
	json->nulls = palloc(desc->natts * sizeof(bool));
	json->context = AllocSetContextCreate(CurrentMemoryContext,
										  "feedpub JSON object",
										  ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(JsonType);
	ctl.hcxt = CurrentMemoryContext;
	json->types = hash_create("feedpub JSON types", 16, &ctl,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped &&
			i + 1 != page->feed.xid_attno && i + 1 != page->feed.pos_attno)
			attnos[natts++] = i + 1;
	}
	make_shape(json, &json->row, natts, attnos);
	if (OidIsValid(page->feed.keyid))
	{
		AttrNumber	keys[INDEX_MAX_KEYS];

		make_shape(json, &json->key,
				   feedpub_key_columns(page->feed.keyid, keys), keys);
	}
	return json;
}

bool
feedpub_json_has_key(const FeedpubJson *json)
{
	return json->key.natts > 0;
}

/*
 * Append a row as an object.
 */
void
feedpub_json_row(FeedpubJson *json, StringInfo out, HeapTuple entry)
{
	append_object(json, out, &json->row, entry, (Datum) 0);
}

/*
 * Append a row's key as an object.
 */
void
feedpub_json_key(FeedpubJson *json, StringInfo out, const FeedpubPageRow *row)
{
	append_object(json, out, &json->key, row->entry, row->texts);
}

/*
 * Append a column of a row, by its name, as a member of an object, and a comma;
 * nothing if there is no such column.
 */
void
feedpub_json_member(FeedpubJson *json, StringInfo out, HeapTuple entry,
					const char *name)
{
	for (int i = 0; i < json->desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(json->desc, i);
		Datum		value;
		bool		isnull;

		if (att->attisdropped || strcmp(NameStr(att->attname), name) != 0)
			continue;
		value = heap_getattr(entry, i + 1, json->desc, &isnull);
		if (isnull)
			continue;
		feedpub_json_string(json, out, name);
		appendStringInfoString(out, ": ");
		append_value(json, out, get_type(json, att->atttypid), value);
		appendStringInfoString(out, ", ");
	}
}

/*
 * Append a string of our own.
 */
void
feedpub_json_string(FeedpubJson *json, StringInfo out, const char *s)
{
	json->start = out->len;
	append_string(json, out, s, strlen(s));
}

/*
 * Some columns of the table as an object.
 */
static void
make_shape(FeedpubJson *json, JsonShape *shape, int natts,
		   const AttrNumber *attnos)
{
	StringInfoData label;

	initStringInfo(&label);
	shape->natts = natts;
	shape->attnos = memcpy(palloc(natts * sizeof(AttrNumber)), attnos,
						   natts * sizeof(AttrNumber));
	shape->labels = palloc(natts * sizeof(char *));
	shape->label_lengths = palloc(natts * sizeof(int));
	shape->types = palloc(natts * sizeof(JsonType *));
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(json->desc, attnos[i] - 1);

		resetStringInfo(&label);
		appendStringInfoChar(&label, i == 0 ? '{' : ',');
		feedpub_json_string(json, &label, NameStr(att->attname));
		appendStringInfoChar(&label, ':');
		shape->labels[i] = pstrdup(label.data);
		shape->label_lengths[i] = label.len;
		shape->types[i] = get_type(json, att->atttypid);
	}
}

/*
 * How values of a type are written; the server's json_categorize_type(),
 * less its look for casts.
 */
static JsonType *
get_type(FeedpubJson *json, Oid typid)
{
	bool		found;
	JsonType   *type = hash_search(json->types, &typid, HASH_ENTER, &found);
	Oid			output;
	bool		is_varlena;

	if (found && type->is_known)
		return type;
	type->is_known = false;
	type->base = getBaseType(typid);
	type->len = get_typlen(type->base);
	switch (type->base)
	{
		case BOOLOID:
			type->kind = JSON_BOOL;
			break;
		case INT2OID:
			type->kind = JSON_INT2;
			break;
		case INT4OID:
			type->kind = JSON_INT4;
			break;
		case INT8OID:
			type->kind = JSON_INT8;
			break;
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
		default:
			if (OidIsValid(get_element_type(type->base)))
				type->kind = JSON_ARRAY;
			else if (type_is_rowtype(type->base))
				type->kind = JSON_ROW;
			else
				type->kind = JSON_STRING;
	}
	if (type->kind == JSON_NUMBER || type->kind == JSON_STRING)
	{
		getTypeOutputInfo(type->base, &output, &is_varlena);
		fmgr_info_cxt(output, &type->output, json->parent);
	}
	type->is_known = true;
	return type;
}

/*
 * Append an object of a row's columns.  Where a deleted row's key has texts,
 * columns that have no value any more are these, as strings.
 *
 * What values leave in memory is several times the row, and is freed with it:
 * of a large page it would be tens of megabytes, whose fetching from the
 * system takes as long as all the rest.
 */
static void
append_object(FeedpubJson *json, StringInfo out, const JsonShape *shape,
			  HeapTuple entry, Datum key)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(json->context);
	Datum	   *texts = NULL;
	int			ntexts = 0;

	MemoryContextReset(json->context);
	json->start = out->len;
	heap_deform_tuple(entry, json->desc, json->values, json->nulls);
	if (key != (Datum) 0)
	{
		bool	   *nulls;

		deconstruct_array(DatumGetArrayTypeP(key), TEXTOID, -1, false,
						  TYPALIGN_INT, &texts, &nulls, &ntexts);
	}
	if (shape->natts == 0)
		appendStringInfoChar(out, '{');
	for (int i = 0; i < shape->natts; i++)
	{
		int			column = shape->attnos[i] - 1;

		appendBinaryStringInfo(out, shape->labels[i], shape->label_lengths[i]);
		if (!json->nulls[column])
			append_value(json, out, shape->types[i], json->values[column]);
		else if (i < ntexts)
			append_value(json, out, get_type(json, TEXTOID), texts[i]);
		else
			appendBinaryStringInfo(out, "null", 4);
		if (texts == NULL && json->context->mem_allocated > MAX_KEPT_BYTES)
			MemoryContextReset(json->context);
	}
	appendStringInfoChar(out, '}');
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(json->context);
}

/*
 * Append a value that is not null.
 */
static void
append_value(FeedpubJson *json, StringInfo out, JsonType *type, Datum value)
{
	char		buffer[MAXDATELEN + 1];
	const char *s;
	text	   *t;

	if (type->len == -1)
		check_room(json, out, toast_raw_datum_size(value) - VARHDRSZ);
	switch (type->kind)
	{
		case JSON_BOOL:
			if (DatumGetBool(value))
				appendBinaryStringInfo(out, "true", 4);
			else
				appendBinaryStringInfo(out, "false", 5);
			break;
		case JSON_INT2:
			appendBinaryStringInfo(out, buffer, pg_itoa(DatumGetInt16(value), buffer));
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
				append_string(json, out, s, strlen(s));
			break;
		case JSON_TIME:
			JsonEncodeDateTime(buffer, value, type->base, NULL);
			append_string(json, out, buffer, strlen(buffer));
			break;
		case JSON_JSON:
			t = DatumGetTextPP(value);
			appendBinaryStringInfo(out, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
			break;
		case JSON_JSONB:
			append_jsonb(json, out, DatumGetJsonbP(value));
			break;
		case JSON_TEXT:
			t = DatumGetTextPP(value);
			append_string(json, out, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
			break;
		case JSON_ARRAY:
			append_array(json, out, DatumGetArrayTypeP(value));
			break;
		case JSON_ROW:
			append_row(json, out, DatumGetHeapTupleHeader(value));
			break;
		case JSON_STRING:
			s = OutputFunctionCall(&type->output, value);
			append_string(json, out, s, strlen(s));
			break;
	}
	check_room(json, out, 0);
}

/*
 * The server's writer takes a long time to get to the end of memory, so where
 * it might, count first.
 */
static void
append_jsonb(FeedpubJson *json, StringInfo out, Jsonb *jsonb)
{
	if (VARSIZE(jsonb) > MAX_OBJECT_BYTES / 6)
	{
		JsonbIterator *iterator = JsonbIteratorInit(&jsonb->root);
		JsonbIteratorToken token;
		JsonbValue	value;
		Size		length = 0;

		while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
		{
			CHECK_FOR_INTERRUPTS();
			if ((token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM) &&
				value.type == jbvString)
				length += escaped_length(value.val.string.val, value.val.string.len);
		}
		check_room(json, out, length);
	}
	(void) JsonbToCString(out, &jsonb->root, VARSIZE(jsonb));
}

/*
 * Append an array, of each dimension in brackets of its own.
 */
static void
append_array(FeedpubJson *json, StringInfo out, ArrayType *array)
{
	int			ndim = ARR_NDIM(array);
	int			nitems = ArrayGetNItems(ndim, ARR_DIMS(array));
	ArrayIterator iterator;
	JsonType   *type;
	Datum		value;
	bool		isnull;

	check_stack_depth();
	if (nitems <= 0)
	{
		appendBinaryStringInfo(out, "[]", 2);
		return;
	}
	type = get_type(json, ARR_ELEMTYPE(array));
	iterator = array_create_iterator(array, 0, NULL);
	for (int n = 0; array_iterate(iterator, &value, &isnull); n++)
	{
		int			slice = 1;

		CHECK_FOR_INTERRUPTS();
		if (n > 0)
			appendStringInfoChar(out, ',');
		for (int i = ndim - 1; i >= 0; i--)
		{
			slice *= ARR_DIMS(array)[i];
			if (n % slice == 0)
				appendStringInfoChar(out, '[');
		}
		if (isnull)
			appendBinaryStringInfo(out, "null", 4);
		else
			append_value(json, out, type, value);
		slice = 1;
		for (int i = ndim - 1; i >= 0; i--)
		{
			slice *= ARR_DIMS(array)[i];
			if ((n + 1) % slice == 0)
				appendStringInfoChar(out, ']');
		}
	}
	array_free_iterator(iterator);
}

/*
 * Append a row that is a column's value.
 */
static void
append_row(FeedpubJson *json, StringInfo out, HeapTupleHeader header)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header),
											  HeapTupleHeaderGetTypMod(header));
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	HeapTupleData tuple = {0};
	char		separator = '{';

	check_stack_depth();
	tuple.t_data = header;
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	heap_deform_tuple(&tuple, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped)
			continue;
		appendStringInfoChar(out, separator);
		separator = ',';
		append_string(json, out, NameStr(att->attname), strlen(NameStr(att->attname)));
		appendStringInfoChar(out, ':');
		if (nulls[i])
			appendBinaryStringInfo(out, "null", 4);
		else
			append_value(json, out, get_type(json, att->atttypid), values[i]);
	}
	if (separator == '{')
		appendStringInfoChar(out, '{');
	appendStringInfoChar(out, '}');
	ReleaseTupleDesc(desc);
}

/* How a byte is written after a backslash: itself, a letter, or in hex. */
static inline char
escape_of(unsigned char c)
{
	switch (c)
	{
		case '"':
		case '\\':
			return c;
		case '\b':
			return 'b';
		case '\f':
			return 'f';
		case '\n':
			return 'n';
		case '\r':
			return 'r';
		case '\t':
			return 't';
		default:
			return c < ' ' ? 'u' : '\0';
	}
}

/*
 * Append a string, as the server's escape_json() does, which would take it
 * terminated, and character by character.
 */
static void
append_string(FeedpubJson *json, StringInfo out, const char *s, Size len)
{
	static const char hex[] = "0123456789abcdef";
	const char *end = s + len;

	/* before memory is taken; the length of others is checked when they are there */
	if (len > MAX_OBJECT_BYTES / 12)
		check_room(json, out, escaped_length(s, len));
	appendStringInfoChar(out, '"');
	while (s < end)
	{
		const char *from = s;
		char		escape = '\0';

		while (s < end && (escape = escape_of(*s)) == '\0')
			s++;
		appendBinaryStringInfo(out, from, s - from);
		if (s == end)
			break;
		appendStringInfoChar(out, '\\');
		appendStringInfoChar(out, escape);
		if (escape == 'u')
		{
			char		digits[4] = {'0', '0', hex[*s >> 4], hex[*s & 15]};

			appendBinaryStringInfo(out, digits, 4);
		}
		s++;
	}
	appendStringInfoChar(out, '"');
}

static Size
escaped_length(const char *s, Size len)
{
	Size		result = 2;

	for (Size i = 0; i < len; i++)
	{
		char		escape = escape_of(s[i]);

		result += escape == '\0' ? 1 : escape == 'u' ? 6 :
													   2;
	}
	return result;
}

/*
 * Refuse what would make the object too large.
 */
static void
check_room(const FeedpubJson *json, StringInfo out, Size more)
{
	if (out->len - json->start + more > MAX_OBJECT_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("row is larger than %d MB as JSON",
						MAX_OBJECT_BYTES / (1024 * 1024))));
}
