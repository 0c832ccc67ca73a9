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
#ifdef HAVE_KAFKA
	&sink_kafka,
#endif
	NULL};

/* Is the scheme of a URL one of these, which have a space after each? */
bool
sink_has_scheme(const char *schemes, const char *url)
{
	const char *end = strstr(url, "://");
	size_t		length = end != NULL ? (size_t) (end - url) : 0;

	for (; *schemes != '\0'; schemes += strcspn(schemes, " ") + 1)
		if (length > 0 && strcspn(schemes, " ") == length &&
			strncmp(schemes, url, length) == 0)
			return true;
	return false;
}

/* The sink of a feed's settings, or NULL if they are wrong, as logged. */
const SinkKind *
sink_find(const RelayFeedConfig *config)
{
	for (int i = 0; kinds[i] != NULL; i++)
		if (sink_has_scheme(kinds[i]->schemes, config->to))
			return kinds[i]->check == NULL || kinds[i]->check(config) ? kinds[i] : NULL;
	base_log(BASE_LOG_ERROR, "feed \"%s\": this " FEEDPUB_PROGRAM " has no sink for \"%s\"",
			 config->feed, config->to);
	return NULL;
}
