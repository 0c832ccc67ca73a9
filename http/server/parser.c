/*-------------------------------------------------------------------------
 *
 * parser.c
 *	  Bytes become requests: llhttp, and what it lets pass.
 *
 * A request has one meaning, or it is refused, because a proxy that takes the
 * other one would let a client send requests in the name of another.  llhttp
 * refuses two lengths, a length beside a coding, chunks that do not end as they
 * have to, control characters.  Lines that end with a bare LF or a bare CR or go
 * on in the next line, headers without a name, a request line with more spaces
 * than two, two hosts, and codings other than "chunked" are refused here.
 *
 * The head, and the trailer of a chunked body, are lines.  Those are scanned,
 * and fed to llhttp up to their end and not further, so what follows is the
 * body's, or the next request's.
 *
 *-------------------------------------------------------------------------
 */
#include "server/parser.h"

#include <string.h>
#include <strings.h>

/*
 * bytes of the request line, the headers and the trailer, without line breaks:
 * 8 kB of headers, and some for what proxies add
 */
#define MAX_LINES 9216

/* headers, and arguments of the URL: each has more memory than two bytes */
#define MAX_FIELDS 256

static void refuse(HttpParser *parser, unsigned status, const char *problem);
static size_t scan_lines(HttpParser *parser, const char *data, size_t length);
static void scan_byte(HttpParser *parser, char c);
static size_t feed(HttpParser *parser, const char *data, size_t length);
static void take_head(HttpParser *parser);
static void split_arguments(HttpRequest *request, char *query);
static void check_head(HttpParser *parser);

static void
refuse(HttpParser *parser, unsigned status, const char *problem)
{
	if (parser->status == 0)
	{
		parser->status = status;
		parser->problem = problem;
	}
}

static int
add_text(llhttp_t *llhttp, const char *data, size_t length)
{
	HttpParser *parser = llhttp->data;

	/* what comes after a chunked body is of no use */
	if (parser->request->method == NULL)
		base_text_add(&parser->request->head, data, length);
	return 0;
}

/* The URL, a name or a value has ended. */
static int
end_text(llhttp_t *llhttp)
{
	return add_text(llhttp, "", 1);
}

/* It is served as if no other protocol had been asked for. */
static int
end_head(llhttp_t *llhttp)
{
	llhttp->upgrade = 0;
	return 0;
}

static int
add_body(llhttp_t *llhttp, const char *data, size_t length)
{
	HttpParser *parser = llhttp->data;

	if (!http_request_add_body(parser->request, data, length))
		refuse(parser, 503, "too many requests have a body");
	return 0;
}

/* The last chunk has no bytes: lines follow, as in the head. */
static int
begin_chunk(llhttp_t *llhttp)
{
	HttpParser *parser = llhttp->data;

	parser->in_lines = llhttp->content_length == 0;
	return parser->in_lines ? HPE_PAUSED : 0;
}

/* The next request is not for this one's parser. */
static int
end_message(llhttp_t *llhttp)
{
	HttpParser *parser = llhttp->data;

	parser->is_complete = true;
	parser->request->keeps = llhttp_should_keep_alive(llhttp);
	return HPE_PAUSED;
}

/* Begin a request. */
void
http_parse_begin(HttpParser *parser, HttpRequest *request)
{
	static llhttp_settings_t settings = {.on_url = add_text,
										 .on_url_complete = end_text,
										 .on_header_field = add_text,
										 .on_header_field_complete = end_text,
										 .on_header_value = add_text,
										 .on_header_value_complete = end_text,
										 .on_headers_complete = end_head,
										 .on_body = add_body,
										 .on_chunk_header = begin_chunk,
										 .on_message_complete = end_message};

	memset(parser, 0, sizeof(*parser));
	llhttp_init(&parser->parser, HTTP_REQUEST, &settings);
	parser->parser.data = parser;
	parser->request = request;
	parser->in_lines = true;
}

/*
 * Go on with these bytes.  Returns how many of them are the request's.  When it
 * is complete, is_complete is set; if it is refused, status.
 */
size_t
http_parse(HttpParser *parser, const char *data, size_t length)
{
	size_t		done = 0;

	while (done < length && parser->status == 0 && !parser->is_complete)
	{
		size_t		part = length - done;

		if (!parser->in_lines)
		{
			done += feed(parser, data + done, part);
			continue;
		}
		part = scan_lines(parser, data + done, part);
		feed(parser, data + done, part);
		done += part;
		if (!parser->in_lines && parser->request->method == NULL && parser->status == 0)
		{
			take_head(parser);
			check_head(parser);
		}
	}
	return done;
}

/* Find the end of the lines, and see that each is as it has to be. */
static size_t
scan_lines(HttpParser *parser, const char *data, size_t length)
{
	for (size_t i = 0; i < length; i++)
	{
		char		c = data[i];

		if ((c == '\n') != (parser->last == '\r'))
			refuse(parser, 400, "a line ends with CR LF, and nothing else");
		else if (c == '\n' && parser->line == 0 && parser->size > 0)
		{
			parser->last = c;
			parser->in_lines = false;
			return i + 1;
		}
		else if (c == '\n')
		{
			parser->line = 0;
			parser->has_line = parser->size > 0;
		}
		else if (c != '\r')
			scan_byte(parser, c);
		parser->last = c;
		if (parser->size > MAX_LINES)
			refuse(parser, parser->has_line ? 431 : 414,
				   "the request line and the headers are too long");
		if (parser->status != 0)
			return i;
	}
	return length;
}

/* A byte of a line. */
static void
scan_byte(HttpParser *parser, char c)
{
	if (!parser->has_line && c == ' ')
		parser->spaces++;
	else if (parser->spaces == 2 && parser->protocol == '\0')
		parser->protocol = c;
	if (parser->has_line && parser->line == 0 && (c == ' ' || c == '\t'))
		refuse(parser, 400, "a header goes on in a second line");
	if (parser->has_line && parser->line == 0 && c == ':')
		refuse(parser, 400, "a header has no name");
	parser->line++;
	parser->size++;
}

/* Give llhttp what it is to read; returns how much it has. */
static size_t
feed(HttpParser *parser, const char *data, size_t length)
{
	llhttp_t   *llhttp = &parser->parser;
	llhttp_errno_t error = llhttp_execute(llhttp, data, length);

	switch (error)
	{
		case HPE_OK:
			return length;
		case HPE_PAUSED:
			length = llhttp_get_error_pos(llhttp) - data;
			llhttp_resume(llhttp);
			return length;
		case HPE_INVALID_METHOD:
			refuse(parser, 501, "there is no such method");
			break;
		case HPE_INVALID_TRANSFER_ENCODING:
			refuse(parser, 501, "the body must be chunked, or have a length");
			break;
		case HPE_INVALID_VERSION:
			refuse(parser, 505, "the version of HTTP must be 1.1 or 1.0");
			break;
		default:
			refuse(parser, 400, llhttp_get_error_reason(llhttp));
	}
	return length;
}

/* What llhttp has added to the head, each with a NUL, are the request's fields. */
static void
take_head(HttpParser *parser)
{
	HttpRequest *request = parser->request;
	char	   *text = request->head.data;
	char	   *end = text + request->head.length;
	char	   *url = text;
	char	   *query;
	size_t		scheme;
	int			count = 0;

	for (char *c = text; c < end; c++)
		count += *c == '\0';
	request->header_count = (count - 1) / 2;
	request->headers = base_alloc((request->header_count + 1) * sizeof(HttpField));
	text += strlen(text) + 1;
	for (int i = 0; i < request->header_count; i++)
	{
		request->headers[i].name = text;
		text += strlen(text) + 1;
		request->headers[i].value = text;
		text += strlen(text);
		while (text > request->headers[i].value && (text[-1] == ' ' || text[-1] == '\t'))
			text--;
		if (*text != '\0')
			*text++ = '\0';
		text += strlen(text) + 1;
	}
	request->method = llhttp_method_name(parser->parser.method);
	request->is_http10 = parser->parser.http_minor == 0;

	/* a client may send the URL whole */
	scheme = strcspn(url, ":/?");
	if (strncmp(url + scheme, "://", 3) == 0)
	{
		url += scheme + 3 + strcspn(url + scheme + 3, "/?");
		if (*url != '/')
			*--url = '/';
	}
	request->path = url;
	query = strchr(url, '?');
	if (query != NULL)
	{
		*query = '\0';
		split_arguments(request, query + 1);
	}
	if (request->argument_count > MAX_FIELDS)
		refuse(parser, 414, "the URL has too many arguments");
	if (request->header_count > MAX_FIELDS)
		refuse(parser, 431, "there are too many headers");
}

static void
split_arguments(HttpRequest *request, char *query)
{
	int			count = 1;

	for (char *c = query; *c != '\0'; c++)
		count += *c == '&';
	request->arguments = base_alloc(count * sizeof(HttpField));
	while (query != NULL)
	{
		HttpField  *argument = &request->arguments[request->argument_count++];
		char	   *next = strchr(query, '&');

		if (next != NULL)
			*next++ = '\0';
		argument->name = query;
		argument->value = strchr(query, '=');
		if (argument->value != NULL)
			*argument->value++ = '\0';
		query = next;
	}
}

static void
check_head(HttpParser *parser)
{
	const HttpRequest *request = parser->request;
	const llhttp_t *llhttp = &parser->parser;
	const char *coding = http_header(request, "Transfer-Encoding");
	const char *expected = http_header(request, "Expect");
	const char *host = http_header(request, "Host");
	int			hosts = http_header_count(request, "Host");

	if (parser->spaces > 2)
		refuse(parser, 400, "the request line has too many spaces");
	if (llhttp->http_major != 1 || parser->protocol != 'H')
		refuse(parser, 505, "the version of HTTP must be 1.1 or 1.0");
	if (hosts > 1)
		refuse(parser, 400, "there is more than one Host");
	if (hosts == 0 && !request->is_http10)
		refuse(parser, 400, "there is no Host");
	if (host != NULL && strpbrk(host, " \t\"#/<>?@\\^`{|}") != NULL)
		refuse(parser, 400, "the Host is not valid");
	if (coding != NULL && request->is_http10)
		refuse(parser, 400, "HTTP/1.0 has no Transfer-Encoding");
	if (coding != NULL && (http_header_count(request, "Transfer-Encoding") > 1 || strcasecmp(coding, "chunked") != 0))
		refuse(parser, 501, "the body must be chunked, or have a length");
	if (expected != NULL && strcasecmp(expected, "100-continue") == 0 &&
		!parser->is_complete && !request->is_http10)
	{
		parser->continues = true;
		if (llhttp->content_length > HTTP_MAX_BODY)
			refuse(parser, 413, "the body is too large");
	}
}
