/*-------------------------------------------------------------------------
 *
 * sink.c
 *	  Which sink a URL means.
 *
 *-------------------------------------------------------------------------
 */
#include "sink/sink.h"

#include <stdlib.h>
#include <string.h>

/* Each can be left out when this is built. */
static const SinkKind *const kinds[] = {
#ifdef HAVE_NATS
	&sink_nats,
#endif
	NULL};

/* The sink of a feed's settings, or NULL if they are wrong, as logged. */
const SinkKind *
sink_find(const RelayFeedConfig *config)
{
	const char *end = strstr(config->to, "://");
	size_t		length = end != NULL ? (size_t) (end - config->to) : 0;

	for (int i = 0; kinds[i] != NULL; i++)
	{
		const char *scheme = kinds[i]->schemes;

		for (; *scheme != '\0'; scheme += strcspn(scheme, " ") + 1)
			if (length > 0 && strcspn(scheme, " ") == length &&
				strncmp(scheme, config->to, length) == 0)
				return kinds[i]->check == NULL || kinds[i]->check(config) ? kinds[i] : NULL;
	}
	base_log(BASE_LOG_ERROR, "feed \"%s\": this " FEEDPUB_PROGRAM " has no sink for \"%s\"",
			 config->feed, config->to);
	return NULL;
}
