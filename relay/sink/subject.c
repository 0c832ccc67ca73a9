/*-------------------------------------------------------------------------
 *
 * subject.c
 *	  The subject, or topic, of an entry, from a template.
 *
 * What the template has between braces is replaced: {feed}, {type}, {key},
 * {publication}, {relation}, {op}.  Each is one token of the subject, in which
 * white space, control characters, ".", "*", ">" and "%" are percent-encoded, as
 * the bytes that they are.  Attributes come with control characters and "%"
 * encoded in the same way already, so nothing is encoded twice, and different
 * values have different tokens.  A value that is NULL is "_", and one that is
 * "_" is "%5F".  An empty one is "%00".
 *
 * {type} and {relation} are names with parts: their dots stay, if they stand
 * between two characters that are no dots, so that consumers can subscribe to
 * "outbox.order.>".  A template with at most one of them has different subjects
 * for different values, since every other token is one.
 *
 * A topic of Kafka has ASCII letters, digits, "-", "." and "_" only.  It is made in
 * the same way, with "_" in place of "%": _2E is a dot.  A "_" that stands before
 * two digits of upper case hexadecimal is "_5F", all others stay, so no two values
 * have the same token there either.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/sink.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct Field
{
	const char *name;
	size_t		offset;			/* of a SinkEntry; 0 is the cursor: the feed */
	bool		has_parts;
} Field;

static const Field fields[] = {
	{"feed", 0, false},
	{"type", offsetof(SinkEntry, type), true},
	{"key", offsetof(SinkEntry, key), false},
	{"publication", offsetof(SinkEntry, publication), false},
	{"relation", offsetof(SinkEntry, relation), true},
	{"op", offsetof(SinkEntry, op), false},
};

static const Field *find_field(const char *template);
static void add_token(BaseText *out, const char *value, bool keeps_dots, bool is_raw);
static void add_topic_token(BaseText *out, const char *value, bool keeps_dots, bool is_raw);

/* The field whose braces are here, or NULL. */
static const Field *
find_field(const char *template)
{
	size_t		length = strcspn(template + 1, "{}");

	for (size_t i = 0; i < lengthof(fields); i++)
		if (template[length + 1] == '}' && strlen(fields[i].name) == length &&
			strncmp(fields[i].name, template + 1, length) == 0)
			return &fields[i];
	return NULL;
}

/* Are the templates of a feed such? */
bool
sink_subject_check(const RelayFeedConfig *config)
{
	const char *const templates[] = {config->subject, config->errors_to};

	for (size_t i = 0; i < lengthof(templates); i++)
	{
		const char *t = templates[i];
		bool		good = *t != '.';

		if (i == 0 && *t == '\0')
			good = false;
		for (; *t != '\0' && good; t++)
		{
			if (*t == '{')
			{
				good = find_field(t) != NULL;
				t += good ? strcspn(t, "}") : 0;
			}
			else
				good = (unsigned char) *t > ' ' && *t != 0x7f &&
					strchr("*>}\\\"", *t) == NULL &&
					!(*t == '.' && (t[1] == '.' || t[1] == '\0'));
		}
		if (good)
			continue;
		base_log(BASE_LOG_ERROR, "feed \"%s\": \"%s\" is no template of subjects",
				 config->feed, templates[i]);
		return false;
	}
	return true;
}

/*
 * Add a value as a token, or as several, if dots in it stay.  One that is raw
 * has "%" as itself.
 */
static void
add_token(BaseText *out, const char *value, bool keeps_dots, bool is_raw)
{
	static const char digits[] = "0123456789ABCDEF";

	if (value == NULL || *value == '\0')
	{
		base_text_add(out, value == NULL ? "_" : "%00", value == NULL ? 1 : 3);
		return;
	}
	if (strcmp(value, "_") == 0)
	{
		base_text_add(out, "%5F", 3);
		return;
	}
	for (const char *c = value; *c != '\0'; c++)
	{
		bool		is_kept = *c == '.' ?
			keeps_dots && c > value && c[-1] != '.' && c[1] != '.' && c[1] != '\0' :
			(unsigned char) *c > ' ' && strchr(is_raw ? "\177*>%\"\\" : "\177*>", *c) == NULL;

		if (is_kept)
			base_text_add(out, c, 1);
		else
		{
			char		code[3] = {'%', digits[(unsigned char) *c >> 4], digits[*c & 15]};

			base_text_add(out, code, 3);
		}
	}
}

/*
 * Add the name of a feed as a token, which is in the configuration of a stream:
 * libnats has no quotes for its JSON.
 */
void
sink_subject_feed(BaseText *out, const RelayFeedConfig *config)
{
	add_token(out, config->feed, false, true);
}

/* Add the subject of an entry. */
void
sink_subject_print(BaseText *out, const char *template,
				   const RelayFeedConfig *config, const SinkEntry *entry)
{
	while (*template != '\0')
	{
		const Field *field = *template == '{' ? find_field(template) : NULL;
		size_t		length = strcspn(template + 1, "{") + 1;

		if (field != NULL)
		{
			if (field->offset == 0)
				sink_subject_feed(out, config);
			else
				add_token(out, *(const char *const *) ((const char *) entry + field->offset),
						  field->has_parts, false);
			template += strlen(field->name) + 2;
			continue;
		}
		base_text_add(out, template, length);
		template += length;
	}
}

/*
 * Add a subject with wildcards that all subjects of a template have: its tokens
 * before the first that depends on the entry.  Returns false if there are none.
 */
bool
sink_subject_all(BaseText *out, const char *template, const RelayFeedConfig *config)
{
	size_t		begin = out->length;
	size_t		last = begin;	/* the end of the last token that is whole */

	while (*template != '\0')
	{
		const Field *field = *template == '{' ? find_field(template) : NULL;

		if (field != NULL && field->offset != 0)
			break;
		if (field != NULL)
		{
			sink_subject_feed(out, config);
			template += strlen(field->name) + 2;
			continue;
		}
		if (*template == '.')
			last = out->length;
		base_text_add(out, template ++, 1);
	}
	if (*template == '\0')
		return true;
	out->length = last;
	base_text_add(out, ".>", 2);
	return last > begin;
}

/*
 * Add a value to a topic, as add_token() does to a subject.  One that is not raw
 * has its "%" before two digits.
 */
static void
add_topic_token(BaseText *out, const char *value, bool keeps_dots, bool is_raw)
{
	static const char upper[] = "0123456789ABCDEF";

	if (value == NULL || strcmp(value, "_") == 0 || *value == '\0')
	{
		base_text_add(out, "_", 1);
		if (value != NULL)
			base_text_add(out, *value == '\0' ? "00" : "5F", 2);
		return;
	}
	for (const char *c = value; *c != '\0'; c++)
	{
		bool		is_kept = strchr("-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", *c) != NULL;

		if (*c == '.')
			is_kept = keeps_dots && c > value && c[-1] != '.' && c[1] != '.' && c[1] != '\0';
		else if (*c == '_')
			is_kept = c[1] == '\0' || c[2] == '\0' || strchr(upper, c[1]) == NULL || strchr(upper, c[2]) == NULL;
		if (is_kept)
			base_text_add(out, c, 1);
		else if (*c == '%' && !is_raw)
			base_text_add(out, "_", 1);
		else
			base_text_print(out, "_%02X", (unsigned char) *c);
	}
}

/* Are the templates of a feed's topics such? */
bool
sink_topic_check(const RelayFeedConfig *config)
{
	const char *const templates[] = {config->topic, config->errors_to};

	for (size_t i = 0; i < lengthof(templates); i++)
	{
		const char *t = templates[i];
		bool		good = i > 0 || *t != '\0';

		if (strcmp(t, ".") == 0 || strcmp(t, "..") == 0)
			good = false;
		for (; *t != '\0' && good; t++)
		{
			good = *t == '{' ? find_field(t) != NULL : strchr("-._", *t) != NULL || isalnum((unsigned char) *t);
			if (*t == '{' && good)
				t += strcspn(t, "}");
		}
		if (good)
			continue;
		base_log(BASE_LOG_ERROR, "feed \"%s\": \"%s\" is no template of topics", config->feed, templates[i]);
		return false;
	}
	return true;
}

/* Do all entries of a feed go into one topic? */
bool
sink_topic_is_one(const char *t)
{
	for (; *t != '\0'; t++)
		if (*t == '{' && find_field(t)->offset != 0)
			return false;
	return true;
}

/* Add the topic of an entry, which may be NULL if there is one for all. */
void
sink_topic_print(BaseText *out, const char *t, const RelayFeedConfig *config, const SinkEntry *entry)
{
	for (; *t != '\0'; t++)
	{
		const Field *field = *t == '{' ? find_field(t) : NULL;

		if (field == NULL)
		{
			base_text_add(out, t, 1);
			continue;
		}
		if (field->offset == 0)
			add_topic_token(out, config->feed, false, true);
		else
			add_topic_token(out, *(const char *const *) ((const char *) entry + field->offset),
							field->has_parts, false);
		t += strlen(field->name) + 1;
	}
}
