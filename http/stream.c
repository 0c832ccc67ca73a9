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

struct HttpStream
{
	BaseText	buffer;
	size_t		taken;			/* bytes of the buffer that have been sent */
	bool		reads;			/* there is a result, or has been a wait */
	bool		more;
	Oid			feed;
	uint64_t	started;		/* as of the result; see job.c */
};

static enum MHD_Result stream_answer(HttpRequest *request);
static ssize_t read_stream(void *arg, uint64_t position, char *out, size_t room);
static int64_t heartbeat_at(const HttpRequest *request);
static bool frame_page(HttpRequest *request);

void
http_stream_free(HttpStream *stream)
{
	if (stream == NULL)
		return;
	free(stream->buffer.data);
	free(stream);
}

enum MHD_Result
http_stream_begin(HttpRequest *request)
{
	http_page_run(request, http_page_statement_of(request), stream_answer);
	return MHD_YES;
}

/* The first page is there: if it is an error, that is the answer. */
static enum MHD_Result
stream_answer(HttpRequest *request)
{
	bool		events = request->format == HTTP_FORMAT_EVENTS;
	struct MHD_Response *response;

	if (db_result_failed(request->waiter.result))
		return http_problem_result(request);
	request->stream = base_alloc(sizeof(HttpStream));
	request->stream->reads = true;
	if (events)
		base_text_print(&request->stream->buffer, "retry: %d\n\n", RETRY);
	response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 512,
												 read_stream, request, NULL);
	MHD_add_response_header(response, "Content-Type", events ? "text/event-stream" : "application/x-ndjson");
	MHD_add_response_header(response, "Cache-Control",
							request->durable != NULL ? "no-cache" : "no-store");
	if (request->durable != NULL)
		http_durable_add_headers(request, response);
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
	BaseText   *buffer = &stream->buffer;

	if (stream->reads)
	{
		stream->reads = false;
		if (request->waiter.result != NULL)
		{
			if (db_result_failed(request->waiter.result))
				return events ? MHD_CONTENT_READER_END_OF_STREAM :
								MHD_CONTENT_READER_END_WITH_ERROR;
			if (!frame_page(request))
				return MHD_CONTENT_READER_END_OF_STREAM;
			db_result_release(request->waiter.result);
			request->waiter.result = NULL;
		}
		if (request->waiter.is_gone)
			return MHD_CONTENT_READER_END_WITH_ERROR;
		if (events && buffer->length == 0 && !stream->more)
			base_text_print(buffer, ":\n\n");
	}

	if (http_token_expired(request))
		return events ? MHD_CONTENT_READER_END_OF_STREAM :
						MHD_CONTENT_READER_END_WITH_ERROR;
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
	if (events && (http_server_draining() || base_now() >= http_durable_end(request)))
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (!stream->more && !events)
		return MHD_CONTENT_READER_END_OF_STREAM;

	stream->reads = true;
	if (stream->more)
		http_page_run(request, http_page_statement_of(request), NULL);
	else
		http_page_wait(request, stream->feed, stream->started,
					   heartbeat_at(request), NULL);
	return 0;
}

/*
 * When a stream that waits is to send something.  Whole seconds, so that many
 * streams are resumed together: each time costs a look at all connections.
 */
static int64_t
heartbeat_at(const HttpRequest *request)
{
	int64_t		at = base_now() / 1000 * 1000 + http_config()->heartbeat * INT64_C(1000);
	int64_t		end = http_durable_end(request);

	return at < end ? at : end;
}

/*
 * Put the entries of a page into the buffer.  Each begins with {"cursor": "
 * and its cursor.  Returns false if the stream is to end.
 */
static bool
frame_page(HttpRequest *request)
{
	HttpStream *stream = request->stream;
	BaseText   *buffer = &stream->buffer;
	HttpPage	page;
	const char *entry;
	size_t		length;

	http_page_open(request->waiter.result, &page);
	stream->feed = page.feed;
	stream->started = request->waiter.result->started;
	stream->more = page.more;
	if (request->durable != NULL)
	{
		if (!http_durable_add_events(request, &page, buffer))
			return false;
	}
	else if (request->format == HTTP_FORMAT_LINES)
		base_text_add(buffer, page.entries, page.length);
	else
	{
		while ((entry = http_page_next(&page, &length)) != NULL)
		{
			base_text_print(buffer, "id: %.*s\ndata: ", page.cursor_length,
							entry + strlen("{\"cursor\": \""));
			base_text_add(buffer, entry, length);
			base_text_add(buffer, "\n\n", 2);
		}
		/* it may go further than its last entry: an id without an event */
		if (strncmp(page.cursor, request->after, page.cursor_length) != 0)
			base_text_print(buffer, "id: %.*s\n\n", page.cursor_length, page.cursor);
	}
	http_page_go_on(request, &page);
	return true;
}
