/*-------------------------------------------------------------------------
 *
 * http.h
 *	  What main.c and routes.c start.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_H
#define FEEDPUB_HTTP_H

#include "server/server.h"

/* in admin.c */
extern void http_admin(HttpRequest *request);

/* in documents.c */
extern void http_index_begin(HttpRequest *request);
extern void http_openapi_begin(HttpRequest *request);

/* in routes.c */
extern void http_route(HttpRequest *request);

#endif							/* FEEDPUB_HTTP_H */
