/*-------------------------------------------------------------------------
 *
 * nats_stream.c
 *	  The stream of a feed: found or made, and how far it is.
 *
 * Its last message has the cursor of the last entry that is in it.  That message
 * can be gone: purged, deleted, or older than the stream keeps messages.  So when
 * all is acknowledged, the sink notes the cursor, with the sequence at which it
 * holds, in a stream for cursors, which has one message for each stream.  A note
 * also says how far a feed was read of which little is sent, and where a feed
 * begins of which nothing has been sent.  It counts only if the stream still has
 * this last sequence, and was not made anew since.  If neither is there, the
 * relay stops and asks for --from: it neither skips nor sends twice.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/nats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Make the stream of the feed, or, if "cursors", that for cursors. */
static natsStatus
make_stream(SinkLink *link, jsCtx *js, bool cursors, jsStreamInfo **info, jsErrCode *code)
{
	const RelayFeedConfig *config = link->config;
	jsStreamConfig stream;
	BaseText	all = {0};
	const char *subjects[64];
	int			nsubjects = 0;
	char	   *given = base_copy(config->stream_subjects);
	char	   *rest = given;
	natsStatus	status;

	jsStreamConfig_Init(&stream);
	stream.Name = cursors ? config->cursors : NATS_LINK(link)->stream;
	stream.Replicas = config->stream_replicas;
	stream.Storage = strcmp(config->stream_storage, "memory") == 0 ? js_MemoryStorage : js_FileStorage;
	if (cursors)
	{
		base_text_print(&all, "%.*s>", (int) (strrchr(NATS_LINK(link)->cursor_subject, '.') + 1 - NATS_LINK(link)->cursor_subject),
						NATS_LINK(link)->cursor_subject);
		subjects[nsubjects++] = all.data;
		stream.Description = "how far feedpub-relay has read feeds";
		stream.MaxMsgsPerSubject = 1;
	}
	else
	{
		while (*config->stream_subjects != '\0' && nsubjects < (int) lengthof(subjects) &&
			   (subjects[nsubjects] = strsep(&rest, ",")) != NULL)
			nsubjects++;
		if (nsubjects == 0)
		{
			size_t		second;

			sink_subject_all(&all, config->subject, config);
			base_text_add(&all, "", 1);
			second = all.length;
			if (*config->errors_to != '\0')
				sink_subject_all(&all, config->errors_to, config);
			subjects[nsubjects++] = all.data;
			if (all.length > second && strcmp(all.data, all.data + second) != 0)
				subjects[nsubjects++] = all.data + second;
		}
		stream.Description = "a feed, by feedpub-relay";
		stream.MaxAge = strtoll(config->stream_max_age, NULL, 10) * INT64_C(1000000000);
		stream.MaxBytes = strtoll(config->stream_max_bytes, NULL, 10);
		stream.MaxMsgs = strtoll(config->stream_max_messages, NULL, 10);
		if (stream.MaxBytes == 0)
			stream.MaxBytes = -1;
		if (stream.MaxMsgs == 0)
			stream.MaxMsgs = -1;
	}
	stream.Subjects = subjects;
	stream.SubjectsLen = nsubjects;
	status = js_AddStream(info, js, &stream, NULL, code);
	free(all.data);
	free(given);
	return status;
}

/* Can a relay write into a stream that is such? */
static const char *
refuse_stream(const jsStreamConfig *config)
{
	if (config->Sealed)
		return "it is sealed";
	if (config->Retention != js_LimitsPolicy)
		return "its retention is not \"limits\", so its last message, which has the cursor, goes";
	if (config->NoAck)
		return "it acknowledges nothing";
	if (config->Mirror != NULL)
		return "it is a mirror";
	if (config->SourcesLen > 0)
		return "it has sources";
	return NULL;
}

/*
 * What the stream for cursors has: a cursor that holds if the stream's last
 * sequence is "last".  Returns NULL if there is none.
 */
static char *
read_noted(SinkLink *link, jsCtx *js, uint64_t last)
{
	natsMsg    *message = NULL;
	jsErrCode	code = 0;
	uint64_t	sequence;
	int64_t		created;
	char		cursor[80];
	char		text[160];
	char	   *found = NULL;

	if (js_GetLastMsg(&message, js, link->config->cursors, NATS_LINK(link)->cursor_subject, NULL, &code) != NATS_OK)
		return NULL;
	snprintf(text, sizeof(text), "%.*s", natsMsg_GetDataLength(message), natsMsg_GetData(message));
	if (sscanf(text, "%" SCNu64 " %" SCNd64 " %79s", &sequence, &created, cursor) == 3 &&
		sequence == last && created == NATS_LINK(link)->created)
		found = base_copy(cursor);
	natsMsg_Destroy(message);
	return found;
}

/* Does another relay send?  The one that this one has replaced does not. */
static bool
is_other(SinkLink *link, const char *sender)
{
	return (strcmp(sender, NATS_LINK(link)->taken) != 0 || NATS_LINK(link)->taken_at != link->base) &&
		sink_link_is_other(link, sender);
}

/* Find the stream, or make it, and what it has.  A failure is told. */
bool
sink_nats_find_end(SinkLink *link, jsCtx *js)
{
	jsStreamInfo *info = NULL;
	jsErrCode	code = 0;
	natsStatus	status = js_GetStreamInfo(&info, js, NATS_LINK(link)->stream, NULL, &code);
	const char *refusal;
	natsMsg    *message = NULL;
	const char *value = NULL;
	char	   *cursor = NULL;
	char	   *sender = NULL;
	uint64_t	nmessages;
	bool		has_other_types = false;

	if (status == NATS_NOT_FOUND && NATS_LINK(link)->known_created != 0)
	{
		sink_link_fail(link, SINK_STOP, "stream \"%s\" has been deleted: if the feed shall begin again "
										"as --from says, start the relay again",
					   NATS_LINK(link)->stream);
		return false;
	}
	if (status == NATS_NOT_FOUND && link->only_look)
		return true;
	if (status == NATS_NOT_FOUND)
		status = make_stream(link, js, false, &info, &code);
	if (status != NATS_OK)
	{
		/* how many servers there are may change */
		sink_link_fail(link, code == JSStreamSubjectOverlapErr || code == JSStreamInvalidConfig ? SINK_STOP : SINK_RETRY,
					   "could not have stream \"%s\": %s (%d)", NATS_LINK(link)->stream,
					   nats_GetLastError(NULL), (int) code);
		return false;
	}
	NATS_LINK(link)->created = info->Created;
	link->base = info->State.LastSeq;
	nmessages = info->State.Msgs;
	NATS_LINK(link)->max_bytes = natsConnection_GetMaxPayload(NATS_LINK(link)->connection);
	if (info->Config->MaxMsgSize > 0 && info->Config->MaxMsgSize < NATS_LINK(link)->max_bytes)
		NATS_LINK(link)->max_bytes = info->Config->MaxMsgSize;
	refusal = refuse_stream(info->Config);
	if (refusal != NULL)
		sink_link_fail(link, SINK_STOP, "cannot use stream \"%s\": %s", NATS_LINK(link)->stream, refusal);
	jsStreamInfo_Destroy(info);
	if (refusal != NULL)
		return false;
	if (NATS_LINK(link)->known_created != 0 && NATS_LINK(link)->known_created != NATS_LINK(link)->created)
	{
		sink_link_fail(link, SINK_STOP, "stream \"%s\" has been made anew: if the feed shall begin again "
										"as --from says, start the relay again",
					   NATS_LINK(link)->stream);
		return false;
	}
	if (js_GetStreamInfo(&info, js, link->config->cursors, NULL, &code) == NATS_OK)
		jsStreamInfo_Destroy(info);
	else if (!link->only_look && make_stream(link, js, true, &info, &code) == NATS_OK)
		jsStreamInfo_Destroy(info);
	else if (!link->only_look)
	{
		sink_link_fail(link, SINK_RETRY, "could not have stream \"%s\", which is for cursors: %s (%d)",
					   link->config->cursors, nats_GetLastError(NULL), (int) code);
		return false;
	}

	cursor = read_noted(link, js, link->base);
	if (link->base > 0 && nmessages > 0)
	{
		status = js_GetMsg(&message, js, NATS_LINK(link)->stream, link->base, NULL, &code);
		if (status != NATS_OK && code != JSNoMessageFoundErr && status != NATS_NOT_FOUND)
		{
			sink_link_fail(link, SINK_RETRY, "could not read the last message of stream \"%s\": %s",
						   NATS_LINK(link)->stream, natsStatus_GetText(status));
			free(cursor);
			return false;
		}
	}
	if (message != NULL)
	{
		if (natsMsgHeader_Get(message, SINK_NATS_RELAY, &value) != NATS_OK ||
			natsMsgHeader_Get(message, SINK_NATS_CURSOR, &value) != NATS_OK)
		{
			sink_link_fail(link, SINK_STOP, "stream \"%s\" has messages of others: its last, %" PRIu64 ", "
											"has no header " SINK_NATS_RELAY "; name another stream",
						   NATS_LINK(link)->stream, link->base);
			natsMsg_Destroy(message);
			free(cursor);
			return false;
		}
		if (cursor == NULL)
			cursor = base_copy(value);
		natsMsgHeader_Get(message, SINK_NATS_RELAY, &value);
		sender = base_copy(value);
		if (natsMsgHeader_Get(message, SINK_NATS_TYPES, &value) != NATS_OK)
			value = "";
		has_other_types = strcmp(value, NATS_LINK(link)->types) != 0;
		natsMsg_Destroy(message);
	}
	else if (cursor == NULL && link->base > 0)
	{
		if (*link->config->from == '\0')
		{
			sink_link_fail(link, SINK_STOP, "stream \"%s\" has lost its last message, %" PRIu64 ", and nothing "
											"else says how far it is: it was purged or deleted; "
											"set --from, to a cursor, earliest or latest",
						   NATS_LINK(link)->stream, link->base);
			return false;
		}
	}
	pthread_mutex_lock(&link->lock);
	link->cursor = cursor;
	link->sender = sender;
	link->is_other = sender != NULL && is_other(link, sender);
	pthread_mutex_unlock(&link->lock);
	if (link->is_other && has_other_types)
	{
		sink_link_fail(link, SINK_STOP, "relay \"%s\", which sends into stream \"%s\", has other --types: "
										"give both the same, or if this one shall replace it, its --name",
					   sender, NATS_LINK(link)->stream);
		return false;
	}
	return true;
}
