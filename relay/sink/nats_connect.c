/*-------------------------------------------------------------------------
 *
 * nats_connect.c
 *	  Connects to NATS, and what libnats calls back.
 *
 * All of this runs in threads: of libnats, or one that connects, or one that
 * closes, since some functions of libnats wait for the server.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/nats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ms */
#define CONNECT_TIMEOUT 3000
#define REQUEST_TIMEOUT 5000
#define WRITE_DEADLINE 2000
#define PING_INTERVAL 5000

static void
closed(natsConnection *connection, void *closure)
{
	SinkLink   *link = closure;

	sink_link_fail(link, SINK_RETRY, "the connection was closed");
	sink_link_release(link);
}

static void
disconnected(natsConnection *connection, void *closure)
{
	const char *error = NULL;

	natsConnection_GetLastError(connection, &error);
	sink_link_fail(closure, SINK_RETRY, "the connection was lost%s%s",
				   error != NULL && *error != '\0' ? ": " : "", error != NULL ? error : "");
}

static void
failed(natsConnection *connection, natsSubscription *subscription, natsStatus status,
	   void *closure)
{
	sink_link_fail(closure, SINK_RETRY, "%s", natsStatus_GetText(status));
}

static void
unsubscribed(void *closure)
{
	sink_link_release(closure);
}

/* The text of a member of the server's JSON, up to its end. */
static const char *
find_member(const char *json, const char *name)
{
	const char *found = strstr(json, name);

	return found != NULL ? found + strlen(name) : NULL;
}

/* Which errors do not go away, and which say that the sequence is another one? */
static SinkFailure
judge(int code)
{
	switch (code)
	{
		case JSStreamWrongLastSequenceErr:
			return SINK_RETRY_NOW;
		case JSStreamSealedErr:
		case JSStreamNotMatchErr:
			return SINK_STOP;
		default:
			return SINK_RETRY;
	}
}

/* The stream's state has come, which the loop compares with what it has sent. */
static void
take_state(NatsLink *nats, const char *data)
{
	const char *last = data != NULL ? find_member(data, "\"last_seq\":") : NULL;

	if (last == NULL)
		return;
	pthread_mutex_lock(&nats->link.lock);
	nats->last = strtoull(last, NULL, 10);
	sink_link_tell(&nats->link);
	pthread_mutex_unlock(&nats->link.lock);
}

/*
 * An acknowledgement has come.  The server makes them in the order in which it
 * takes messages, and one of a message that was not stored has an error.  The
 * JSON is the server's: names of streams have no quotes, as this file makes them.
 */
static void
answered(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
		 void *closure)
{
	SinkLink   *link = closure;
	const char *subject = natsMsg_GetSubject(message);
	const char *data = natsMsg_GetData(message);
	uint64_t	number = strtoull(strrchr(subject, '.') + 1, NULL, 10);
	const char *error = data != NULL ? find_member(data, "\"error\":") : NULL;
	const char *sequence = data != NULL ? find_member(data, "\"seq\":") : NULL;

	if (strcmp(strrchr(subject, '.'), "." SINK_NATS_STATE) == 0)
		take_state(NATS_LINK(link), data);
	else if (natsMsg_IsNoResponders(message))
		sink_link_fail(link, SINK_RETRY, "no stream takes subjects of the feed, or it has no leader");
	else if (error != NULL)
	{
		const char *code = find_member(error, "\"err_code\":");
		const char *text = find_member(error, "\"description\":\"");

		sink_link_fail(link, judge(code != NULL ? atoi(code) : 0), "%.*s",
					   text != NULL ? (int) strcspn(text, "\"") : 0, text != NULL ? text : "");
	}
	else if (sequence == NULL)
		sink_link_fail(link, SINK_RETRY, "the server's answer is no acknowledgement");
	else
	{
		bool		expected;

		pthread_mutex_lock(&link->lock);
		expected = number == 0 || (number == link->news.acknowledged + 1 && strtoull(sequence, NULL, 10) == link->base + number);
		if (number == 0)
			NATS_LINK(link)->is_noted = true;
		else if (expected)
			link->news.acknowledged = number;
		if (expected)
			sink_link_tell(link);
		pthread_mutex_unlock(&link->lock);
		if (!expected)
			sink_link_fail(link, SINK_RETRY_NOW, "an acknowledgement came out of order");
	}
	natsMsg_Destroy(message);
}

/* Options of a connection; a failure is told. */
static natsOptions *
make_options(SinkLink *link)
{
	const RelayFeedConfig *config = link->config;
	natsOptions *options = NULL;
	natsStatus	status = natsOptions_Create(&options);
	const char *setting = NULL;
	char	   *urls[64];
	int			nurls = 0;
	char	   *copy = base_copy(config->to);
	char	   *rest = copy;
	char	   *secret = NULL;
	bool		is_secure = strncmp(config->to, "tls:", 4) == 0;

	for (char *url; (url = strsep(&rest, ",")) != NULL;)
		if (nurls < (int) lengthof(urls) && *url != '\0')
			urls[nurls++] = url;
	if (status == NATS_OK)
		status = natsOptions_SetServers(options, (const char **) urls, nurls);
	free(copy);

	/* what is in flight when a connection is lost is not known */
	natsOptions_SetAllowReconnect(options, false);
	natsOptions_SetTimeout(options, CONNECT_TIMEOUT);
	natsOptions_SetPingInterval(options, PING_INTERVAL);
	natsOptions_SetWriteDeadline(options, WRITE_DEADLINE);
	natsOptions_SetName(options, link->relay);
	/* otherwise a thread of libnats sends, after it has slept for a millisecond */
	natsOptions_SetSendAsap(options, true);
	natsOptions_SetClosedCB(options, closed, link);
	natsOptions_SetDisconnectedCB(options, disconnected, link);
	natsOptions_SetErrorHandler(options, failed, link);
	if (status == NATS_OK && *config->credentials != '\0')
	{
		/* libnats opens it when it connects, and does not say that it could not */
		setting = "credentials";
		secret = relay_config_file(config->credentials);
		status = secret != NULL ? natsOptions_SetUserCredentialsFromFiles(options, config->credentials, NULL) : NATS_ERR;
		free(secret);
	}
	if (status == NATS_OK && *config->user != '\0')
	{
		setting = "password";
		secret = relay_config_file(config->password);
		status = secret != NULL ? natsOptions_SetUserInfo(options, config->user, secret) : NATS_ERR;
		free(secret);
	}
	if (status == NATS_OK && *config->token != '\0')
	{
		setting = "token";
		secret = relay_config_file(config->token);
		status = secret != NULL ? natsOptions_SetToken(options, secret) : NATS_ERR;
		free(secret);
	}
	if (status == NATS_OK && *config->nkey != '\0')
	{
		setting = "nkey-seed";
		status = natsOptions_SetNKeyFromSeed(options, config->nkey, config->nkey_seed);
	}
	if (status == NATS_OK && (is_secure || *config->tls_ca != '\0' || *config->tls_certificate != '\0'))
	{
		setting = "to";
		status = natsOptions_SetSecure(options, true);
	}
	if (status == NATS_OK && *config->tls_ca != '\0')
	{
		setting = "tls-ca";
		status = natsOptions_LoadCATrustedCertificates(options, config->tls_ca);
	}
	if (status == NATS_OK && *config->tls_certificate != '\0')
	{
		setting = "tls-certificate";
		status = natsOptions_LoadCertificatesChain(options, config->tls_certificate, config->tls_key);
	}
	if (status == NATS_OK)
		return options;
	sink_link_fail(link, SINK_RETRY, "setting \"%s\": %s", setting != NULL ? setting : "to",
				   natsStatus_GetText(status));
	natsOptions_Destroy(options);
	return NULL;
}

/* Connect, and find out how far the stream is: what comes of it is told. */
void *
sink_nats_connect(void *argument)
{
	SinkLink   *link = argument;
	natsOptions *options = make_options(link);
	natsStatus	status = NATS_ERR;
	natsInbox  *inbox = NULL;
	jsCtx	   *js = NULL;
	jsOptions	js_options;
	char		subject[160];
	bool		is_left;

	if (options != NULL)
	{
		sink_link_retain(link); /* for closed() */
		status = natsConnection_Connect(&NATS_LINK(link)->connection, options);
		natsOptions_Destroy(options);
		if (status != NATS_OK)
		{
			sink_link_release(link);
			NATS_LINK(link)->connection = NULL;
			sink_link_fail(link, SINK_RETRY, "could not connect to %s: %s", link->config->to,
						   natsStatus_GetText(status));
		}
	}
	if (status == NATS_OK)
	{
		jsOptions_Init(&js_options);
		js_options.Wait = REQUEST_TIMEOUT;
		status = natsConnection_JetStream(&js, NATS_LINK(link)->connection, &js_options);
		if (status == NATS_OK && sink_nats_find_end(link, js))
		{
			natsInbox_Create(&inbox);
			snprintf(NATS_LINK(link)->inbox, sizeof(NATS_LINK(link)->inbox), "%s.", inbox);
			natsInbox_Destroy(inbox);
			snprintf(subject, sizeof(subject), "%s*", NATS_LINK(link)->inbox);
			sink_link_retain(link); /* for unsubscribed() */
			status = natsConnection_Subscribe(&NATS_LINK(link)->subscription, NATS_LINK(link)->connection,
											  subject, answered, link);
			if (status == NATS_OK)
			{
				natsSubscription_SetOnCompleteCB(NATS_LINK(link)->subscription, unsubscribed, link);
				natsSubscription_SetPendingLimits(NATS_LINK(link)->subscription, -1, -1);
				pthread_mutex_lock(&link->lock);
				if (link->news.state == SINK_LINK_CONNECTING)
					link->news.state = SINK_LINK_OPENED;
				sink_link_tell(link);
				pthread_mutex_unlock(&link->lock);
			}
			else
			{
				sink_link_release(link);
				sink_link_fail(link, SINK_RETRY, "%s", natsStatus_GetText(status));
			}
		}
		else if (status != NATS_OK)
			sink_link_fail(link, SINK_RETRY, "%s", natsStatus_GetText(status));
		jsCtx_Destroy(js);
	}
	pthread_mutex_lock(&link->lock);
	NATS_LINK(link)->is_connecting = false;
	is_left = link->is_left;
	pthread_mutex_unlock(&link->lock);
	if (is_left)
		return sink_nats_close(link);
	nats_ReleaseThreadMemory();
	sink_link_release(link);
	return NULL;
}

/* Close a connection, which may take as long as a write does. */
void *
sink_nats_close(void *argument)
{
	SinkLink   *link = argument;

	natsSubscription_Destroy(NATS_LINK(link)->subscription);
	natsConnection_Destroy(NATS_LINK(link)->connection);
	nats_ReleaseThreadMemory();
	sink_link_release(link);
	return NULL;
}
