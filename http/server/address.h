/*-------------------------------------------------------------------------
 *
 * address.h
 *	  How many connections each address has: address.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_ADDRESS_H
#define FEEDPUB_HTTP_ADDRESS_H

#include <sys/socket.h>

typedef struct HttpAddress HttpAddress;

extern HttpAddress *http_address_take(const struct sockaddr_storage *name);
extern int	http_address_count(const HttpAddress *address);
extern void http_address_release(HttpAddress *address);

#endif							/* FEEDPUB_HTTP_ADDRESS_H */
