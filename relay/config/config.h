/*-------------------------------------------------------------------------
 *
 * config.h
 *	  The settings of feedpub-relay; config.c says what they mean.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_CONFIG_H
#define FEEDPUB_RELAY_CONFIG_H

#include "base/base.h"
#include "database/database.h"

/* The settings of a feed, as a section of the file has them. */
typedef struct RelayFeedConfig
{
	char	   *section;		/* its name; the feed's if there are no sections */
	char	   *feed;			/* as the database's regclass takes it */
	char	   *to;				/* a URL, whose scheme says which sink it is */
	char	   *from;
	char	   *types;
	char	   *subject;		/* a template */
	char	   *errors_to;
	char	   *name;			/* of the relay */
	int			takeover;		/* s */
	int			page;			/* rows */
	int			in_flight;		/* messages */

	/* of NATS */
	char	   *stream;
	char	   *stream_subjects;
	char	   *stream_storage;
	int			stream_replicas;
	char	   *stream_max_age; /* s, and numbers; 0: without limit */
	char	   *stream_max_bytes;
	char	   *stream_max_messages;
	char	   *cursors;		/* the stream with cursors */

	/* of Kafka */
	char	   *topic;			/* a template */
	char	   *kafka;			/* a file */
	char	   *transactional_id;

	/* of webhooks */
	char	   *subscription;
	char	   *secrets;		/* a file */
	char	   *allow;			/* addresses that are not public */
	int			requests;		/* in flight */
	int			request_timeout;	/* s */
	int			attempts;		/* before an entry is parked; 0: never */

	/* how the sink knows the relay, and the relay the sink: names of files */
	char	   *credentials;
	char	   *user;
	char	   *password;
	char	   *token;
	char	   *nkey;
	char	   *nkey_seed;
	char	   *tls_ca;
	char	   *tls_certificate;
	char	   *tls_key;
} RelayFeedConfig;

typedef struct RelayConfig
{
	DbSettings	database;
	RelayFeedConfig defaults;	/* of feeds; the feed, if there are no sections */
	char	   *admin;
	int			drain;			/* s */
	int			progress;		/* s; 0: what is left is not counted */
	int			once;
	int			check;
	char	   *log_level;
	RelayFeedConfig **feeds;
	int			nfeeds;
} RelayConfig;

/* in config.c */
extern const RelayConfig *relay_config(void);
extern bool relay_config_load(int argc, char **argv, int *status);
extern bool relay_config_reload(void);
extern const RelayFeedConfig *relay_config_feed(const char *section);
extern bool relay_config_equal(const RelayFeedConfig *a, const RelayFeedConfig *b);
extern RelayFeedConfig *relay_config_copy(const RelayFeedConfig *from);
extern void relay_config_free(RelayFeedConfig *config);
extern char *relay_config_file(const char *name);

#endif							/* FEEDPUB_RELAY_CONFIG_H */
