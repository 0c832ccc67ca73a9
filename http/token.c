/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Whose request it is.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

/*
 * Take the role of a request.  If it is refused, *refused is set, and the
 * response has been sent.
 */
enum MHD_Result
http_token_take(HttpRequest *request, bool *refused)
{
	request->role = http_copy(http_config()->anonymous_role);
	request->claims = http_copy("");
	request->is_private = http_header(request, "Authorization") != NULL;
	*refused = false;
	return MHD_YES;
}
