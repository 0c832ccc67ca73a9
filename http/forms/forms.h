/*-------------------------------------------------------------------------
 *
 * forms.h
 *	  Feeds that are read: pages, event streams, lines, CloudEvents, Durable
 *	  Streams, pages for people.
 *
 * A form is a row of a table: the statement that reads a page, and how a page
 * becomes bytes.  page.c answers with one body, stream.c with bytes that follow
 * one another.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_FORMS_H
#define FEEDPUB_HTTP_FORMS_H

#include "server/server.h"

/* bytes that a stream frames at a time: what a client that is slow holds */
#define FORM_PIECE 32000

/* A page, and its end: the lines of feedpub._page_lines(), in the first row. */
typedef struct FormPage
{
	const char *entries;		/* lines with an object each */
	size_t		length;			/* of them; 0: there are none */
	const char *cursor;			/* not terminated */
	int			cursor_length;
	bool		more;
	bool		is_begun;		/* a stream has sent a part of the next event */
	bool		in_line;		/* and of its line: durable.c */
	Oid			feed;
	bool		is_outbox;		/* or a change feed: no row of it changes */
	bool		is_changes;
	bool		moment;			/* of a change feed: one ends with the page */
	long		retention;		/* of deletes, s; -1: not limited */
	const char *rest;			/* the second row, or "": durable.c */
} FormPage;

typedef struct Form
{
	const char *type;			/* of the response, and in Accept; or NULL */
	const DbStatement *statement;
	bool		ends;			/* a stream ends at the head */
	bool		is_http_feeds;	/* lastEventId and timeout, as http-feeds.org has them */
	const char *last_id;		/* a header with the cursor, or NULL */

	/*
	 * Add the page; of a stream, up to FORM_PIECE bytes of it, and called again
	 * while page->length is not 0.  Returns false if a stream is to end.
	 */
	bool (*frame)(HttpRequest *request, FormPage *page, BaseText *out);
	void (*headers)(HttpRequest *request);	/* or NULL */
	void (*begin)(HttpRequest *request);	/* page.c, stream.c; or NULL */
} Form;

/* What a request reads: its state. */
typedef struct FormRead
{
	const Form *form;
	char	   *feed;
	char	   *after;			/* never NULL */
	char		limit[12];
	char	   *shard;			/* or NULL */
	char	   *shards;
	char	   *types;			/* an array, or NULL */
	bool		begins;			/* it has the argument "begin" */
	long		wait;			/* ms */

	/* a stream: what has not been framed is of the request's result */
	FormPage	page;
	bool		is_framing;
	bool		waits;			/* it has run a statement, or waited */
	bool		retries;		/* it is to say when to connect again */
	bool		more;
	Oid			oid;			/* of the feed */
	uint64_t	started;		/* as of the last result; see job.c */

	void	   *own;			/* of the form */
	int64_t		end;			/* of a stream; ms, by base_now() */
} FormRead;

/* A column of a table for people. */
typedef struct FormColumn
{
	const char *name;			/* NULL: there are no more */
	enum
	{
		FORM_TEXT,
		FORM_NUMBER,
		FORM_FEED,				/* the name of one, with a link */
		FORM_SUBSCRIPTION
	} kind;
} FormColumn;

/* in read.c */
extern FormRead *form_read_of(const HttpRequest *request);
extern const char *form_parse(HttpRequest *request, const char *name, const Form *form);
extern bool form_is_name(const char *name);
extern void form_run(HttpRequest *request, const DbStatement *statement,
					 void (*go_on)(HttpRequest *request));
extern void form_wait(HttpRequest *request, Oid feed, uint64_t since,
					  int64_t deadline, void (*go_on)(HttpRequest *request));
extern Oid	form_feed_of(const DbResult *result, bool *empty);
extern void form_page_open(const DbResult *result, FormPage *page);
extern const char *form_page_next(FormPage *page, size_t *length);
extern void form_page_take(FormPage *page, size_t length);
extern void form_go_on(HttpRequest *request, const FormPage *page);

/* in page.c */
extern void form_page_begin(HttpRequest *request);
extern void form_page_wait(HttpRequest *request, void (*go_on)(HttpRequest *request));
extern void form_caching(HttpRequest *request, const FormPage *page,
						 BaseText *caching);
extern void form_send(HttpRequest *request, const char *cursor,
					  const char *caching, const char *type);
extern const DbStatement form_page_statement;
extern const Form form_page;

/* in cloudevents.c */
extern const Form form_cloudevents;

/* in stream.c */
extern void form_stream_begin(HttpRequest *request);
extern const Form form_events;
extern const Form form_lines;

/* in durable.c */
extern void form_durable_begin(HttpRequest *request);
extern const DbStatement form_durable_describe;

/* in assets.c */
extern const char *form_assets_style(void);
extern const char *form_assets_script(void);
extern void form_assets_begin(HttpRequest *request);

/* in html.c */
extern double form_html_quality(const char *accept);
extern bool form_html_wanted(const HttpRequest *request);
extern void form_html_text(BaseText *out, const char *text, size_t length);
extern void form_html_link(const HttpRequest *request, const char *folder,
						   const char *name, BaseText *out);
extern void form_html_url(BaseText *out, const char *part);
extern void form_html_begin(HttpRequest *request, const char *title, bool refreshes);
extern void form_html_live(HttpRequest *request);
extern void form_html_send(HttpRequest *request);
extern bool form_html_failed(HttpRequest *request);
extern void form_html_problem(HttpRequest *request, unsigned status,
							  const char *detail, const char *hint, BaseText *out);
extern void form_html_facts(HttpRequest *request);
extern void form_html_table(HttpRequest *request, const char *title,
							const char *none, const FormColumn *columns);

/* in entry.c */
extern void form_entry_add(BaseText *out, const char *entry, size_t length);
extern void form_entry_add_type(BaseText *out, const char *row, size_t length);
extern void form_entry_add_json(BaseText *out, const char *json, size_t length);

/* in overview.c */
extern void form_overview_begin(HttpRequest *request);
extern const DbStatement form_overview_subscription;
extern const FormColumn form_overview_subscriptions[];

/* in entries.c */
extern const Form form_entries;

/* in subscription_page.c */
extern void form_subscription_page_begin(HttpRequest *request);

/* in feeds.c */
extern void form_list_begin(HttpRequest *request);
extern void form_feed_begin(HttpRequest *request);

#endif							/* FEEDPUB_HTTP_FORMS_H */
