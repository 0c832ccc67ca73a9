/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  A feed as an event stream, or as lines of JSON (NDJSON).
 *
 * An event stream goes on until the client or the server closes it; lines end
 * at the head.  The next page is read when the client has taken the one
 * before, so a slow client makes no queue.
 *
 * If the database is lost, an event stream is closed: its client comes again
 * with the id of the last event, which is a cursor, and is told what is wrong.
 * Lines end with an error, so that their client does not take it for the head.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>

/* ms after which an EventSource connects again */
#define RETRY 1000

typedef enum StreamState
{
	STREAM_READ,				/* a result has come, or will have when resumed */
	STREAM_SENT,				/* the result is in the buffer */
	STREAM_WAIT					/* waits for news */
} StreamState;

struct HttpStream
{
	StreamState state;
	HttpText	buffer;
	size_t		taken;			/* bytes of the buffer that have been sent */
	Oid			feed;
	bool		more;
};

static const HttpStatement *statement_of(const HttpRequest *request);
static enum MHD_Result stream_answer(HttpRequest *request);
static ssize_t read_stream(void *arg, uint64_t position, char *out, size_t room);
static void frame_page(HttpRequest *request);

void
http_stream_free(HttpStream *stream)
{
	if (stream == NULL)
		return;
	free(stream->buffer.data);
	free(stream);
}

static const HttpStatement *
statement_of(const HttpRequest *request)
{
	return request->format == HTTP_FORMAT_EVENTS ? &http_page_statement_listens : &http_page_statement;
}

enum MHD_Result
http_stream_begin(HttpRequest *request)
{
	http_page_run(request, statement_of(request), stream_answer);
	return MHD_YES;
}

/* The first page is there: if it is an error, that is the answer. */
static enum MHD_Result
stream_answer(HttpRequest *request)
{
	bool		events = request->format == HTTP_FORMAT_EVENTS;
	struct MHD_Response *response;

	if (http_result_failed(request->result))
		return http_problem_result(request);
	request->stream = http_alloc(sizeof(HttpStream));
	if (events)
		http_text_print(&request->stream->buffer, "retry: %d\n\n", RETRY);
	response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096,
												 read_stream, request, NULL);
	MHD_add_response_header(response, "Content-Type", events ? "text/event-stream" : "application/x-ndjson");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	if (events)
		MHD_add_response_header(response, "X-Accel-Buffering", "no");
	return http_respond(request, 200, response);
}

/*
 * Give libmicrohttpd the next bytes.  If there are none yet, the connection is
 * suspended, and 0 returned; this is called again when it is resumed.
 */
static ssize_t
read_stream(void *arg, uint64_t position, char *out, size_t room)
{
	HttpRequest *request = arg;
	HttpStream *stream = request->stream;
	bool		events = request->format == HTTP_FORMAT_EVENTS;
	HttpText   *buffer = &stream->buffer;
	const HttpResult *result = request->result;

	if (stream->state == STREAM_READ)
	{
		if (http_result_failed(result))
			return events ? MHD_CONTENT_READER_END_OF_STREAM :
							MHD_CONTENT_READER_END_WITH_ERROR;
		frame_page(request);
		stream->state = STREAM_SENT;
	}
	else if (stream->state == STREAM_WAIT)
	{
		stream->state = STREAM_SENT;
		if (!request->woken)
			http_text_print(buffer, ":\n\n");
		else
			stream->more = true;
	}

	if (stream->taken < buffer->length)
	{
		size_t		length = buffer->length - stream->taken;

		if (length > room)
			length = room;
		memcpy(out, buffer->data + stream->taken, length);
		stream->taken += length;
		return length;
	}

	/* all has been sent; a stream that waits keeps no buffer */
	free(buffer->data);
	memset(buffer, 0, sizeof(*buffer));
	stream->taken = 0;
	if (http_server_draining() && events)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (!stream->more && !events)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (!stream->more)
	{
		/* set before: another thread may resume the connection at once */
		stream->state = STREAM_WAIT;
		if (http_wait(request, stream->feed, result->started,
					  http_now() + http_config()->heartbeat * INT64_C(1000)))
		{
			http_log(HTTP_LOG_DEBUG, "a stream waits");
			return 0;
		}
	}
	stream->state = STREAM_READ;
	http_page_run(request, statement_of(request), NULL);
	return 0;
}

/*
 * Put the entries of a page into the buffer.  Each begins with {"cursor": "
 * and its cursor.
 */
static void
frame_page(HttpRequest *request)
{
	HttpStream *stream = request->stream;
	HttpText   *buffer = &stream->buffer;
	HttpPage	page;
	const char *entry;
	size_t		length;

	http_page_open(request->result, &page);
	stream->feed = page.feed;
	stream->more = page.more;
	if (request->format == HTTP_FORMAT_LINES)
		http_text_add(buffer, page.entries, page.length);
	else
	{
		while ((entry = http_page_next(&page, &length)) != NULL)
		{
			http_text_print(buffer, "id: %.*s\ndata: ", page.cursor_length,
							entry + strlen("{\"cursor\": \""));
			http_text_add(buffer, entry, length);
			http_text_add(buffer, "\n\n", 2);
		}
		/* it may go further than its last entry: an id without an event */
		if (strncmp(page.cursor, request->after, page.cursor_length) != 0)
			http_text_print(buffer, "id: %.*s\n\n", page.cursor_length, page.cursor);
	}
	free(request->after);
	request->after = http_alloc(page.cursor_length + 1);
	memcpy(request->after, page.cursor, page.cursor_length);
}
