/*-------------------------------------------------------------------------
 *
 * entry.c
 *	  An entry for people: a line that tells what it is, and its JSON.
 *
 * The JSON is the database's, so it is valid; but it may be a part of one, if
 * it was cut.  It is not made into values, in which numbers would lose digits:
 * it is shown as it is, with line breaks and indents where they mean nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <string.h>

/* bytes of an entry that are shown, and of a part of its line */
#define MAX_SHOWN 16384
#define MAX_PART 160

/* how deep JSON is indented: what is deeper stays in a line, or it would grow */
#define MAX_DEPTH 8

/* A value of an entry, as it is written; NULL if it is not there. */
typedef struct Value
{
	const char *json;
	size_t		length;
} Value;

static const char *break_line(BaseText *out, const char *begin, const char *here,
							  const char *end, int depth);
static Value find_member(Value object, const char *name);
static const char *skip_string(const char *json, const char *end);
static const char *skip_value(const char *json, const char *end);
static void add_part(BaseText *out, const char *class, Value value);
static size_t cut(const char *text, size_t length, size_t most);

/* Add an entry of a page, a line of feedpub._page_lines(), as a list item. */
void
form_entry_add(BaseText *out, const char *entry, size_t length)
{
	Value		whole = {entry, length};
	Value		type = find_member(whole, "relation");
	Value		time = find_member(whole, "published_at");

	if (type.json == NULL)
		type = find_member(find_member(whole, "row"), "message_type");
	base_text_print(out, "<li><details><summary>");
	add_part(out, "op", find_member(whole, "op"));
	add_part(out, "type", type);
	add_part(out, "key", find_member(whole, "key"));
	if (find_member(whole, "error").json != NULL)
		base_text_print(out, "<strong>error</strong> ");
	add_part(out, "time", time);
	base_text_print(out, "</summary><pre>");
	form_entry_add_json(out, entry, length);
	base_text_print(out, "</pre></details></li>\n");
}

/* Add the type of a row that is a message. */
void
form_entry_add_type(BaseText *out, const char *row, size_t length)
{
	add_part(out, "type", find_member((Value){row, length}, "message_type"));
}

/* Add JSON with line breaks and indents. */
void
form_entry_add_json(BaseText *out, const char *json, size_t length)
{
	size_t		shown = cut(json, length, MAX_SHOWN);
	const char *end = json + shown;
	const char *begin = json;	/* of what has not been added */
	int			depth = 0;

	while (json < end)
	{
		char		c = *json;

		if (c == '"')
		{
			json = skip_string(json, end);
			continue;
		}
		if (c == '{' || c == '[')
			depth++;
		else if (c == '}' || c == ']')
		{
			depth--;
			if (depth < MAX_DEPTH && json > begin && json[-1] != '{' && json[-1] != '[')
				json = begin = break_line(out, begin, json, end, depth);
		}
		json++;
		if ((c == '{' || c == '[' || c == ',') && depth <= MAX_DEPTH &&
			json < end && *json != '}' && *json != ']')
			json = begin = break_line(out, begin, json, end, depth);
	}
	form_html_text(out, begin, end - begin);
	if (shown < length)
		base_text_print(out, "\n... %zu bytes more", length - shown);
}

/* Add JSON up to here, and a line break; returns where the next line begins. */
static const char *
break_line(BaseText *out, const char *begin, const char *here, const char *end, int depth)
{
	form_html_text(out, begin, here - begin);
	base_text_print(out, "\n%*s", depth > 0 ? 2 * depth : 0, "");
	while (here < end && *here == ' ')
		here++;
	return here;
}

/* The value of a member of an object that is valid and may be cut. */
static Value
find_member(Value object, const char *name)
{
	Value		none = {NULL, 0};
	const char *json = object.json;
	const char *end = json + object.length;
	size_t		length = strlen(name);

	if (json == NULL || object.length == 0 || *json != '{')
		return none;
	json++;
	while (json < end)
	{
		const char *key;
		bool		found;
		const char *value;

		while (json < end && strchr(" \t\n\r,", *json) != NULL)
			json++;
		if (json >= end || *json != '"')
			return none;
		key = json + 1;
		json = skip_string(json, end);
		found = (size_t) (json - key) == length + 1 && strncmp(key, name, length) == 0;
		while (json < end && strchr(" \t\n\r:", *json) != NULL)
			json++;
		value = json;
		json = skip_value(json, end);
		if (found)
			return (Value){value, json - value};
	}
	return none;
}

/* Where a string ends that begins here. */
static const char *
skip_string(const char *json, const char *end)
{
	for (json++; json < end && *json != '"'; json++)
		if (*json == '\\')
			json++;
	return json < end ? json + 1 : end;
}

/* Where a value ends. */
static const char *
skip_value(const char *json, const char *end)
{
	int			depth = 0;

	while (json < end)
	{
		if (depth == 0 && strchr(",}] \t\n\r", *json) != NULL)
			break;
		if (*json == '"')
		{
			json = skip_string(json, end);
			if (depth == 0)
				break;
			continue;
		}
		depth += (*json == '{' || *json == '[') - (*json == '}' || *json == ']');
		json++;
		if (depth == 0 && (json[-1] == '}' || json[-1] == ']'))
			break;
	}
	return json;
}

/* A part of an entry's line: of a string what is between its quotes. */
static void
add_part(BaseText *out, const char *class, Value value)
{
	size_t		length;

	if (value.json == NULL || (value.length == 4 && strncmp(value.json, "null", 4) == 0))
		return;
	if (*value.json == '"' && value.length >= 2)
	{
		value.json++;
		value.length -= 2;
	}
	length = cut(value.json, value.length, MAX_PART);
	base_text_print(out, "<span class=\"%s\">", class);
	form_html_text(out, value.json, length);
	base_text_print(out, "%s</span> ", length < value.length ? "..." : "");
}

/* The length of text if it is cut, at a character of UTF-8. */
static size_t
cut(const char *text, size_t length, size_t most)
{
	if (length <= most)
		return length;
	while (most > 0 && ((unsigned char) text[most] & 0xc0) == 0x80)
		most--;
	return most;
}
