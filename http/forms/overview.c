/*-------------------------------------------------------------------------
 *
 * overview.c
 *	  / and /feeds, for people: feeds, subscriptions, and what holds them back.
 *
 * What the role may see decides what is there: the feeds that it may read.  A
 * member of pg_read_all_stats, as pg_monitor is, sees all of them, as in the
 * views.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

static const DbStatement feeds = {
	.text =
		"SELECT u.v FROM (SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS name,"
		"		f.*, w.waiting"
		"	FROM feedpub.feeds f"
		"	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.feed"
		"	JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
		"	LEFT JOIN feedpub.waiting w ON w.feed OPERATOR(pg_catalog.=) f.feed"
		"	WHERE"
		"		(pg_catalog.has_any_column_privilege(c.oid, 'SELECT')"
		"			AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')"
		"			OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'))"
		"	ORDER BY 1 LIMIT 1000) f"
		" CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(ARRAY[f.name, f.kind,"
		"	f.state, pg_catalog.round(f.rows_per_second::pg_catalog.numeric, 1)::pg_catalog.text,"
		"	pg_catalog.pg_size_pretty(f.size),"
		"	pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) f.last_published)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago',"
		"	CASE WHEN f.floor IS NULL THEN 'nothing removed'"
		"		ELSE"
		"		pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) f.floor_moved_at)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago' END,"
		"	f.held_by, NULLIF(f.waiting, 0)::pg_catalog.text])) WITH ORDINALITY u (v, n)"
		" ORDER BY f.name, u.n"};

static const FormColumn feed_columns[] = {
	{"Feed", FORM_FEED},
	{"Kind"},
	{"State"},
	{"Rows/s", FORM_NUMBER},
	{"Size", FORM_NUMBER},
	{"Last published"},
	{"Floor moved"},
	{"Held back by"},
	{"Wait in xid order", FORM_NUMBER},
	{0}};

const FormColumn form_overview_subscriptions[] = {
	{"Subscription", FORM_SUBSCRIPTION},
	{"Feed", FORM_FEED},
	{"Rows after it", FORM_NUMBER},
	{"Lag"},
	{"Last acknowledged"},
	{"Shards leased", FORM_NUMBER},
	{"Parked", FORM_NUMBER},
	{"State"},
	{0}};

/* Of the feed $1, or of all; as of feeds, not more than a page can show. */
const DbStatement form_overview_subscription = {
	.nargs = 1,
	.text =
		"SELECT u.v FROM (SELECT * FROM feedpub.subscriptions s"
		"	WHERE $1 IS NULL OR s.feed OPERATOR(pg_catalog.=) $1::pg_catalog.regclass"
		"	ORDER BY s.name LIMIT 1000) s"
		" CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(ARRAY[s.name, s.feed::pg_catalog.text,"
		"	s.lag_rows OPERATOR(pg_catalog.||) CASE WHEN s.lag_more THEN '+' ELSE '' END,"
		"	pg_catalog.date_trunc('milliseconds', s.lag)::pg_catalog.text,"
		"	pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) s.last_ack)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago',"
		"	pg_catalog.concat(s.leased, ' of ', s.shards), s.parked::pg_catalog.text,"
		"	CASE WHEN s.expired THEN 'expired' ELSE 'ready' END])) WITH ORDINALITY u (v, n)"
		" ORDER BY s.name, u.n"};

/* They are of all databases, so not for everybody who may read a feed. */
static const DbStatement blockers = {
	.text =
		"SELECT u.v FROM feedpub.blockers b"
		" CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(ARRAY[b.kind,"
		"	coalesce(b.gid, b.pid::pg_catalog.text), b.database::pg_catalog.text, b.\"user\"::pg_catalog.text,"
		"	b.application_name, b.state,"
		"	pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) b.since)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago'])) WITH ORDINALITY u (v, n)"
		" WHERE pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE') ORDER BY b.xid, u.n"};

static const FormColumn blocker_columns[] = {
	{"Transaction"}, {"Process or name"}, {"Database"}, {"User"}, {"Application"}, {"State"}, {"Began"}, {0}};

static void feeds_answer(HttpRequest *request);
static void subscriptions_answer(HttpRequest *request);
static void blockers_answer(HttpRequest *request);

/* GET / and GET /feeds */
void
form_overview_begin(HttpRequest *request)
{
	http_run(request, &feeds, NULL, feeds_answer);
}

static void
feeds_answer(HttpRequest *request)
{
	static const char *const all[DB_MAX_ARGUMENTS] = {NULL};

	if (form_html_failed(request))
		return;
	form_html_begin(request, "Feeds", true);
	form_html_table(request, "Feeds of this database", "There is no feed that this role may read.", feed_columns);
	http_run(request, &form_overview_subscription, all, subscriptions_answer);
}

static void
subscriptions_answer(HttpRequest *request)
{
	if (form_html_failed(request))
		return;
	form_html_table(request, "Subscriptions", NULL, form_overview_subscriptions);
	http_run(request, &blockers, NULL, blockers_answer);
}

static void
blockers_answer(HttpRequest *request)
{
	if (form_html_failed(request))
		return;
	form_html_table(request, "Transactions that hold back xid order", NULL, blocker_columns);
	form_html_send(request);
}
