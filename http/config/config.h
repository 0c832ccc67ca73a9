/*-------------------------------------------------------------------------
 *
 * config.h
 *	  The settings of feedpub-http; config.c says what they mean.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_CONFIG_H
#define FEEDPUB_HTTP_CONFIG_H

#include "base/base.h"
#include "database/database.h"

/* bytes; more than a good key of any kind */
#define HTTP_MAX_KEY 16384

typedef struct HttpKey
{
	unsigned char bytes[HTTP_MAX_KEY + 1];
	int			length;
	bool		is_public;
} HttpKey;

typedef struct HttpConfig
{
	DbSettings	database;
	char	   *listen;
	char	   *admin;
	char	   *jwt_key;
	char	   *jwt_audience;
	char	   *jwt_role_claim;
	int			max_connections;
	int			max_connections_per_address;
	int			max_memory;		/* MB */
	int			idle_timeout;
	int			log_requests;
	int			max_limit;
	int			max_age;
	int			max_wait;
	int			heartbeat;
	char	   *message_type;
	int			drain;
	char	   *cors_origins;
	char	   *log_level;
	HttpKey    *key;			/* of tokens, or NULL */
} HttpConfig;

/* in config.c */
extern const HttpConfig *http_config(void);
extern bool http_config_load(int argc, char **argv, int *status);
extern bool http_config_reload(void);

/* in key.c */
extern HttpKey *http_key_read(const char *name);

#endif							/* FEEDPUB_HTTP_CONFIG_H */
