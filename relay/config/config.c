/*-------------------------------------------------------------------------
 *
 * config.c
 *	  The settings of feedpub-relay.
 *
 * Settings of a feed can stand in a section of the file, [FEED], which makes
 * that feed one of those that are relayed; what stands before the sections, in
 * the environment or on the command line is what a section does not say.  If
 * there are no sections, --feed names the one feed.  A section with a setting
 * "feed" of its own can have any name, so a feed can be relayed to several.
 *
 * Secrets are in files, which are read when they are used.  A URL or a
 * connection string with a password is refused: everybody can read the command
 * line of a process.
 *
 *-------------------------------------------------------------------------
 */
#include "config/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) offsetof(RelayConfig, name)
#define FEED_FIELD(name) offsetof(RelayConfig, defaults.name)
#define IS_OF_FEED(setting) \
	((setting)->offset >= offsetof(RelayConfig, defaults) && \
	 (setting)->offset < offsetof(RelayConfig, defaults) + sizeof(RelayFeedConfig))

/* bytes of a file with a secret */
#define MAX_SECRET 16384

static const BaseSetting list[] = {
	{"database", "CONNINFO", "", 0, 0, true, FIELD(database.conninfo),
	 "a connection string of libpq, without a password"},
	{"feed", "NAME", "", 0, 0, true, FEED_FIELD(feed),
	 "the feed that is relayed; of a section its name, if it has no other"},
	{"to", "URL", "", 0, 0, true, FEED_FIELD(to),
	 "where to: nats://HOST:PORT,... or tls://HOST:PORT,..., kafka://HOST:PORT,..., "
	 "or https://... of a webhook"},
	{"from", "WHERE", "", 0, 0, true, FEED_FIELD(from),
	 "where to begin if the sink has nothing yet: earliest, latest or a cursor"},
	{"types", "TYPE,...", "", 0, 0, true, FEED_FIELD(types),
	 "only messages of these types, or changes of these relations; Order* is a "
	 "prefix; all if it is empty"},
	{"subject", "TEMPLATE", "{feed}.{type}.{key}", 0, 0, true, FEED_FIELD(subject),
	 "the subjects of messages, of {feed}, {type}, {key}, {publication}, "
	 "{relation}, {op}"},
	{"errors-to", "SUBJECT", "", 0, 0, true, FEED_FIELD(errors_to),
	 "the subject of what cannot be sent; if it is empty, the feed stops there"},
	{"name", "NAME", "", 0, 0, true, FEED_FIELD(name),
	 "of this relay, the same after a restart; the host's name if it is empty"},
	{"takeover", "SECONDS", "10", 1, 3600, true, FEED_FIELD(takeover),
	 "how long another relay may leave work undone before this one takes over"},
	{"page", "ROWS", "2000", 1, 100000, true, FEED_FIELD(page),
	 "rows that are read at a time"},
	{"in-flight", "MESSAGES", "8192", 1, 32768, true, FEED_FIELD(in_flight),
	 "messages that are not acknowledged yet"},
	{"stream", "NAME", "", 0, 0, true, FEED_FIELD(stream),
	 "the stream of the feed; the feed's name if it is empty"},
	{"stream-subjects", "SUBJECT,...", "", 0, 0, true, FEED_FIELD(stream_subjects),
	 "the subjects of a stream that is made; those of the template if it is empty"},
	{"stream-storage", "KIND", "file", 0, 0, true, FEED_FIELD(stream_storage),
	 "of a stream that is made: file or memory"},
	{"stream-replicas", "N", "1", 1, 5, true, FEED_FIELD(stream_replicas),
	 "of a stream that is made"},
	{"stream-max-age", "SECONDS", "0", 0, 0, true, FEED_FIELD(stream_max_age),
	 "of a stream that is made; 0 is no limit"},
	{"stream-max-bytes", "BYTES", "0", 0, 0, true, FEED_FIELD(stream_max_bytes),
	 "of a stream that is made; 0 is no limit"},
	{"stream-max-messages", "N", "0", 0, 0, true, FEED_FIELD(stream_max_messages),
	 "of a stream that is made; 0 is no limit"},
	{"cursors", "STREAM", "FEEDPUB_RELAY", 0, 0, true, FEED_FIELD(cursors),
	 "a stream with a message for each stream: how far its feed was read"},
	{"topic", "TEMPLATE", "{feed}", 0, 0, true, FEED_FIELD(topic),
	 "of Kafka: the topics of messages, of what --subject has"},
	{"kafka", "FILE", "", 0, 0, true, FEED_FIELD(kafka),
	 "of Kafka: a file with settings of librdkafka, name=value on each line"},
	{"transactional-id", "ID", "", 0, 0, true, FEED_FIELD(transactional_id),
	 "of Kafka: the producer, and the group of its cursor; feedpub.FEED if it is "
	 "empty"},
	{"subscription", "NAME", "", 0, 0, true, FEED_FIELD(subscription),
	 "of a webhook: its subscription, which is made if it is not there"},
	{"secrets", "FILE", "", 0, 0, true, FEED_FIELD(secrets),
	 "of a webhook: secrets for signatures, whsec_..., each on a line"},
	{"allow", "ADDRESS/BITS,...", "", 0, 0, true, FEED_FIELD(allow),
	 "of a webhook: addresses that are taken though they are not public"},
	{"requests", "N", "8", 1, 256, true, FEED_FIELD(requests),
	 "of a webhook: requests in flight, one of each key"},
	{"request-timeout", "SECONDS", "15", 1, 3600, true, FEED_FIELD(request_timeout),
	 "of a webhook: how long a request may take"},
	{"attempts", "N", "5", 0, 1000000, true, FEED_FIELD(attempts),
	 "of a webhook: how often an entry is sent before it is parked; 0 is no limit"},
	{"credentials", "FILE", "", 0, 0, true, FEED_FIELD(credentials),
	 "credentials of NATS: a JWT and a seed"},
	{"user", "NAME", "", 0, 0, true, FEED_FIELD(user),
	 "as whom to log in, with --password"},
	{"password", "FILE", "", 0, 0, true, FEED_FIELD(password),
	 "a file with the password"},
	{"token", "FILE", "", 0, 0, true, FEED_FIELD(token),
	 "a file with a token"},
	{"nkey", "KEY", "", 0, 0, true, FEED_FIELD(nkey),
	 "a public NKey, with --nkey-seed"},
	{"nkey-seed", "FILE", "", 0, 0, true, FEED_FIELD(nkey_seed),
	 "a file with the seed of --nkey"},
	{"tls-ca", "FILE", "", 0, 0, true, FEED_FIELD(tls_ca),
	 "certificates of authorities; those of the system if it is empty"},
	{"tls-certificate", "FILE", "", 0, 0, true, FEED_FIELD(tls_certificate),
	 "the certificate of this relay, with --tls-key"},
	{"tls-key", "FILE", "", 0, 0, true, FEED_FIELD(tls_key),
	 "the key of --tls-certificate"},
	{"admin", "ADDRESS:PORT", "", 0, 0, false, FIELD(admin),
	 "where /live, /ready and /metrics are served; nowhere if it is empty"},
	{"statement-timeout", "SECONDS", "60", 1, 3600, true,
	 FIELD(database.statement_timeout), "how long the database may take for a page"},
	{"lock-timeout", "SECONDS", "10", 1, 3600, true,
	 FIELD(database.lock_timeout), "how long a page may wait for a lock of the database"},
	{"drain", "SECONDS", "10", 0, 3600, true, FIELD(drain),
	 "how long acknowledgements may take to come after SIGTERM"},
	{"progress", "SECONDS", "10", 0, 3600, true, FIELD(progress),
	 "how often what is left is counted, and logged if it takes longer; 0 is never"},
	{"log-level", "LEVEL", "info", 0, 0, true, FIELD(log_level),
	 "debug, info, warning or error"},
	{"once", NULL, "0", 0, 1, false, FIELD(once),
	 "end when all that is published now has been sent"},
	{"check", NULL, "0", 0, 1, false, FIELD(check),
	 "look whether the feeds can be read and the sinks are there, and end"},
};

static bool take_line(void *values, const char *section, const char *name,
					  const char *value);
static bool complete(void *values);
static void release(void *values);

static const BaseSettings settings = {
	.summary = "feedpub-relay sends the feeds of a PostgreSQL database into NATS JetStream,"
			   " into Kafka (experimental), and to webhooks.",
	.notes =
		"Each option can be given in the environment: --in-flight as\n"
		"FEEDPUB_RELAY_IN_FLIGHT.  The file may have a section for each of several\n"
		"feeds, [FEED], with settings of that feed.  The database is that of PGHOST,\n"
		"PGDATABASE, PGSERVICE, PGPASSFILE and the other variables of libpq.  SIGTERM\n"
		"ends the relay when what it has sent is acknowledged.",
	.environment = "FEEDPUB_RELAY_",
	.list = list,
	.count = lengthof(list),
	.size = sizeof(RelayConfig),
	.take = take_line,
	.complete = complete,
	.release = release};

/* A line of a section. */
typedef struct Line
{
	struct Line *next;
	const BaseSetting *setting;
	char	   *section;
	char	   *value;
} Line;

static RelayConfig *config;		/* in force */
static Line *lines;				/* of the file that is being read */
static Line **last_line = &lines;

const RelayConfig *
relay_config(void)
{
	return config;
}

/* A line of a section: kept until what a section does not say is known. */
static bool
take_line(void *values, const char *section, const char *name, const char *value)
{
	for (size_t i = 0; i < lengthof(list); i++)
	{
		Line	   *line;

		if (name != NULL && (!IS_OF_FEED(&list[i]) || strcmp(list[i].name, name) != 0))
			continue;
		line = base_alloc(sizeof(Line));
		line->setting = name != NULL ? &list[i] : NULL;
		line->section = base_copy(section);
		line->value = base_copy(value);
		*last_line = line;
		last_line = &line->next;
		return true;
	}
	return false;
}

/* The member of a feed's settings. */
static char **
text_of(RelayFeedConfig *feed, const BaseSetting *setting)
{
	return (char **) ((char *) feed + setting->offset - offsetof(RelayConfig, defaults));
}

RelayFeedConfig *
relay_config_copy(const RelayFeedConfig *from)
{
	RelayFeedConfig *copy = base_alloc(sizeof(RelayFeedConfig));

	*copy = *from;
	copy->section = base_copy(from->section != NULL ? from->section : "");
	for (size_t i = 0; i < lengthof(list); i++)
		if (IS_OF_FEED(&list[i]) && list[i].most == 0)
			*text_of(copy, &list[i]) = base_copy(*text_of(copy, &list[i]));
	return copy;
}

void
relay_config_free(RelayFeedConfig *feed)
{
	if (feed == NULL)
		return;
	for (size_t i = 0; i < lengthof(list); i++)
		if (IS_OF_FEED(&list[i]) && list[i].most == 0)
			free(*text_of(feed, &list[i]));
	free(feed->section);
	free(feed);
}

/* Do they say the same? */
bool
relay_config_equal(const RelayFeedConfig *a, const RelayFeedConfig *b)
{
	for (size_t i = 0; i < lengthof(list); i++)
	{
		const void *x;
		const void *y;

		if (!IS_OF_FEED(&list[i]))
			continue;
		x = text_of((RelayFeedConfig *) a, &list[i]);
		y = text_of((RelayFeedConfig *) b, &list[i]);
		if (list[i].most == 0 ?
				strcmp(*(char *const *) x, *(char *const *) y) != 0 :
				*(const int *) x != *(const int *) y)
			return false;
	}
	return true;
}

static RelayFeedConfig *
add_feed(RelayConfig *made, const char *name)
{
	RelayFeedConfig **feeds = made->feeds;
	RelayFeedConfig *feed;

	for (int i = 0; i < made->nfeeds; i++)
		if (strcmp(feeds[i]->section, name) == 0)
			return feeds[i];
	made->feeds = base_alloc((made->nfeeds + 1) * sizeof(RelayFeedConfig *));
	if (feeds != NULL)
		memcpy(made->feeds, feeds, made->nfeeds * sizeof(RelayFeedConfig *));
	free(feeds);
	feed = relay_config_copy(&made->defaults);
	free(feed->section);
	free(feed->feed);
	feed->section = base_copy(name);
	feed->feed = base_copy(name);
	made->feeds[made->nfeeds++] = feed;
	return feed;
}

/* Has a connection string a password? */
static bool
has_password(const char *conninfo)
{
	PQconninfoOption *options = PQconninfoParse(conninfo, NULL);
	bool		found = false;

	for (PQconninfoOption *o = options; o != NULL && o->keyword != NULL; o++)
		if (o->val != NULL && (strcmp(o->keyword, "password") == 0 || strcmp(o->keyword, "sslpassword") == 0))
			found = true;
	PQconninfoFree(options);
	return found;
}

/* The setting that says which cursor a feed goes on after, and its value. */
static const char *
cursor_of(const RelayFeedConfig *feed, const char **setting)
{
	if (strncmp(feed->to, "http", 4) == 0)
	{
		*setting = "subscription";
		return feed->subscription;
	}
	if (strncmp(feed->to, "kafka:", 6) == 0)
	{
		*setting = "transactional-id";
		return *feed->transactional_id != '\0' ? feed->transactional_id : feed->feed;
	}
	*setting = "stream";
	return *feed->stream != '\0' ? feed->stream : feed->feed;
}

/*
 * Would two feeds go on after each other's entries, and miss those of their own
 * before them?  Equal names may be of another server, or in another account of it.
 */
static bool
shares_cursor(const RelayFeedConfig *a, const RelayFeedConfig *b, const char **setting)
{
	const char *setting_of_b;
	const char *cursor = cursor_of(a, setting);

	if (*cursor == '\0' || strcmp(cursor, cursor_of(b, &setting_of_b)) != 0 || strcmp(*setting, setting_of_b) != 0)
		return false;
	return strcmp(*setting, "subscription") == 0 ||
		(strcmp(a->to, b->to) == 0 && strcmp(a->user, b->user) == 0 && strcmp(a->token, b->token) == 0 &&
		 strcmp(a->credentials, b->credentials) == 0 && strcmp(a->nkey, b->nkey) == 0);
}

static void
forget_lines(void)
{
	Line	   *next;

	for (Line *line = lines; line != NULL; line = next)
	{
		next = line->next;
		free(line->section);
		free(line->value);
		free(line);
	}
	lines = NULL;
	last_line = &lines;
}

static bool
complete(void *values)
{
	RelayConfig *made = values;
	const char *setting;
	bool		good = true;

	for (Line *line = lines; line != NULL; line = line->next)
	{
		RelayFeedConfig *feed = add_feed(made, line->section);
		BaseSetting setting;

		if (line->setting == NULL)
			continue;
		setting = *line->setting;
		if (setting.most == 0)
			free(*text_of(feed, &setting));
		setting.offset -= offsetof(RelayConfig, defaults);
		if (!base_setting_set(feed, &setting, line->value))
			good = false;
	}
	forget_lines();
	if (has_password(made->database.conninfo))
	{
		base_log(BASE_LOG_ERROR, "setting \"database\" may not have a password: "
								 "use a password file (PGPASSFILE)");
		good = false;
	}
	if (made->nfeeds == 0 && *made->defaults.feed != '\0')
		add_feed(made, made->defaults.feed);
	if (made->nfeeds == 0)
	{
		base_log(BASE_LOG_ERROR, "there is no feed: set --feed and --to, or "
								 "sections in the file of --config");
		good = false;
	}
	for (int i = 0; i < made->nfeeds; i++)
	{
		if (*made->feeds[i]->to == '\0')
		{
			base_log(BASE_LOG_ERROR, "feed \"%s\": setting \"to\" is missing",
					 made->feeds[i]->section);
			good = false;
		}
		else if (strchr(made->feeds[i]->to, '@') != NULL)
		{
			base_log(BASE_LOG_ERROR, "feed \"%s\": setting \"to\" may not have a "
									 "user or password: set \"user\" and \"password\", "
									 "\"token\" or \"credentials\"",
					 made->feeds[i]->section);
			good = false;
		}
		for (int j = 0; j < i; j++)
			if (shares_cursor(made->feeds[i], made->feeds[j], &setting))
			{
				base_log(BASE_LOG_ERROR, "feed \"%s\": its %s is that of feed \"%s\" too, "
										 "so each would get a part",
						 made->feeds[i]->section, setting, made->feeds[j]->section);
				good = false;
			}
	}
	return good;
}

static void
release(void *values)
{
	RelayConfig *made = values;

	forget_lines();
	for (int i = 0; i < made->nfeeds; i++)
		relay_config_free(made->feeds[i]);
	free(made->feeds);
}

static bool
take(RelayConfig *made)
{
	if (made == NULL)
		return false;
	config = made;
	db_settings = &made->database;
	base_log_level(made->log_level);
	return true;
}

/*
 * Take the settings of the command line.  Returns whether the relay is to run;
 * else *status is how the process ends.
 */
bool
relay_config_load(int argc, char **argv, int *status)
{
	RelayConfig *made = base_settings_load(&settings, argc, argv, status);

	if (made == NULL)
		return false;
	*status = 2;
	return take(made);
}

/* Read the file again.  If something is wrong, nothing changes. */
bool
relay_config_reload(void)
{
	return take(base_settings_reload(&settings, config));
}

/* The settings of a feed, or NULL. */
const RelayFeedConfig *
relay_config_feed(const char *section)
{
	for (int i = 0; i < config->nfeeds; i++)
		if (strcmp(config->feeds[i]->section, section) == 0)
			return config->feeds[i];
	return NULL;
}

/*
 * What a file has, less white space at its end, for free().  NULL if it cannot
 * be read, as logged.
 */
char *
relay_config_file(const char *name)
{
	char		content[MAX_SECRET + 1];
	FILE	   *file = fopen(name, "r");
	size_t		length;

	if (file == NULL)
	{
		base_log(BASE_LOG_ERROR, "could not open file \"%s\": %s", name,
				 strerror(errno));
		return NULL;
	}
	length = fread(content, 1, MAX_SECRET, file);
	fclose(file);
	while (length > 0 && isspace((unsigned char) content[length - 1]))
		length--;
	content[length] = '\0';
	return base_copy(content);
}
