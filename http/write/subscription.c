/*-------------------------------------------------------------------------
 *
 * subscription.c
 *	  Consumers of subscriptions: POST /subscriptions/NAME/poll, ack, nack,
 *	  park, leave, retry and discard, and the state of one: GET
 *	  /subscriptions/NAME.
 *
 * The body is a JSON object, whose members are the arguments of the function
 * feed_poll(), feed_ack() and so on.  The database reads it.
 *
 * A receipt cannot be guessed, but retry and discard need none.  So they take
 * JSON only if the request says that it is JSON, which a page of another origin
 * may not send; or a form of the page for people (forms/subscription_page.c),
 * which has a secret, and leads back to the page.
 *
 * A poll with a timeout looks once.  If there is nothing, it becomes a job that
 * waits for news of the feed as that of a page does, and looks again: no
 * transaction is open meanwhile.  Some things that are no news make a poll not
 * empty too: a lease that ends, a parked entry that is due, a consumer that
 * leaves.  So it looks every second as well, which renews its leases.
 *
 * A poll can take leases and move a cursor: it is a write, so two are never
 * one job, and none is made twice.
 *
 * All requests of a feed's subscriptions have the feed's share of the pool.
 * Whose feed's that is, the database is asked, and that is kept for some names.
 * If it is not true any more, only the share is another one.
 *
 *-------------------------------------------------------------------------
 */
#include "write/write.h"

#include "forms/forms.h"

#include <stdlib.h>
#include <string.h>

/* ms after which a poll that waits looks again */
#define LOOK_AGAIN 1000

#define KEPT_NAMES 256

/* The state of a request. */
typedef struct Subscription
{
	char	   *name;
	const DbStatement *statement;
	int64_t		end;			/* of the wait, by base_now(); 0: not known */
	bool		is_page;		/* for people */
	bool		is_form;		/* of such a page */
} Subscription;

/*
 * Of all statements: $1 the feed or NULL, $2 the body, $3 the name, $4 the
 * largest max_rows.  The members of the body are the columns of a row.
 */
#define ARGUMENT(columns) \
	"WITH argument AS MATERIALIZED (SELECT a.*" \
	" FROM pg_catalog.json_to_record($2::pg_catalog.json) a (" columns ")) "

/* A result, unless the body has members that are not in the list. */
#define UNKNOWN "unknown "
#define UNLESS_UNKNOWN(list, result) \
	"SELECT coalesce((SELECT '" UNKNOWN "' OPERATOR(pg_catalog.||) pg_catalog.min(u)" \
	" FROM pg_catalog.json_object_keys($2::pg_catalog.json) u"                        \
	" WHERE NOT u OPERATOR(pg_catalog.=) ANY ('{" list "}'::pg_catalog.text[])),"     \
	" (" result "))"

static Oid	poll_feed(const DbResult *result, bool *empty);

/*
 * The entries.  If there are none, the feed's OID, the timeout in ms, and the
 * feed's name.  A look that is not the first, which has the feed, acknowledges
 * nothing.
 */
static const DbStatement poll_statement = {
	.nargs = 4,
	.writes = true,
	.feed = poll_feed,
	.text =
		ARGUMENT("max_rows pg_catalog.int4, consumer pg_catalog.text,"
				 " timeout pg_catalog.text, ack pg_catalog.text") ", page (entries) AS MATERIALIZED (SELECT pg_catalog.json_agg(CASE WHEN p.moment IS NULL"
																  " THEN (SELECT pg_catalog.to_json(o) FROM (SELECT p.receipt, p.cursor, p.op, p.key, p.row, p.xid, p.published_at,"
																  "	p.attempt, p.error, p.shard) o) ELSE pg_catalog.to_json(p) END)"
																  " FROM argument a, %1$s.feed_poll($3,"
																  "	max_rows => least(coalesce(a.max_rows, 100), $4::pg_catalog.int4),"
																  "	consumer => a.consumer, ack => CASE WHEN $1 IS NULL THEN a.ack END) p)" UNLESS_UNKNOWN(
																	  "max_rows,consumer,timeout,ack",
																	  "SELECT CASE WHEN entries IS NOT NULL"
																	  " THEN '{\"entries\": ' OPERATOR(pg_catalog.||) entries::pg_catalog.text"
																	  "	OPERATOR(pg_catalog.||) '}'"
																	  " ELSE (SELECT pg_catalog.concat_ws(' ', c.oid,"
																	  "	pg_catalog.trunc(1000 OPERATOR(pg_catalog.*) pg_catalog.date_part('epoch',"
																	  "		coalesce(a.timeout, '0')::pg_catalog.interval)),"
																	  "	pg_catalog.format('%%I.%%I', n.nspname, c.relname))"
																	  " FROM argument a, feedpub.subscriptions s"
																	  " JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) s.feed"
																	  " JOIN pg_catalog.pg_namespace n"
																	  "	ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
																	  " WHERE s.name OPERATOR(pg_catalog.=) $3)"
																	  " END FROM page")};

static const DbStatement ack_statement = {
	.nargs = 3,
	.writes = true,
	.text =
		ARGUMENT("receipt pg_catalog.text, strict pg_catalog.bool")
			UNLESS_UNKNOWN(
				"receipt,strict",
				"SELECT pg_catalog.json_build_object('acknowledged',"
				" %1$s.feed_ack($3, receipt, coalesce(strict, true)))::pg_catalog.text FROM argument")};

static const DbStatement nack_statement = {
	.nargs = 3,
	.writes = true,
	.text =
		ARGUMENT("receipt pg_catalog.text, delay pg_catalog.interval, reason pg_catalog.text")
			UNLESS_UNKNOWN(
				"receipt,delay,reason",
				"SELECT pg_catalog.json_build_object('parked',"
				" %1$s.feed_nack($3, receipt, reason, delay))::pg_catalog.text FROM argument")};

static const DbStatement park_statement = {
	.nargs = 3,
	.writes = true,
	.text =
		ARGUMENT("receipt pg_catalog.text, reason pg_catalog.text")
			UNLESS_UNKNOWN(
				"receipt,reason",
				"SELECT pg_catalog.json_build_object('parked',"
				" %1$s.feed_park($3, receipt, reason))::pg_catalog.text FROM argument")};

static const DbStatement leave_statement = {
	.nargs = 3,
	.writes = true,
	.text =
		ARGUMENT("consumer pg_catalog.text")
			UNLESS_UNKNOWN(
				"consumer",
				"SELECT pg_catalog.json_build_object('shards',"
				" %1$s.feed_leave($3, consumer))::pg_catalog.text FROM argument")};

static const DbStatement retry_statement = {
	.nargs = 3,
	.writes = true,
	.text =
		ARGUMENT("cursor pg_catalog.text")
			UNLESS_UNKNOWN(
				"cursor",
				"SELECT pg_catalog.json_build_object('retried',"
				" %1$s.feed_retry($3, cursor))::pg_catalog.text FROM argument")};

static const DbStatement discard_statement = {
	.nargs = 3,
	.writes = true,
	.text =
		ARGUMENT("cursor pg_catalog.text")
			UNLESS_UNKNOWN(
				"cursor",
				"SELECT pg_catalog.json_build_object('discarded',"
				" %1$s.feed_discard($3, cursor))::pg_catalog.text FROM argument")};

static const DbStatement feed_statement = {
	.nargs = 1,
	.text =
		"SELECT s.feed::pg_catalog.regclass::pg_catalog.text"
		" FROM feedpub.subscriptions s WHERE s.name OPERATOR(pg_catalog.=) $1"};

/* By a hash of the name: the feed of a subscription. */
static struct
{
	char	   *name;
	char	   *feed;
} kept[KEPT_NAMES];

static const DbStatement state_statement = {
	.nargs = 3,
	.text =
		"SELECT pg_catalog.row_to_json(s)::pg_catalog.text"
		" FROM feedpub.subscriptions s WHERE s.name OPERATOR(pg_catalog.=) $3"};

static const struct
{
	const char *name;
	const DbStatement *statement;
} actions[] = {
	{"poll", &poll_statement},
	{"ack", &ack_statement},
	{"nack", &nack_statement},
	{"park", &park_statement},
	{"leave", &leave_statement},
	{"retry", &retry_statement},
	{"discard", &discard_statement},
};

static void find_feed(HttpRequest *request);
static bool take_form(HttpRequest *request);
static void free_subscription(void *state);
static unsigned slot_of(const char *name);
static void take_feed(HttpRequest *request);
static void begin(HttpRequest *request, const char *feed);
static void run(HttpRequest *request, const DbStatement *statement,
				const char *feed, int64_t deadline,
				void (*go_on)(HttpRequest *));
static void answer(HttpRequest *request);
static void poll_answer(HttpRequest *request);
static const char *value_of(const DbResult *result);
static void refuse_member(HttpRequest *request, const char *member);
static void go_back(HttpRequest *request);
static void send_json(HttpRequest *request, const char *json);

/* GET /subscriptions/NAME, POST /subscriptions/NAME/ACTION */
void
http_subscription_begin(HttpRequest *request)
{
	const char *path = request->path + strlen("/subscriptions/");
	const char *action = strchr(path, '/');
	size_t		length = action != NULL ? (size_t) (action - path) : strlen(path);
	bool		posts = strcmp(request->method, "POST") == 0;
	const DbStatement *statement = action == NULL ? &state_statement : NULL;
	Subscription *subscription;

	for (size_t i = 0; action != NULL && i < lengthof(actions); i++)
		if (strcmp(action + 1, actions[i].name) == 0)
			statement = actions[i].statement;
	if (statement == NULL)
	{
		http_problem(request, 404, "there is no such resource");
		return;
	}
	request->allowed = action != NULL ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
	if (posts != (action != NULL))
	{
		http_problem(request, 405, "this method is not allowed here");
		return;
	}

	subscription = request->state = base_alloc(sizeof(Subscription));
	request->free_state = free_subscription;
	subscription->name = http_request_decode(path, length);
	subscription->statement = statement;
	subscription->is_page = action == NULL && form_html_wanted(request);
	subscription->is_form = (statement == &retry_statement || statement == &discard_statement) &&
		!http_request_is_json(request);
	if (subscription->name == NULL)
		http_problem(request, 400, "the path is not percent-encoded correctly");
	else if (request->body.length > 0 && memchr(request->body.data, '\0', request->body.length) != NULL)
		http_problem(request, 400, "the body has a NUL");
	else if (!subscription->is_form || take_form(request))
		find_feed(request);
}

/*
 * Take the body of a form: its cursor becomes that of a JSON object.  Returns
 * false if it is refused, and answered.
 */
static bool
take_form(HttpRequest *request)
{
	char	   *secret = http_request_form(request, "secret");
	char	   *cursor = http_request_form(request, "cursor");
	bool		is_own = http_origin_own(request);
	bool		is_right = is_own &&
		http_forgery_check(request, ((Subscription *) request->state)->name, secret);
	const char *problem = !is_own ? "pages of this origin may not write" :
		secret == NULL			  ? "without \"Content-Type: application/json\" this is for the forms of pages" :
									"the page that this form is of is too old: load it again";

	free(secret);
	request->body.length = 0;
	base_text_print(&request->body, "{");
	if (cursor != NULL)
	{
		base_text_print(&request->body, "\"cursor\": ");
		base_text_json(&request->body, cursor);
	}
	base_text_print(&request->body, "}");
	free(cursor);
	if (!is_right)
		http_problem(request, 403, problem);
	return is_right;
}

/* Know whose feed it is, and begin. */
static void
find_feed(HttpRequest *request)
{
	const char *name = ((Subscription *) request->state)->name;
	const char *arguments[DB_MAX_ARGUMENTS] = {name};
	unsigned	slot = slot_of(name);

	if (request->body.length == 0)
		base_text_add(&request->body, "{}", 2);
	if (kept[slot].name != NULL && strcmp(kept[slot].name, name) == 0)
		begin(request, kept[slot].feed);
	else
		http_run(request, &feed_statement, arguments, take_feed);
}

static unsigned
slot_of(const char *name)
{
	unsigned	hash = 0;

	for (; *name != '\0'; name++)
		hash = hash * 31 + (unsigned char) *name;
	return hash % KEPT_NAMES;
}

/* The feed is known.  If there is no such subscription, its statement says so. */
static void
take_feed(HttpRequest *request)
{
	const Subscription *subscription = request->state;
	unsigned	slot = slot_of(subscription->name);
	const char *feed;

	if (db_result_failed(request->waiter.result))
	{
		http_problem_result(request);
		return;
	}
	feed = value_of(request->waiter.result);
	if (feed != NULL)
	{
		free(kept[slot].name);
		free(kept[slot].feed);
		kept[slot].name = base_copy(subscription->name);
		kept[slot].feed = base_copy(feed);
	}
	begin(request, feed);
}

static void
begin(HttpRequest *request, const char *feed)
{
	const Subscription *subscription = request->state;
	const DbStatement *statement = subscription->statement;

	if (feed != NULL)
	{
		free(request->share);
		request->share = http_share_of(base_copy(feed));
	}
	if (subscription->is_page)
		form_subscription_page_begin(request);
	else
		run(request, statement, NULL, 0, statement == &poll_statement ? poll_answer : answer);
}

static void
free_subscription(void *state)
{
	free(((Subscription *) state)->name);
	free(state);
}

static void
run(HttpRequest *request, const DbStatement *statement, const char *feed,
	int64_t deadline, void (*go_on)(HttpRequest *))
{
	const Subscription *subscription = request->state;
	BaseText	most = {0};
	const char *arguments[DB_MAX_ARGUMENTS] = {
		feed, request->body.data, subscription->name};

	base_text_print(&most, "%d", http_config()->max_limit);
	arguments[3] = most.data;
	http_wait(request, statement, arguments, InvalidOid, 0, deadline, go_on);
	free(most.data);
}

/* The value of a result that has not failed, or NULL. */
static const char *
value_of(const DbResult *result)
{
	return PQntuples(result->rows) == 0 || PQgetisnull(result->rows, 0, 0) ?
		NULL :
		PQgetvalue(result->rows, 0, 0);
}

/* The feed, if the poll has found nothing. */
static Oid
poll_feed(const DbResult *result, bool *empty)
{
	const char *value = value_of(result);

	*empty = value != NULL && *value >= '0' && *value <= '9';
	return *empty ? strtoul(value, NULL, 10) : InvalidOid;
}

static void
poll_answer(HttpRequest *request)
{
	Subscription *subscription = request->state;
	int64_t		now = base_now();
	int64_t		most = http_config()->max_wait * INT64_C(1000);
	char	   *feed;
	double		timeout;
	char	   *end;
	bool		empty = false;

	if (!db_result_failed(request->waiter.result))
		poll_feed(request->waiter.result, &empty);
	if (!empty)
	{
		answer(request);
		return;
	}
	timeout = strtod(strchr(value_of(request->waiter.result), ' '), &end);
	if (subscription->end == 0)
		subscription->end = http_token_deadline(
			request, now + (timeout < 0 ? 0 : timeout < most ? (int64_t) timeout :
															   most));
	if (now >= subscription->end || job_ending() || request->waiter.is_gone)
	{
		send_json(request, "{\"entries\": []}");
		return;
	}
	feed = base_copy(end + 1);
	run(request, &poll_statement, feed,
		now + LOOK_AGAIN < subscription->end ? now + LOOK_AGAIN : subscription->end,
		poll_answer);
	free(feed);
}

static void
answer(HttpRequest *request)
{
	const char *value;

	if (db_result_failed(request->waiter.result))
	{
		http_problem_result(request);
		return;
	}
	value = value_of(request->waiter.result);
	if (value == NULL)
		http_problem(request, 404, "there is no such subscription");
	else if (*value != '{')
		refuse_member(request, value + strlen(UNKNOWN));
	else if (((Subscription *) request->state)->is_form)
		go_back(request);
	else
		send_json(request, value);
}

static void
refuse_member(HttpRequest *request, const char *member)
{
	BaseText	detail = {0};

	base_text_print(&detail, "the body has a member that is no argument: \"%s\"", member);
	http_problem(request, 400, detail.data);
	free(detail.data);
}

/* To the page that the form is of: a reload of that sends nothing again. */
static void
go_back(HttpRequest *request)
{
	const char *name = request->path + strlen("/subscriptions/");

	http_add(request, "Location", "../%.*s", (int) strcspn(name, "/"), name);
	http_add(request, "Cache-Control", "no-store");
	http_respond(request, 303);
}

static void
send_json(HttpRequest *request, const char *json)
{
	BaseText	text = {0};

	base_text_print(&text, "%s\n", json);
	http_add(request, "Cache-Control", "no-store");
	http_respond_text(request, 200, "application/json", &text);
}
