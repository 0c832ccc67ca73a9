/*-------------------------------------------------------------------------
 *
 * run.c
 *	  What a request has the database run.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

/* bytes of a name that count: SQL cuts names at 63, or at the character before */
#define NAME_BYTES 60

/*
 * Which share of the pool a request takes: that of the name after the first part
 * of the path.
 */
char *
http_share(const char *path)
{
	const char *name = strchr(path + 1, '/');
	char	   *share = name != NULL ?
		http_request_decode(name + 1, strcspn(name + 1, "/")) :
		NULL;

	return share != NULL ? http_share_of(share) : base_copy("");
}

/*
 * The share of a feed, so that one feed never has the whole pool, in place of
 * its name, which is taken.  Names are without their schema, quotes, spaces and
 * case, for each of these can be written in several ways; feeds that differ in
 * nothing else have one share.
 */
char *
http_share_of(char *share)
{
	char	   *end = share;

	for (const char *c = share; *c != '\0'; c++)
	{
		if (*c == '.')
			end = share;
		else if (*c >= 'A' && *c <= 'Z')
			*end++ = *c | 0x20;
		else if (*c != '"' && *c != ' ' && (*c < '\t' || *c > '\r'))
			*end++ = *c;
	}
	*end = '\0';
	if (end - share > NAME_BYTES)
		share[NAME_BYTES] = '\0';
	return share;
}

/* Have a statement run for a request; it goes on when there is the result. */
void
http_run(HttpRequest *request, const DbStatement *statement,
		 const char *const *arguments, void (*go_on)(HttpRequest *request))
{
	http_wait(request, statement, arguments, InvalidOid, 0, 0, go_on);
}

/* The same, until its result is not empty: job_add(). */
void
http_wait(HttpRequest *request, const DbStatement *statement,
		  const char *const *arguments, Oid feed, uint64_t since,
		  int64_t deadline, void (*go_on)(HttpRequest *request))
{
	request->go_on = go_on;
	job_add(&request->waiter, statement, request->role, request->claims, request->share,
			arguments, feed, since,
			deadline > 0 ? http_token_deadline(request, deadline) : 0);
}
