/*-------------------------------------------------------------------------
 *
 * http.h
 *	  What main.c starts.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_H
#define FEEDPUB_HTTP_H

#include "server/server.h"

/* in admin.c */
extern void http_admin(HttpRequest *request);

/* in routes.c */
extern void http_route(HttpRequest *request);

#endif							/* FEEDPUB_HTTP_H */
