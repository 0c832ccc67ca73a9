/*-------------------------------------------------------------------------
 *
 * run.c
 *	  What a request has the database run.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

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
	job_add(&request->waiter, statement, request->role, request->claims,
			arguments, feed, since,
			deadline > 0 ? http_token_deadline(request, deadline) : 0);
}
