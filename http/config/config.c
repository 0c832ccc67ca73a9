/*-------------------------------------------------------------------------
 *
 * config.c
 *	  The settings of feedpub-http.
 *
 * The connection to the database has the settings of libpq too: PGHOST,
 * PGSERVICE, ...
 *
 *-------------------------------------------------------------------------
 */
#include "config/config.h"

#include <stdlib.h>

#define FIELD(name) offsetof(HttpConfig, name)

static const BaseSetting list[] = {
	{"listen", "ADDRESS:PORT", "127.0.0.1:8080", 0, 0, false, FIELD(listen),
	 "where feeds are served"},
	{"admin", "ADDRESS:PORT", "", 0, 0, false, FIELD(admin),
	 "where /live, /ready and /metrics are served; nowhere if it is empty"},
	{"database", "CONNINFO", "", 0, 0, true, FIELD(database.conninfo),
	 "a connection string of libpq"},
	{"pool", "N", "4", 1, 1000, false, FIELD(database.pool),
	 "connections to the database, beside one that listens"},
	{"anonymous-role", "ROLE", "", 0, 0, true, FIELD(database.anonymous_role),
	 "the role of requests without a token; they are refused if it is empty"},
	{"jwt-key", "FILE", "", 0, 0, true, FIELD(jwt_key),
	 "the key of tokens, a secret or a public key; none are taken if it is empty"},
	{"jwt-audience", "AUDIENCE", "", 0, 0, true, FIELD(jwt_audience),
	 "what the claim aud of tokens must have; anything if it is empty"},
	{"jwt-role-claim", "CLAIM", "role", 0, 0, true, FIELD(jwt_role_claim),
	 "the claim of tokens that is the role"},
	{"max-connections", "N", "10000", 1, 1000000, false, FIELD(max_connections),
	 "clients at a time"},
	{"max-connections-per-address", "N", "0", 0, 1000000, false,
	 FIELD(max_connections_per_address),
	 "clients at a time from one address; any number if it is 0"},
	{"max-memory", "MB", "256", 16, 1000000, true, FIELD(max_memory),
	 "memory of requests and pages, above which clients that are slow are dropped"},
	{"idle-timeout", "SECONDS", "60", 1, 3600, false, FIELD(idle_timeout),
	 "how long a client may take to send a request, or to take nothing"},
	{"statement-timeout", "SECONDS", "30", 1, 3600, true,
	 FIELD(database.statement_timeout), "how long the database may take for a request"},
	{"lock-timeout", "SECONDS", "5", 1, 3600, true,
	 FIELD(database.lock_timeout), "how long a request may wait for a lock of the database"},
	{"max-limit", "ROWS", "1000", 1, 1000000, true, FIELD(max_limit),
	 "rows of the largest page"},
	{"max-age", "SECONDS", "31536000", 0, 31536000, true, FIELD(max_age),
	 "how long caches may keep a full page of an outbox"},
	{"max-wait", "SECONDS", "60", 0, 3600, true, FIELD(max_wait),
	 "the longest wait of a long-poll"},
	{"heartbeat", "SECONDS", "15", 1, 3600, true, FIELD(heartbeat),
	 "how often an event stream without events sends a comment"},
	{"message-type", "TYPE", "message", 0, 0, true, FIELD(message_type),
	 "the type of messages that are appended without one"},
	{"drain", "SECONDS", "10", 0, 3600, true, FIELD(drain),
	 "how long requests may take to end after SIGTERM"},
	{"cors-origins", "ORIGIN,...", "", 0, 0, true, FIELD(cors_origins),
	 "origins whose pages may read; * for any"},
	{"log-requests", "STATUS", "500", 100, 600, true, FIELD(log_requests),
	 "requests with this status or a higher one are logged"},
	{"log-level", "LEVEL", "info", 0, 0, true, FIELD(log_level),
	 "debug, info, warning or error"},
};

static bool complete(void *values);
static void release(void *values);

static const BaseSettings settings = {
	.summary = "feedpub-http serves the feeds of a PostgreSQL database over HTTP.",
	.notes =
		"Each option can be given in the environment: --max-age as\n"
		"FEEDPUB_HTTP_MAX_AGE.  The database is that of PGHOST, PGDATABASE,\n"
		"PGSERVICE and the other variables of libpq.  SIGTERM ends the server\n"
		"when its requests have ended.",
	.environment = "FEEDPUB_HTTP_",
	.list = list,
	.count = lengthof(list),
	.size = sizeof(HttpConfig),
	.complete = complete,
	.release = release};

static HttpConfig *config;		/* in force */

const HttpConfig *
http_config(void)
{
	return config;
}

static bool
complete(void *values)
{
	HttpConfig *made = values;

	if (*made->jwt_key != '\0')
	{
		made->key = http_key_read(made->jwt_key);
		if (made->key == NULL)
			return false;
	}
	if (made->key == NULL && *made->database.anonymous_role == '\0')
	{
		base_log(BASE_LOG_ERROR, "all requests would be refused: "
								 "set --anonymous-role or --jwt-key");
		return false;
	}
	return true;
}

static void
release(void *values)
{
	free(((HttpConfig *) values)->key);
}

static bool
take(HttpConfig *made)
{
	if (made == NULL)
		return false;
	config = made;
	db_settings = &made->database;
	base_log_level(made->log_level);
	return true;
}

/*
 * Take the settings of the command line.  Returns whether the server is to
 * run; else *status is how the process ends.
 */
bool
http_config_load(int argc, char **argv, int *status)
{
	return take(base_settings_load(&settings, argc, argv, status));
}

/* Read the file again.  If something is wrong, nothing changes. */
bool
http_config_reload(void)
{
	return take(base_settings_reload(&settings, config));
}
