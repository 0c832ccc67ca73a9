/*-------------------------------------------------------------------------
 *
 * text.c
 *	  Memory, text that grows, and the clock.
 *
 * If there is no memory, the process ends: its service manager starts it
 * again, and consumers have their cursors.
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *check_memory(void *memory);
static void make_room(BaseText *text, size_t more);

static void *
check_memory(void *memory)
{
	if (memory == NULL)
	{
		fputs(FEEDPUB_PROGRAM ": out of memory\n", stderr);
		abort();
	}
	return memory;
}

/* Zeroed memory, for free(). */
void *
base_alloc(size_t size)
{
	return check_memory(calloc(1, size));
}

/* A copy for free(); NULL of NULL. */
char *
base_copy(const char *string)
{
	return string == NULL ? NULL : check_memory(strdup(string));
}

static void
make_room(BaseText *text, size_t more)
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
base_text_room(BaseText *text, size_t length)
{
	make_room(text, length);
}

void
base_text_add(BaseText *text, const char *data, size_t length)
{
	make_room(text, length);
	memcpy(text->data + text->length, data, length);
	text->length += length;
	text->data[text->length] = '\0';
}

void
base_text_print(BaseText *text, const char *format, ...)
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
base_text_json(BaseText *text, const char *string)
{
	base_text_add(text, "\"", 1);
	for (; *string != '\0'; string++)
	{
		unsigned char c = *string;

		if (c == '"' || c == '\\')
			base_text_print(text, "\\%c", c);
		else if (c < ' ')
			base_text_print(text, "\\u%04x", c);
		else
			base_text_add(text, string, 1);
	}
	base_text_add(text, "\"", 1);
}

/* The value of a hexadecimal digit, or -1. */
int
base_hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Add bytes as the text of a bytea. */
void
base_text_add_hex(BaseText *text, const char *bytes, size_t length)
{
	static const char digits[] = "0123456789abcdef";

	make_room(text, 2 * length + 2);
	base_text_add(text, "\\x", 2);
	for (size_t i = 0; i < length; i++)
	{
		unsigned char byte = bytes[i];

		text->data[text->length++] = digits[byte >> 4];
		text->data[text->length++] = digits[byte & 15];
	}
	text->data[text->length] = '\0';
}

/* Add bytes that are given by hexadecimal digits. */
void
base_text_add_bytes(BaseText *text, const char *hex, size_t length)
{
	make_room(text, length / 2);
	for (size_t i = 0; i + 1 < length; i += 2)
		text->data[text->length++] = base_hex(hex[i]) * 16 + base_hex(hex[i + 1]);
	text->data[text->length] = '\0';
}

/* Milliseconds of a clock that is never set. */
int64_t
base_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}
