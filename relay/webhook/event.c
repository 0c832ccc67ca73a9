/*-------------------------------------------------------------------------
 *
 * event.c
 *	  Entries of a poll as CloudEvents in binary mode.
 *
 * The statement of a poll makes the attributes, by the kind of its feed, as
 * feed_page() and the like make those of pages (src/http/event.c), but for what
 * an attribute may not have, which is percent-encoded here.
 *
 * What has to come one after the other has the same key: that of a message, or
 * its id if it has none, of a row, or of a change, which can have an old key too.
 *
 *-------------------------------------------------------------------------
 */
#include "webhook/hook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) "pg_catalog.json_object_field_text(p.\"row\", '" name "')"
#define TRACE(name) "pg_catalog.json_object_field_text(" \
					"pg_catalog.json_object_field(p.\"row\", 'headers'), '" name "')"

/* as JSON has it: without zeros at the end of the fraction */
#define TIME \
	"pg_catalog.rtrim(pg_catalog.rtrim(pg_catalog.to_char(pg_catalog.timezone('UTC', p.published_at)," \
	" 'YYYY-MM-DD\"T\"HH24:MI:SS.US'), '0'), '.') OPERATOR(pg_catalog.||) '+00:00'"

/* a key of one column is its value, of several an array */
#define KEY(key)                                                                         \
	"(SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.>) 1"                                         \
	" THEN pg_catalog.concat('[', pg_catalog.string_agg(e.value::pg_catalog.text, ','), ']')"                \
	" ELSE pg_catalog.min(pg_catalog.json_extract_path_text(e.value, VARIADIC '{}'::pg_catalog.text[])) END" \
	" FROM pg_catalog.json_each(CASE WHEN pg_catalog.json_typeof(" key ") OPERATOR(pg_catalog.=) 'object'"   \
	" THEN " key " ELSE pg_catalog.json_build_object('', " key ") END) e)"

#define SOME(name, value) " CASE WHEN " value " IS NOT NULL THEN pg_catalog.concat(', \"" name "\": ', " value ") END"

/* as many rows as have these bytes, and the one that goes beyond them */
#define BYTES(column) "coalesce(pg_catalog.octet_length(p." column "::pg_catalog.text), 0)"
#define POLL \
	" FROM (SELECT p.*, pg_catalog.sum(" BYTES("\"row\"") " OPERATOR(pg_catalog.+) " BYTES("old") ")"                                                                            \
																								  " OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before"           \
																								  " FROM %s.feed_poll($1, max_rows => $2::pg_catalog.int4, consumer => $3) p) p" \
																								  " WHERE coalesce(p.before, 0) OPERATOR(pg_catalog.<) %d"

#define NONE "NULL::pg_catalog.text"

/* By kind: the columns of WebhookColumn. */
static const char *const polls[] = {
	/* outbox */
	"SELECT p.receipt, p.cursor, p.op, p.error, " FIELD("message_id") ", " FIELD("message_type") ", " FIELD("message_key") ", " TIME ", " FIELD("publication_id") ", " NONE ", " NONE ", " TRACE("traceparent") ", " TRACE("tracestate") ", " NONE ", pg_catalog.json_object_field(p.\"row\", 'data'),"
																																																										 " coalesce(" FIELD("message_key") ", " FIELD("message_id") "), " NONE POLL,
	/* table */
	"SELECT p.receipt, p.cursor, p.op, p.error, " NONE ", " NONE ", " KEY("p.key") ", " TIME ", " NONE ", " NONE ", " NONE ", " NONE ", " NONE ", " NONE ", p.\"row\", " KEY("p.key") ", " NONE POLL,
	/* changes */
	"SELECT p.receipt, p.cursor, p.op, NULL::pg_catalog.text, " NONE ", " NONE ", " KEY("p.key") ", " TIME ", " NONE ", p.relation, " KEY("p.old_key") ", " NONE ", " NONE ", p.moment,"
																																					   " pg_catalog.concat('{\"cursor\": ', pg_catalog.to_json(p.cursor), ', \"op\": ', pg_catalog.to_json(p.op),"
																																					   " ', \"relation\": ', coalesce(pg_catalog.to_json(p.relation)::pg_catalog.text, 'null'),"
																																					   " ', \"key\": ', coalesce(p.key::pg_catalog.text, 'null')," SOME("old_key", "p.old_key") "," SOME("row", "p.\"row\"") "," SOME("old", "p.old") "," SOME("xid", "pg_catalog.to_json(p.xid)") "," SOME("published_at", "pg_catalog.to_json(" TIME ")") "," SOME("error", "pg_catalog.to_json(p.error)") "," SOME("statement", "p.statement") ", CASE WHEN p.moment THEN ', \"moment\": true' END, '}'),"
																																																																																																																								  " pg_catalog.concat(p.relation, pg_catalog.chr(31), " KEY("p.key") "),"
																																																																																																																																									 " CASE WHEN p.old_key IS NOT NULL THEN"
																																																																																																																																									 " pg_catalog.concat(p.relation, pg_catalog.chr(31), " KEY("p.old_key") ") END" POLL,
};

static const char *const kinds[] = {"outbox", "table", "changes"};

static bool is_special(const unsigned char *c, int *length);

/* The statement of a poll, or NULL if there is no such kind of feeds. */
char *
webhook_event_poll(const char *kind, const char *schema)
{
	BaseText	statement = {0};

	for (size_t i = 0; i < lengthof(kinds); i++)
		if (strcmp(kind, kinds[i]) == 0)
			base_text_print(&statement, polls[i], schema, WEBHOOK_PAGE_BYTES);
	return statement.data;
}

/* Add what "source" is of a feed with this name, which is quoted. */
void
webhook_event_source(BaseText *out, const char *name)
{
	base_text_print(out, "/feeds/");
	for (; *name != '\0'; name++)
	{
		if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~", *name) != NULL)
			base_text_add(out, name, 1);
		else
			base_text_print(out, "%%%02X", (unsigned char) *name);
	}
}

/*
 * Is a character one that no attribute may have: a control character, a
 * noncharacter, or "%"?  Sets how many bytes it has.
 */
static bool
is_special(const unsigned char *c, int *length)
{
	*length = *c < 0xc0 || c[1] == '\0' ? 1 :
		*c < 0xe0 || c[2] == '\0'		? 2 :
		*c < 0xf0 || c[3] == '\0'		? 3 :
										  4;
	if (*length == 1)
		return *c < ' ' || *c == 0x7f || *c == '%';
	if (*length == 2)
		return *c == 0xc2 && c[1] < 0xa0;
	if (*length == 3)
		return *c == 0xef && ((c[1] == 0xb7 && c[2] >= 0x90 && c[2] <= 0xaf) || (c[1] == 0xbf && c[2] >= 0xbe));
	return (c[1] & 0x0f) == 0x0f && c[2] == 0xbf && c[3] >= 0xbe;
}

/*
 * Add an attribute as the value of a header: what attributes may not have is
 * percent-encoded, and then, in that, what headers may not have.  "also" is one
 * more character that is.
 */
void
webhook_event_encode(BaseText *out, const char *value, char also)
{
	const unsigned char *c = (const unsigned char *) value;

	if (*c == '\0')
		base_text_print(out, "%%2500");
	for (int length; *c != '\0'; c += length)
	{
		bool		is_twice = is_special(c, &length);

		for (int i = 0; i < length; i++)
		{
			if (is_twice)
				base_text_print(out, "%%25%02X", c[i]);
			else if (c[i] > ' ' && c[i] < 0x7f && c[i] != '"' && c[i] != also)
				base_text_add(out, (const char *) c + i, 1);
			else
				base_text_print(out, "%%%02X", c[i]);
		}
	}
}
