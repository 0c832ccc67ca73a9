/*-------------------------------------------------------------------------
 *
 * memory.c
 *	  Memory, text that grows, and the clock.
 *
 * If there is no memory, the process ends: its service manager starts it
 * again, and consumers have their cursors.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *check_memory(void *memory);
static void make_room(HttpText *text, size_t more);

static void *
check_memory(void *memory)
{
	if (memory == NULL)
	{
		fputs("feedpub-http: out of memory\n", stderr);
		abort();
	}
	return memory;
}

/* Zeroed memory, for free(). */
void *
http_alloc(size_t size)
{
	return check_memory(calloc(1, size));
}

/* A copy for free(); NULL of NULL. */
char *
http_copy(const char *string)
{
	return string == NULL ? NULL : check_memory(strdup(string));
}

static void
make_room(HttpText *text, size_t more)
{
	size_t		size = text->size > 0 ? text->size : 256;

	while (size < text->length + more + 1)
		size *= 2;
	if (size != text->size)
		text->data = check_memory(realloc(text->data, size));
	text->size = size;
}

/* More text of this length will be added. */
void
http_text_room(HttpText *text, size_t length)
{
	make_room(text, length);
}

void
http_text_add(HttpText *text, const char *data, size_t length)
{
	make_room(text, length);
	memcpy(text->data + text->length, data, length);
	text->length += length;
	text->data[text->length] = '\0';
}

void
http_text_print(HttpText *text, const char *format, ...)
{
	va_list		arguments;
	int			length;

	va_start(arguments, format);
	length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	make_room(text, length);
	va_start(arguments, format);
	vsnprintf(text->data + text->length, length + 1, format, arguments);
	va_end(arguments);
	text->length += length;
}

/* Add a JSON string, of errors: the database makes the JSON of data. */
void
http_text_json(HttpText *text, const char *string)
{
	http_text_add(text, "\"", 1);
	for (; *string != '\0'; string++)
	{
		unsigned char c = *string;

		if (c == '"' || c == '\\')
			http_text_print(text, "\\%c", c);
		else if (c < ' ')
			http_text_print(text, "\\u%04x", c);
		else
			http_text_add(text, string, 1);
	}
	http_text_add(text, "\"", 1);
}

/* Milliseconds of a clock that is never set. */
int64_t
http_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}
