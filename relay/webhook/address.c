/*-------------------------------------------------------------------------
 *
 * address.c
 *	  Which addresses a webhook may connect to.
 *
 * A URL that somebody else gives could lead the relay to services that only this
 * machine or its network reaches.  So an address must be public, or be in the
 * list of the setting "allow".  The address that a name has been resolved to is
 * judged, when the socket for it is made, so a name that changes gains nothing.
 *
 * An address of IPv6 that stands for one of IPv4 (mapped, 6to4, NAT64) is judged
 * as that one.  Of IPv6 only 2000::/3 is public, less what is special in it.
 *
 *-------------------------------------------------------------------------
 */
#include "webhook/webhook.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An address, and how many bits of it count. */
typedef struct Network
{
	int			family;
	unsigned char bytes[16];
	int			bits;
} Network;

/* 168.63.129.16 is the host of a virtual machine of Azure */
static const char *const special[] = {
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32",
	"169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "224.0.0.0/3", "2001::/23", "2001:db8::/32", "3fff::/20"};

static bool parse(const char *text, size_t length, Network *network);
static bool contains(const Network *network, int family, const unsigned char *bytes);
static const unsigned char *embedded(const unsigned char *bytes);

/* An address, with the bits that count after a slash; false if it is none. */
static bool
parse(const char *text, size_t length, Network *network)
{
	char		copy[64];
	char	   *slash;
	char	   *end = NULL;
	long		most;

	if (length >= sizeof(copy))
		return false;
	memcpy(copy, text, length);
	copy[length] = '\0';
	slash = strchr(copy, '/');
	if (slash != NULL)
		*slash++ = '\0';
	network->family = strchr(copy, ':') != NULL ? AF_INET6 : AF_INET;
	if (inet_pton(network->family, copy, network->bytes) != 1)
		return false;
	most = network->family == AF_INET6 ? 128 : 32;
	network->bits = slash != NULL ? strtol(slash, &end, 10) : most;
	return network->bits >= 0 && network->bits <= most &&
		(slash == NULL || (end > slash && *end == '\0'));
}

static bool
contains(const Network *network, int family, const unsigned char *bytes)
{
	int			whole = network->bits / 8;
	int			rest = network->bits % 8;

	return network->family == family && memcmp(network->bytes, bytes, whole) == 0 &&
		(rest == 0 || (network->bytes[whole] ^ bytes[whole]) >> (8 - rest) == 0);
}

/* The address of IPv4 that one of IPv6 stands for, or NULL. */
static const unsigned char *
embedded(const unsigned char *bytes)
{
	static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
	static const unsigned char nat64[12] = {0, 0x64, 0xff, 0x9b};
	static const unsigned char to4[2] = {0x20, 0x02};

	if (memcmp(bytes, mapped, 12) == 0 || memcmp(bytes, nat64, 12) == 0)
		return bytes + 12;
	return memcmp(bytes, to4, 2) == 0 ? bytes + 2 : NULL;
}

/* Is it a list of addresses, with commas between them? */
bool
webhook_address_check(const char *list)
{
	Network		network;

	for (size_t length; *list != '\0'; list += length + (list[length] == ','))
	{
		length = strcspn(list, ",");
		if (!parse(list, length, &network))
			return false;
	}
	return true;
}

/* May a socket be connected to this address? */
bool
webhook_address_allowed(const struct sockaddr *address, const char *list)
{
	int			family = address->sa_family;
	const unsigned char *bytes;
	Network		network;

	if (family == AF_INET)
		bytes = (const unsigned char *) &((const struct sockaddr_in *) address)->sin_addr;
	else if (family == AF_INET6)
		bytes = (const unsigned char *) &((const struct sockaddr_in6 *) address)->sin6_addr;
	else
		return false;
	if (family == AF_INET6 && embedded(bytes) != NULL)
	{
		bytes = embedded(bytes);
		family = AF_INET;
	}
	for (size_t length; *list != '\0'; list += length + (list[length] == ','))
	{
		length = strcspn(list, ",");
		if (parse(list, length, &network) && contains(&network, family, bytes))
			return true;
	}
	if (family == AF_INET6 && bytes[0] >> 5 != 1)
		return false;
	for (size_t i = 0; i < lengthof(special); i++)
		if (parse(special[i], strlen(special[i]), &network) && contains(&network, family, bytes))
			return false;
	return true;
}
