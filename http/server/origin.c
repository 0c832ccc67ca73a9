/*-------------------------------------------------------------------------
 *
 * origin.c
 *	  Which pages of browsers may read, and write.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <string.h>
#include <strings.h>

/* May pages of this origin read? */
bool
http_origin_allowed(const char *origin)
{
	const char *list = http_config()->cors_origins;

	if (origin == NULL)
		return false;
	while (*list != '\0')
	{
		size_t		length;

		list += strspn(list, ", ");
		length = strcspn(list, ", ");
		if ((length == 1 && *list == '*') ||
			(length == strlen(origin) && strncasecmp(list, origin, length) == 0))
			return true;
		list += length;
	}
	return false;
}

/*
 * Is it a browser's request, for a page of another origin that is not listed?
 * A browser sends some requests that write without asking first.  Old ones do
 * not say where the page is from, or only by Origin.
 */
bool
http_origin_foreign(const HttpRequest *request)
{
	const char *origin = http_header(request, "Origin");
	const char *site = http_header(request, "Sec-Fetch-Site");
	const char *host = http_header(request, "Host");
	const char *own = origin != NULL ? strstr(origin, "://") : NULL;

	if (origin == NULL || http_origin_allowed(origin))
		return false;
	if (site != NULL)
		return strcmp(site, "same-origin") != 0;
	return own == NULL || host == NULL || strcasecmp(own + 3, host) != 0;
}

/*
 * Is it from a page of this server?  A browser says so of each POST, in one way
 * or both.  What says nothing is no browser, which is why a secret is asked for
 * too.
 */
bool
http_origin_own(const HttpRequest *request)
{
	const char *origin = http_header(request, "Origin");
	const char *site = http_header(request, "Sec-Fetch-Site");
	const char *host = http_header(request, "Host");
	const char *own = origin != NULL ? strstr(origin, "://") : NULL;

	if (site != NULL)
		return strcmp(site, "same-origin") == 0;
	return origin == NULL ||
		(own != NULL && host != NULL && strcasecmp(own + 3, host) == 0);
}
