/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  A feed as an event stream, or as lines of JSON (NDJSON).
 *
 * An event stream goes on until the client or the server closes it; lines end
 * at the head.  A page is framed piece by piece as the client takes them, also
 * in the middle of an entry, and the next page is read when it has all of this
 * one, so a slow client makes no queue.  What is framed is of a result that
 * equal streams share, so each of them has no more of its own than a piece.
 *
 * If the database is lost, an event stream is closed: its client comes again
 * with the id of the last event, which is a cursor, and is told what is wrong.
 * Lines end with an error, so that their client does not take it for the head.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <string.h>

/* ms after which an EventSource connects again */
#define RETRY 1000

static void stream_answer(HttpRequest *request);
static HttpMore stream_more(HttpRequest *request, BaseText *out);
static int64_t heartbeat_at(const FormRead *read);
static bool frame_events(HttpRequest *request, FormPage *page, BaseText *out);
static void add_moment(const FormPage *page, BaseText *out);
static bool frame_lines(HttpRequest *request, FormPage *page, BaseText *out);

const Form	form_events = {.type = "text/event-stream",
						   .statement = &form_page_statement,
						   .last_id = "Last-Event-ID",
						   .frame = frame_events,
						   .begin = form_stream_begin};

const Form	form_lines = {.type = "application/x-ndjson",
						  .statement = &form_page_statement,
						  .ends = true,
						  .frame = frame_lines,
						  .begin = form_stream_begin};

void
form_stream_begin(HttpRequest *request)
{
	form_run(request, form_read_of(request)->form->statement, stream_answer);
}

/* The first page is there: if it is an error, that is the answer. */
static void
stream_answer(HttpRequest *request)
{
	FormRead   *read = request->state;

	if (db_result_failed(request->waiter.result))
	{
		http_problem_result(request);
		return;
	}
	http_add(request, "Cache-Control", read->form->headers != NULL ? "no-cache" : "no-store");
	if (read->form->headers != NULL)
		read->form->headers(request);
	if (!read->form->ends)
		http_add(request, "X-Accel-Buffering", "no");
	read->retries = !read->form->ends;
	http_respond_stream(request, read->form->type, stream_more);
}

/*
 * The next bytes, or a wait for them; called again when they have been taken,
 * and when there is a result.
 */
static HttpMore
stream_more(HttpRequest *request, BaseText *out)
{
	FormRead   *read = request->state;
	const Form *form = read->form;
	size_t		begin = out->length;
	bool		was_waiting = read->waits;

	read->waits = false;
	if (http_token_expired(request))
		return form->ends || read->page.is_begun ? HTTP_BREAK : HTTP_END;
	if (read->retries)
		base_text_print(out, "retry: %d\n\n", RETRY);
	read->retries = false;
	if (request->waiter.result != NULL && !read->is_framing)
	{
		if (db_result_failed(request->waiter.result))
			return form->ends ? HTTP_BREAK : HTTP_END;
		form_page_open(request->waiter.result, &read->page);
		read->is_framing = true;
		read->oid = read->page.feed;
		read->started = request->waiter.result->started;
		read->more = read->page.more;
	}
	if (request->waiter.is_gone)
		return HTTP_BREAK;
	if (read->is_framing)
	{
		bool		goes_on = form->frame(request, &read->page, out);

		if (read->page.length == 0)
		{
			form_go_on(request, &read->page);
			read->is_framing = false;
			db_result_release(request->waiter.result);
			request->waiter.result = NULL;
		}
		if (!goes_on)
			return HTTP_END;
	}
	/* a comment, if it has waited and found nothing */
	if (out->length == begin && was_waiting && !form->ends && !read->more)
		base_text_print(out, ":\n\n");
	if (out->length > begin)
		return HTTP_MORE;

	if (!read->more && form->ends)
		return HTTP_END;
	if (!form->ends && (job_ending() || base_now() >= read->end))
		return HTTP_END;
	read->waits = true;
	if (read->more)
		form_run(request, form->statement, NULL);
	else
		form_wait(request, read->oid, read->started, heartbeat_at(read), NULL);
	return HTTP_MORE;
}

/* When a stream that waits is to send something. */
static int64_t
heartbeat_at(const FormRead *read)
{
	int64_t		at = base_now() + http_config()->heartbeat * INT64_C(1000);

	return at < read->end ? at : read->end;
}

/*
 * Each entry begins with {"cursor": " and its cursor.  One that is larger than
 * a piece is sent in several.
 */
static bool
frame_events(HttpRequest *request, FormPage *page, BaseText *out)
{
	const FormRead *read = request->state;
	bool		is_empty = page->length == 0;

	while (out->length < FORM_PIECE && page->length > 0)
	{
		size_t		room = FORM_PIECE - out->length;
		size_t		length = page->length < room ? page->length : room;
		const char *end = memchr(page->entries, '\n', length);

		if (end != NULL)
			length = end - page->entries;
		if (!page->is_begun)
			base_text_print(out, "id: %.*s\ndata: ", page->cursor_length,
							page->entries + strlen("{\"cursor\": \""));
		base_text_add(out, page->entries, length);
		form_page_take(page, length);
		page->is_begun = end == NULL;
		if (end == NULL)
			continue;
		base_text_add(out, "\n\n", 2);
		form_page_take(page, 1);
	}
	/* it may go further than its last entry: an id without an event */
	if (page->length == 0 && strncmp(page->cursor, read->after, page->cursor_length) != 0)
	{
		base_text_print(out, "id: %.*s\n", page->cursor_length, page->cursor);
		if (is_empty && page->moment)
		{
			base_text_print(out, "event: moment\ndata: ");
			add_moment(page, out);
		}
		base_text_add(out, "\n", 1);
	}
	return true;
}

/* A moment ends with a page without entries: its last entry came before. */
static void
add_moment(const FormPage *page, BaseText *out)
{
	base_text_print(out, "{\"cursor\": \"%.*s\", \"moment\": true}\n",
					page->cursor_length, page->cursor);
}

static bool
frame_lines(HttpRequest *request, FormPage *page, BaseText *out)
{
	bool		is_empty = page->length == 0;
	size_t		length = page->length < FORM_PIECE ? page->length : FORM_PIECE;

	base_text_add(out, page->entries, length);
	form_page_take(page, length);
	if (is_empty && page->moment)
		add_moment(page, out);
	return true;
}
