/*-------------------------------------------------------------------------
 *
 * config.c
 *	  Settings, from flags, the environment and a file.
 *
 * A flag comes before the environment, the environment before the file, and
 * the file before the default.  On SIGHUP the file is read again; settings
 * that are marked so take effect then.  The connection to the database has the
 * settings of libpq: PGHOST, PGSERVICE, ...
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Setting
{
	const char *name;
	const char *unit;			/* what --help shows as its value */
	const char *preset;
	int			least;
	int			most;			/* 0: it is text */
	bool		reloads;
	size_t		offset;
	const char *help;
} Setting;

#define FIELD(name) offsetof(HttpConfig, name)

static const Setting settings[] = {
	{"listen", "ADDRESS:PORT", "127.0.0.1:8080", 0, 0, false, FIELD(listen),
	 "where feeds are served"},
	{"admin", "ADDRESS:PORT", "", 0, 0, false, FIELD(admin),
	 "where /live, /ready and /metrics are served; nowhere if it is empty"},
	{"database", "CONNINFO", "", 0, 0, true, FIELD(database),
	 "a connection string of libpq"},
	{"pool", "N", "4", 1, 1000, false, FIELD(pool),
	 "connections to the database, beside one that listens"},
	{"anonymous-role", "ROLE", "", 0, 0, true, FIELD(anonymous_role),
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
	{"idle-timeout", "SECONDS", "60", 1, 3600, false, FIELD(idle_timeout),
	 "how long a client may take to send a request, or to take nothing"},
	{"statement-timeout", "SECONDS", "30", 1, 3600, true,
	 FIELD(statement_timeout), "how long the database may take for a request"},
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

/*
 * The settings in force.  A reload frees those before it.  That is safe, since
 * the process has one thread, and the signal is taken by its loop (main.c):
 * when that runs, no function that uses a setting has begun and not ended.  So
 * nothing keeps a pointer to a setting in a request, a job or a session: it
 * keeps a copy.
 */
static HttpConfig *config;
static char *values_of_flags[lengthof(settings)];
static char *file_name;

static void print_help(void);
static bool set_from_file(char **values);
static bool set_value(HttpConfig *into, const Setting *setting,
					  const char *value);
static HttpConfig *make_config(void);
static void free_config(HttpConfig *old);

const HttpConfig *
http_config(void)
{
	return config;
}

static void
print_help(void)
{
	puts("feedpub-http serves the feeds of a PostgreSQL database over HTTP.\n\n"
		 "Usage: feedpub-http [OPTION]...\n");
	for (size_t i = 0; i < lengthof(settings); i++)
	{
		const Setting *s = &settings[i];

		printf("  --%s=%s\n      %s", s->name, s->unit, s->help);
		printf(*s->preset ? " (%s)\n" : "\n", s->preset);
	}
	puts("  --config=FILE\n"
		 "      lines \"name = value\", read again on SIGHUP\n"
		 "  --help, --version\n\n"
		 "Each option can be given in the environment: --max-age as\n"
		 "FEEDPUB_HTTP_MAX_AGE.  The database is that of PGHOST, PGDATABASE,\n"
		 "PGSERVICE and the other variables of libpq.  SIGTERM ends the server\n"
		 "when its requests have ended.");
}

/* Read the file; a value that is there already stays. */
static bool
set_from_file(char **values)
{
	char		line[4096];
	int			number = 0;
	bool		good = true;
	FILE	   *file = fopen(file_name, "r");

	if (file == NULL)
	{
		http_log(HTTP_LOG_ERROR, "could not open file \"%s\": %s", file_name,
				 strerror(errno));
		return false;
	}
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char	   *name = line + strspn(line, " \t");
		char	   *value = strchr(name, '=');
		size_t		i;

		number++;
		if (*name == '#' || *name == '\n' || *name == '\0')
			continue;
		for (i = 0; value != NULL && i < lengthof(settings); i++)
		{
			size_t		length = strlen(settings[i].name);

			if (strncmp(name, settings[i].name, length) == 0 &&
				name + length + strspn(name + length, " \t") == value)
				break;
		}
		if (value == NULL || i == lengthof(settings))
		{
			http_log(HTTP_LOG_ERROR, "file \"%s\", line %d: no such setting",
					 file_name, number);
			good = false;
			continue;
		}
		value += 1 + strspn(value + 1, " \t");
		for (char *end = value + strlen(value);
			 end > value && isspace((unsigned char) end[-1]);)
			*--end = '\0';
		if (values[i] == NULL)
			values[i] = http_copy(value);
	}
	fclose(file);
	return good;
}

static bool
set_value(HttpConfig *into, const Setting *setting, const char *value)
{
	char	   *field = (char *) into + setting->offset;
	char	   *end;
	long		number;

	if (setting->most == 0)
	{
		*(char **) field = http_copy(value);
		return true;
	}
	errno = 0;
	number = strtol(value, &end, 10);
	if (errno != 0 || end == value || *end != '\0' ||
		number < setting->least || number > setting->most)
	{
		http_log(HTTP_LOG_ERROR, "setting \"%s\" must be a number from %d to %d",
				 setting->name, setting->least, setting->most);
		return false;
	}
	*(int *) field = number;
	return true;
}

/* The settings as they are now, or NULL if one is wrong; it has been logged. */
static HttpConfig *
make_config(void)
{
	HttpConfig *made = http_alloc(sizeof(HttpConfig));
	char	   *values[lengthof(settings)] = {0};
	bool		good = true;

	for (size_t i = 0; i < lengthof(settings); i++)
	{
		char		name[64] = "FEEDPUB_HTTP_";
		size_t		length = strlen(name);

		for (const char *c = settings[i].name; *c != '\0'; c++)
			name[length++] = *c == '-' ? '_' : toupper((unsigned char) *c);
		values[i] = http_copy(values_of_flags[i] != NULL ?
								  values_of_flags[i] :
								  getenv(name));
	}
	if (file_name != NULL)
		good = set_from_file(values);
	for (size_t i = 0; i < lengthof(settings); i++)
	{
		if (!set_value(made, &settings[i],
					   values[i] != NULL ? values[i] : settings[i].preset))
			good = false;
		free(values[i]);
	}
	if (good && *made->jwt_key != '\0')
	{
		made->key = http_token_key(made->jwt_key);
		good = made->key != NULL;
	}
	if (good && made->key == NULL && *made->anonymous_role == '\0')
	{
		http_log(HTTP_LOG_ERROR, "all requests would be refused: "
								 "set --anonymous-role or --jwt-key");
		good = false;
	}
	if (good)
		return made;
	free_config(made);
	return NULL;
}

static void
free_config(HttpConfig *old)
{
	for (size_t i = 0; i < lengthof(settings); i++)
		if (settings[i].most == 0)
			free(*(char **) ((char *) old + settings[i].offset));
	free(old->key);
	free(old);
}

/*
 * Take the settings of the command line.  Returns whether the server is to
 * run; else *status is how the process ends.
 */
bool
http_config_load(int argc, char **argv, int *status)
{
	*status = 0;
	for (int i = 1; i < argc; i++)
	{
		const char *name = argv[i] + strspn(argv[i], "-");
		const char *value = strchr(name, '=');
		size_t		length = value != NULL ? (size_t) (value - name) : strlen(name);
		size_t		s;

		if (strcmp(argv[i], "--help") == 0)
		{
			print_help();
			return false;
		}
		if (strcmp(argv[i], "--version") == 0)
		{
			puts("feedpub-http " FEEDPUB_VERSION);
			return false;
		}
		for (s = 0; s < lengthof(settings); s++)
			if (strlen(settings[s].name) == length &&
				strncmp(settings[s].name, name, length) == 0)
				break;
		if (value == NULL && i + 1 < argc)
			value = argv[++i];
		else if (value != NULL)
			value++;
		if (strncmp(argv[i], "--", 2) != 0 && value != argv[i])
			value = NULL;
		if (value != NULL && s < lengthof(settings))
			values_of_flags[s] = http_copy(value);
		else if (value != NULL && length == 6 && strncmp(name, "config", 6) == 0)
			file_name = http_copy(value);
		else
		{
			fprintf(stderr, "feedpub-http: unknown option or no value: %.*s\n"
							"Try --help.\n",
					(int) length, name);
			*status = 2;
			return false;
		}
	}
	config = make_config();
	if (config == NULL)
	{
		*status = 2;
		return false;
	}
	http_log_level(config->log_level);
	return true;
}

/* Read the file again.  If something is wrong, nothing changes. */
bool
http_config_reload(void)
{
	HttpConfig *made = make_config();
	HttpConfig	old = *config;

	if (made == NULL)
		return false;
	for (size_t i = 0; i < lengthof(settings); i++)
	{
		const Setting *s = &settings[i];
		size_t		size = s->most == 0 ? sizeof(char *) : sizeof(int);

		if (s->reloads)
			continue;
		/* what stays is exchanged, so that each text has one owner */
		memcpy((char *) config + s->offset, (char *) made + s->offset, size);
		memcpy((char *) made + s->offset, (char *) &old + s->offset, size);
	}
	free_config(config);
	config = made;
	http_log_level(config->log_level);
	return true;
}
