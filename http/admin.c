/*-------------------------------------------------------------------------
 *
 * admin.c
 *	  GET /live and /ready, on an address of their own.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <string.h>

static struct MHD_Daemon *admin;

static enum MHD_Result
handle(void *arg, struct MHD_Connection *connection, const char *path,
	   const char *method, const char *version, const char *body,
	   size_t *length, void **state)
{
	static const char *const texts[] = {"ok\n", "not ready\n", "not found\n"};
	static const unsigned statuses[] = {200, 503, 404};
	struct MHD_Response *response;
	enum MHD_Result sent;
	int			which;

	if (strcmp(path, "/live") == 0)
		which = 0;
	else if (strcmp(path, "/ready") == 0)
		which = http_pool_ready() && http_listener_ready() &&
				!http_server_draining() ?
			0 :
			1;
	else
		which = 2;
	response = MHD_create_response_from_buffer(strlen(texts[which]),
											   (void *) texts[which],
											   MHD_RESPMEM_PERSISTENT);
	MHD_add_response_header(response, "Content-Type", "text/plain");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	sent = MHD_queue_response(connection, statuses[which], response);
	MHD_destroy_response(response);
	return sent;
}

bool
http_admin_start(const char *address)
{
	admin = http_server_daemon(address, 0, handle, false);
	return admin != NULL;
}

void
http_admin_stop(void)
{
	if (admin != NULL)
		MHD_stop_daemon(admin);
}
