/*-------------------------------------------------------------------------
 *
 * event.c
 *	  An entry of a page as a CloudEvent 1.0, in JSON, or as a record.
 *
 *		id			the entry's cursor
 *		source		"/feeds/" and the table's qualified name, percent-encoded:
 *					the same by whichever name a consumer reads the feed
 *		type		of an outbox message_type, of a table feed its name and
 *					the op, as "public.kv.upsert", of a change feed the relation,
 *					or without one the feed's name, and the op
 *		subject		the key: the value of its column, of several columns a
 *					JSON array; absent if there is none
 *		time		when it was published; of a row of the initial snapshot,
 *					when the feed was made
 *		method		"DELETE" for a delete and, without a subject, a TRUNCATE
 *		data		of an outbox the column data, of a table feed the row, of a
 *					change feed the entry
 *		messageid	message_id, of an outbox: the id of the same message after
 *					a failover or in a restored database is another one
 *		traceparent, tracestate
 *					what "headers" has of these names
 *		error		why there is no data
 *
 * A text of an attribute may not be empty, nor have control characters or
 * noncharacters.  So these, and "%", are percent-encoded, and an empty text is
 * "%00", which no other text is encoded as.  Different keys have different
 * subjects.
 *
 * A record is what feedpub-relay reads, which has no parser of JSON: attributes
 * as name=value, each with a tab after it, then, if there is data, another tab
 * and the data.  These cannot be in an attribute.  Besides those above it has
 *
 *		op			of the entry
 *		publication	publication_id, of an outbox, unless it is empty
 *		relation, oldkey, moment
 *					of a change feed; oldkey is made as subject is, and moment
 *					is "true" if a moment ends with the entry
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "http/http.h"

static FeedpubStatement read_created_at = {
	.sql = "SELECT created_at FROM feedpub._feed WHERE feed = $1",
};

/* What may be between the parts of JSON */
#define JSON_SPACE " \t\n\r"

static bool is_allowed(const char *utf8);
static char *encode(const char *s, bool unreserved_only);
static void append_value(FeedpubEvents *events, StringInfo out, AttrNumber attno);
static void append_type(FeedpubEvents *events, const FeedpubPageRow *row);
static void begin_data(FeedpubEvents *events);
static void append_record(FeedpubEvents *events, const FeedpubJsonEntry *entry);
static void append_subject(FeedpubEvents *events, const FeedpubJsonEntry *entry);
static char *key_text(StringInfo values, int n);
static void append_trace(FeedpubEvents *events);

FeedpubEvents *
feedpub_event_begin(const FeedpubPage *page)
{
	FeedpubEvents *events = palloc0_object(FeedpubEvents);
	Oid			relid = page->feed.relid;

	events->page = page;
	events->desc = RelationGetDescr(page->heap);
	events->values = feedpub_jsonvalue_begin(false);
	initStringInfo(&events->out);
	events->name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(page->heap)),
											  RelationGetRelationName(page->heap));
	events->source = psprintf("/feeds/%s", encode(events->name, true));
	if (OidIsValid(page->feed.keyid))
		events->nkeys = feedpub_key_columns(page->feed.keyid, events->keys);
	if (page->feed.is_changes)
		events->keys[events->nkeys++] = page->change[FEEDPUB_CHANGE_KEY];
	else if (page->feed.is_outbox)
	{
		events->keys[0] = get_attnum(relid, "message_key");
		events->nkeys = events->keys[0] != InvalidAttrNumber ? 1 : 0;
		events->type = get_attnum(relid, "message_type");
		events->id = get_attnum(relid, "message_id");
		events->data = get_attnum(relid, "data");
		events->headers = get_attnum(relid, "headers");
		events->publication = get_attnum(relid, "publication_id");
	}
	events->context = AllocSetContextCreate(CurrentMemoryContext,
											"feedpub event",
											ALLOCSET_DEFAULT_SIZES);
	events->columns = palloc(events->desc->natts * sizeof(Datum));
	events->nulls = palloc(events->desc->natts * sizeof(bool));
	return events;
}

/*
 * Make the event of an entry, which begins at "start" in its buffer.  The
 * entry has shown that the JSON of the row can be made.
 */
bool
feedpub_event_make(FeedpubEvents *events, FeedpubJsonEntry *entry, int start)
{
	const FeedpubPageRow *row = entry->row;
	StringInfo	json = entry->json;
	StringInfo	out = &events->out;

	if (events->are_records)
		append_record(events, entry);
	else
		appendStringInfoString(out, "{\"specversion\": \"1.0\"");
	feedpub_event_attribute(events, "id", text_to_cstring(feedpub_cursor_text(&row->cursor)));
	feedpub_event_attribute(events, "source", events->source);
	append_type(events, row);
	append_subject(events, entry);
	feedpub_event_time(events, "time", row->published_at);
	if (row->op == FEEDPUB_OP_DELETE || row->op >= FEEDPUB_OP_TRUNCATE)
		feedpub_event_attribute(events, "method", "DELETE");
	if (events->id != InvalidAttrNumber && !events->nulls[events->id - 1])
		feedpub_event_attribute(events, "messageid", encode(TextDatumGetCString(events->columns[events->id - 1]), false));
	append_trace(events);
	if (entry->error != NULL)
		feedpub_event_attribute(events, "error", encode(entry->error, false));
	if (events->page->feed.is_changes)
	{
		begin_data(events);
		appendBinaryStringInfo(out, json->data + start, json->len - start);
	}
	else if (entry->error == NULL && row->op == FEEDPUB_OP_UPSERT &&
			 !(events->data != InvalidAttrNumber && events->nulls[events->data - 1]))
	{
		begin_data(events);
		if (events->data != InvalidAttrNumber)
			append_value(events, out, events->data);
		else
			appendBinaryStringInfo(out, json->data + entry->value, entry->value_length);
	}
	if (!events->are_records)
		appendStringInfoChar(out, '}');
	return true;
}

/*
 * Make the record of an entry, which begins at "start" in its buffer.
 */
bool
feedpub_event_record(FeedpubEvents *events, FeedpubJsonEntry *entry, int start)
{
	events->are_records = true;
	return feedpub_event_make(events, entry, start);
}

static void
begin_data(FeedpubEvents *events)
{
	if (events->are_records)
		appendStringInfoChar(&events->out, '\t');
	else
		appendStringInfoString(&events->out, ", \"datacontenttype\": \"application/json\", \"data\": ");
}

/*
 * Append what only a record has.
 */
static void
append_record(FeedpubEvents *events, const FeedpubJsonEntry *entry)
{
	const FeedpubPageRow *row = entry->row;
	char	   *value;

	feedpub_event_attribute(events, "op", feedpub_changes_op_names[row->op]);
	if (events->publication != InvalidAttrNumber && !events->nulls[events->publication - 1])
	{
		value = TextDatumGetCString(events->columns[events->publication - 1]);
		if (*value != '\0')
			feedpub_event_attribute(events, "publication", encode(value, false));
	}
	if (!events->page->feed.is_changes)
		return;
	if (entry->given[FEEDPUB_CHANGE_RELATION])
		feedpub_event_attribute(events, "relation", encode(TextDatumGetCString(entry->columns[FEEDPUB_CHANGE_RELATION]), false));
	if (entry->given[FEEDPUB_CHANGE_OLD_KEY] &&
		(value = feedpub_event_key(entry->columns[FEEDPUB_CHANGE_OLD_KEY])) != NULL)
		feedpub_event_attribute(events, "oldkey", encode(value, false));
	if (row->moment)
		feedpub_event_attribute(events, "moment", "true");
}

/*
 * May a text of an attribute have this character, which is not ASCII?
 */
static bool
is_allowed(const char *utf8)
{
	pg_wchar	code = utf8_to_unicode((const unsigned char *) utf8);

	return code >= 0xa0 && !(code >= 0xfdd0 && code <= 0xfdef) &&
		(code & 0xfffe) != 0xfffe;
}

/*
 * A text with what an attribute may not have percent-encoded, or with all but
 * what a URI has as it is.  The text of SQL_ASCII is taken for UTF-8.  Bytes
 * that UTF-8 cannot have are percent-encoded as they are: an entry with an
 * error, whose row could not be sent, has type and messageid all the same.  So
 * are, in a database of another encoding, all that are not ASCII.
 */
static char *
encode(const char *s, bool unreserved_only)
{
	int			encoding = GetDatabaseEncoding() == PG_UTF8 ? PG_UTF8 :
		GetDatabaseEncoding() == PG_SQL_ASCII		? PG_UTF8 :
															  PG_SQL_ASCII;
	const char *end = s + strlen(s);
	StringInfoData out;

	if (*s == '\0')
		return pstrdup("%00");
	initStringInfo(&out);
	for (int length; s < end; s += length)
	{
		length = Max(pg_encoding_verifymbchar(encoding, s, end - s), 1);
		if (unreserved_only ?
				length == 1 && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~", *s) != NULL :
				length == 1 ? *s >= 0x20 && *s < 0x7f && *s != '%' :
							  is_allowed(s))
			appendBinaryStringInfo(&out, s, length);
		else
		{
			for (int i = 0; i < length; i++)
				appendStringInfo(&out, "%%%02X", (unsigned char) s[i]);
		}
	}
	return out.data;
}

void
feedpub_event_attribute(FeedpubEvents *events, const char *name, const char *value)
{
	if (events->are_records)
	{
		appendStringInfo(&events->out, "%s=%s\t", name, value);
		return;
	}
	appendStringInfo(&events->out, ", \"%s\": ", name);
	feedpub_jsonvalue_string(events->values, &events->out, value, strlen(value));
}

/*
 * Append a column that is not null as JSON.
 */
static void
append_value(FeedpubEvents *events, StringInfo out, AttrNumber attno)
{
	Oid			type = TupleDescAttr(events->desc, attno - 1)->atttypid;

	feedpub_jsonvalue_append(events->values, out, type, events->columns[attno - 1]);
}

static void
append_type(FeedpubEvents *events, const FeedpubPageRow *row)
{
	const char *type;

	if (events->type != InvalidAttrNumber && !events->nulls[events->type - 1])
		type = TextDatumGetCString(events->columns[events->type - 1]);
	else
	{
		AttrNumber	relation = events->page->feed.is_changes ? events->page->change[FEEDPUB_CHANGE_RELATION] : InvalidAttrNumber;

		type = psprintf("%s.%s",
						relation != InvalidAttrNumber && !events->nulls[relation - 1] ? TextDatumGetCString(events->columns[relation - 1]) : events->name,
						feedpub_changes_op_names[row->op]);
	}
	feedpub_event_attribute(events, "type", encode(type, false));
}

static void
append_subject(FeedpubEvents *events, const FeedpubJsonEntry *entry)
{
	StringInfoData key;
	char	   *text;

	if (entry->key_length == 0)
		return;
	if (events->page->feed.is_changes)
		text = feedpub_event_key(entry->columns[FEEDPUB_CHANGE_KEY]);
	else
	{
		initStringInfo(&key);
		for (int i = 0; i < events->nkeys; i++)
		{
			appendStringInfoChar(&key, i == 0 ? '[' : ',');
			append_value(events, &key, events->keys[i]);
		}
		appendStringInfoChar(&key, ']');
		text = key_text(&key, events->nkeys);
	}
	if (text != NULL)
		feedpub_event_attribute(events, "subject", encode(text, false));
}

/*
 * The text of a key, of an array of its values: one value is itself, a string
 * without its quotes, and several are the array.  NULL if there is no key.
 */
static char *
key_text(StringInfo values, int n)
{
	if (n > 1)
		return values->data;
	if (n == 0 || strcmp(values->data, "[null]") == 0)
		return NULL;
	return TextDatumGetCString(DirectFunctionCall2(json_array_element_text,
												   CStringGetTextDatum(values->data),
												   Int32GetDatum(0)));
}

/*
 * The same of the key of a change, an object, or of another value: names are
 * left out, so the key is the same when a column gets another one.
 */
char *
feedpub_event_key(Datum key)
{
	const char *s = TextDatumGetCString(key);
	StringInfoData values;
	int			depth = 0;
	int			n = 0;

	initStringInfo(&values);
	appendStringInfoChar(&values, '[');
	s += strspn(s, JSON_SPACE);
	if (*s != '{')
	{
		appendStringInfo(&values, "%s]", s);
		return key_text(&values, 1);
	}
	for (s++; depth >= 0; s++)
	{
		const char *from = s;

		if (*s == '"')
		{
			for (s++; *s != '"'; s++)
				s += *s == '\\';
		}
		else if (*s == '{' || *s == '[')
			depth++;
		else if (*s == '}' || *s == ']')
			depth--;
		if (depth > 0)
			appendBinaryStringInfo(&values, from, s + 1 - from);
		else if (*from == '"' && s[1 + strspn(s + 1, JSON_SPACE)] == ':')
			n++;
		else if (depth == 0 && strchr(JSON_SPACE ":", *from) == NULL)
			appendBinaryStringInfo(&values, from, s + 1 - from);
	}
	appendStringInfoChar(&values, ']');
	return key_text(&values, n);
}

/*
 * Append a time; 0 is that when the feed was made.
 */
void
feedpub_event_time(FeedpubEvents *events, const char *name, TimestampTz time)
{
	char		buffer[MAXDATELEN + 1];
	int			utc = 0;

	if (time == 0 && events->created_at == 0)
	{
		Datum		values[1] = {ObjectIdGetDatum(events->page->feed.relid)};

		events->created_at = feedpub_store_number(&read_created_at, values, 0);
	}
	JsonEncodeDateTime(buffer, TimestampTzGetDatum(time != 0 ? time : events->created_at),
					   TIMESTAMPTZOID, &utc);
	feedpub_event_attribute(events, name, buffer);
}

/*
 * Append the trace context, if the message has one.  What could not be one
 * is left out.
 */
static void
append_trace(FeedpubEvents *events)
{
	static const char *const names[] = {"traceparent", "tracestate"};
	Jsonb	   *headers;

	if (events->headers == InvalidAttrNumber || events->nulls[events->headers - 1])
		return;
	headers = DatumGetJsonbP(events->columns[events->headers - 1]);
	if (!JB_ROOT_IS_OBJECT(headers))
		return;
	for (int i = 0; i < lengthof(names); i++)
	{
		JsonbValue	found;
		bool		is_printable;

		if (getKeyJsonValueFromContainer(&headers->root, names[i], strlen(names[i]), &found) == NULL ||
			found.type != jbvString)
			continue;
		is_printable = found.val.string.len > 0;
		for (int j = 0; j < found.val.string.len; j++)
			is_printable = is_printable && found.val.string.val[j] >= 0x20 && found.val.string.val[j] < 0x7f;
		if (is_printable)
			feedpub_event_attribute(events, names[i], pnstrdup(found.val.string.val, found.val.string.len));
	}
}
