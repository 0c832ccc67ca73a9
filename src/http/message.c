/*-------------------------------------------------------------------------
 *
 * message.c
 *	  An entry of a page as a message of the protocol Durable Streams.
 *
 * Of an outbox it is the column data: JSON, or, of text and bytea, the bytes,
 * in hexadecimal digits.  What cannot be made JSON is an entry with an error;
 * bytes that cannot be sent end the page with it, since nothing could stand for
 * them.  Of a table feed it is the entry.
 *
 * A change is a change message of the State Protocol: type is the relation, key
 * the text of the key, value the row, old_value the old values.  A change of the
 * key is a delete of the old one and an insert.  If there is no value, because of
 * an error, value is null, which a reader of rows does not take for one, and
 * headers.error tells why.  A message of an owner's own is no state, so it is
 * left out.
 *
 * The protocol has no word for the end of a transaction; its clients show what
 * they have after each page.  So a page ends at the last moment in it, if there
 * is one.
 *
 * It has none for a TRUNCATE either, only "reset", which clears whatever the
 * reader has.  For a reader of one relation that is the same.  Any other would
 * lose the rows of its other relations, or keep those that are gone, so it is
 * refused.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "http/http.h"

static bool append_data(FeedpubEvents *events, const FeedpubJsonEntry *entry);
static void append_change(FeedpubEvents *events, const FeedpubJsonEntry *entry,
						  FeedpubChangeColumn key, FeedpubOp op);

/*
 * Make the message of an entry, which begins at "start" in its buffer.  Returns
 * false if it has none.
 */
bool
feedpub_message_make(FeedpubEvents *events, FeedpubJsonEntry *entry, int start)
{
	const FeedpubPageRow *row = entry->row;
	StringInfo	out = &events->out;

	if (events->page->feed.is_changes)
	{
		if (row->op == FEEDPUB_OP_MESSAGE)
			return false;
		if (row->op >= FEEDPUB_OP_TRUNCATE)
			appendStringInfo(out, "{\"headers\": {\"control\": \"reset\", \"offset\": \"%s\"}}",
							 text_to_cstring(feedpub_cursor_text(&row->cursor)));
		else if (entry->given[FEEDPUB_CHANGE_OLD_KEY])
		{
			append_change(events, entry, FEEDPUB_CHANGE_OLD_KEY, FEEDPUB_OP_DELETE);
			appendStringInfoString(out, ", ");
			append_change(events, entry, FEEDPUB_CHANGE_KEY, FEEDPUB_OP_INSERT);
		}
		else
			append_change(events, entry, FEEDPUB_CHANGE_KEY, row->op);
	}
	else if (!append_data(events, entry))
		appendBinaryStringInfo(out, entry->json->data + start, entry->json->len - start);
	return true;
}

/*
 * Append the column data of an outbox.  Returns false if the entry is the
 * message.
 */
static bool
append_data(FeedpubEvents *events, const FeedpubJsonEntry *entry)
{
	StringInfo	out = &events->out;
	int			i = events->data - 1;
	Oid			type = i < 0 ? InvalidOid : TupleDescAttr(events->desc, i)->atttypid;

	if (type == TEXTOID || type == BYTEAOID)
	{
		struct varlena *value = events->nulls[i] ? NULL : PG_DETOAST_DATUM_PACKED(events->columns[i]);
		const char *bytes = value != NULL ? VARDATA_ANY(value) : "";
		int			length = value != NULL ? VARSIZE_ANY_EXHDR(value) : 0;

		if (type == TEXTOID)
		{
			bytes = pg_server_to_client(bytes, length);
			length = value != NULL && bytes == VARDATA_ANY(value) ? length : strlen(bytes);
		}
		enlargeStringInfo(out, 2 * length);
		out->len += hex_encode(bytes, length, out->data + out->len);
		return true;
	}
	if (i < 0 || entry->error != NULL)
		return false;
	if (events->nulls[i])
		appendStringInfoString(out, "null");
	else
		feedpub_jsonvalue_append(events->values, out, type, events->columns[i]);
	return true;
}

/*
 * Append the message that a key has become something.  A key that is empty, or
 * begins as a JSON string, is one; without a key it is "null".
 */
static void
append_change(FeedpubEvents *events, const FeedpubJsonEntry *entry,
			  FeedpubChangeColumn key, FeedpubOp op)
{
	StringInfo	out = &events->out;
	const FeedpubPageRow *row = entry->row;
	char	   *name = entry->given[key] ? feedpub_event_key(entry->columns[key]) : NULL;
	StringInfoData quoted;

	if (name == NULL)
		name = "null";
	else if (*name == '\0' || *name == '"')
	{
		initStringInfo(&quoted);
		escape_json(&quoted, name);
		name = quoted.data;
	}
	appendStringInfo(out, "{\"headers\": {\"operation\": \"%s\"", feedpub_changes_op_names[op]);
	feedpub_event_attribute(events, "txid", psprintf(UINT64_FORMAT, row->xid));
	feedpub_event_time(events, "timestamp", row->published_at);
	if (entry->error != NULL)
		feedpub_event_attribute(events, "error", entry->error);
	appendStringInfoChar(out, '}');
	feedpub_event_attribute(events, "type", entry->given[FEEDPUB_CHANGE_RELATION] ? TextDatumGetCString(entry->columns[FEEDPUB_CHANGE_RELATION]) : events->name);
	feedpub_event_attribute(events, "key", name);
	if (op != FEEDPUB_OP_DELETE)
	{
		appendStringInfoString(out, ", \"value\": ");
		if (entry->given[FEEDPUB_CHANGE_ROW])
			feedpub_jsonvalue_append(events->values, out, JSONOID, entry->columns[FEEDPUB_CHANGE_ROW]);
		else
			appendStringInfoString(out, "null");
	}
	if (op != FEEDPUB_OP_INSERT && entry->given[FEEDPUB_CHANGE_OLD])
	{
		appendStringInfoString(out, ", \"old_value\": ");
		feedpub_jsonvalue_append(events->values, out, JSONOID, entry->columns[FEEDPUB_CHANGE_OLD]);
	}
	appendStringInfoChar(out, '}');
}

/*
 * After which row a page of messages ends, or NULL: the last moment in it, and
 * before a TRUNCATE, unless that is all the reader asks for.
 */
const FeedpubPageRow *
feedpub_message_end(const FeedpubPage *page)
{
	const FeedpubPageRow *moment = NULL;
	const FeedpubPageRow *last = NULL;

	for (int i = 0; page->feed.is_changes && i < page->nrows; i++)
	{
		const FeedpubPageRow *row = &page->rows[i];

		if (row->op >= FEEDPUB_OP_TRUNCATE && !feedpub_types_is_one(page->request.types))
		{
			if (last == NULL)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("a TRUNCATE of one relation cannot be told to a reader of several"),
						 errhint("Read each relation by itself, with its name as \"type\".")));
			return moment != NULL ? moment : last;
		}
		last = row;
		if (row->moment)
			moment = row;
	}
	return page->moment ? NULL : moment;
}
