/*-------------------------------------------------------------------------
 *
 * address.c
 *	  How many connections each address has.
 *
 *-------------------------------------------------------------------------
 */
#include "server/address.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define BUCKETS 1024

struct HttpAddress
{
	HttpAddress *next;
	unsigned char bytes[16];	/* of IPv4, the first four */
	int			count;			/* of its connections */
};

static HttpAddress *addresses[BUCKETS];

static HttpAddress **
bucket_of(const unsigned char *bytes)
{
	unsigned	hash = 0;

	for (int i = 0; i < 16; i++)
		hash = hash * 31 + bytes[i];
	return &addresses[hash % BUCKETS];
}

/* A connection of this address has been made. */
HttpAddress *
http_address_take(const struct sockaddr_storage *name)
{
	unsigned char bytes[16] = {0};
	HttpAddress **bucket;
	HttpAddress *address;

	if (name->ss_family == AF_INET)
		memcpy(bytes, &((const struct sockaddr_in *) name)->sin_addr, 4);
	else if (name->ss_family == AF_INET6)
		memcpy(bytes, &((const struct sockaddr_in6 *) name)->sin6_addr, 16);
	bucket = bucket_of(bytes);
	for (address = *bucket; address != NULL; address = address->next)
		if (memcmp(address->bytes, bytes, sizeof(bytes)) == 0)
			break;
	if (address == NULL)
	{
		address = base_alloc(sizeof(HttpAddress));
		memcpy(address->bytes, bytes, sizeof(bytes));
		address->next = *bucket;
		*bucket = address;
	}
	address->count++;
	return address;
}

int
http_address_count(const HttpAddress *address)
{
	return address->count;
}

/* One of its connections has been closed. */
void
http_address_release(HttpAddress *address)
{
	HttpAddress **link = bucket_of(address->bytes);

	if (--address->count > 0)
		return;
	while (*link != address)
		link = &(*link)->next;
	*link = address->next;
	free(address);
}
