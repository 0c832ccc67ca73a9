/*-------------------------------------------------------------------------
 *
 * log.c
 *	  The log: a line an event on standard error, key=value.
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char *const level_names[] = {"debug", "info", "warning", "error"};

static BaseLogLevel least = BASE_LOG_INFO;

/* Log what has this level or a higher one. */
void
base_log_level(const char *level)
{
	for (size_t i = 0; i < lengthof(level_names); i++)
		if (strcasecmp(level, level_names[i]) == 0)
			least = i;
}

/* The beginning of a line; what is added to it is key=value. */
void
base_log_begin(BaseText *text, BaseLogLevel level)
{
	char		when[32];
	time_t		now = time(NULL);
	struct tm parts;

	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
	base_text_print(text, "time=%s level=%s message=", when, level_names[level]);
}

/* Write a line, and free it. */
void
base_log_end(BaseText *text)
{
	base_text_add(text, "\n", 1);
	fputs(text->data, stderr);
	free(text->data);
}

/*
 * Messages can have what a client sent: control characters become spaces, so
 * that a client cannot write a line of the log.
 */
void
base_log(BaseLogLevel level, const char *format, ...)
{
	BaseText	text = {0};
	char		message[1024];
	va_list		arguments;

	if (level < least)
		return;
	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	for (char *c = message; *c != '\0'; c++)
		if ((unsigned char) *c < ' ' || *c == 0x7f)
			*c = ' ';
	base_log_begin(&text, level);
	base_text_json(&text, message);
	base_log_end(&text);
}
