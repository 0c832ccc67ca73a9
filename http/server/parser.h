/*-------------------------------------------------------------------------
 *
 * parser.h
 *	  How connection.c has bytes become requests: parser.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_PARSER_H
#define FEEDPUB_HTTP_PARSER_H

#include <llhttp.h>

#include "server/server.h"

typedef struct HttpParser
{
	llhttp_t	parser;
	HttpRequest *request;		/* into which it reads; the caller's */
	bool		in_lines;		/* of the head, or of the trailer */
	size_t		size;			/* of the lines so far */
	size_t		line;			/* of the last one */
	char		last;			/* byte of it */
	bool		has_line;		/* the first one has ended */
	int			spaces;			/* in the first one */
	char		protocol;		/* its first byte */
	bool		continues;		/* the client waits for a 100 */
	bool		is_complete;
	unsigned	status;			/* of the refusal, or 0 */
	const char *problem;
} HttpParser;

extern void http_parse_begin(HttpParser *parser, HttpRequest *request);
extern size_t http_parse(HttpParser *parser, const char *data, size_t length);

#endif							/* FEEDPUB_HTTP_PARSER_H */
