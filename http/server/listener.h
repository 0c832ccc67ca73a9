/*-------------------------------------------------------------------------
 *
 * listener.h
 *	  What connection.c has of a listener: listener.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_LISTENER_H
#define FEEDPUB_HTTP_LISTENER_H

#include <sys/socket.h>

#include "server/server.h"

typedef struct HttpListener
{
	BaseSource	source;			/* the first member */
	BaseTimer	timer;			/* it listens again */
	bool		is_public;
	void (*handle)(HttpRequest *request);
	int			count;			/* of connections */
	int			most;			/* above them, they are refused */
	struct HttpListener *next;
} HttpListener;

/* in connection.c */
extern void http_connection_open(HttpListener *listener, int fd,
								 const struct sockaddr_storage *name);

#endif							/* FEEDPUB_HTTP_LISTENER_H */
