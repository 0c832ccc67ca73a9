/*-------------------------------------------------------------------------
 *
 * key.c
 *	  The key of tokens: a secret, or a public key.
 *
 *-------------------------------------------------------------------------
 */
#include "config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bytes of a secret: as many as HS256 has */
#define LEAST_SECRET 32

/* Read a key; NULL if it is none, which has been logged. */
HttpKey *
http_key_read(const char *name)
{
	HttpKey    *key = base_alloc(sizeof(HttpKey));
	FILE	   *file = fopen(name, "r");
	const char *problem = NULL;

	if (file == NULL)
	{
		base_log(BASE_LOG_ERROR, "could not open file \"%s\": %s", name,
				 strerror(errno));
		free(key);
		return NULL;
	}
	key->length = fread(key->bytes, 1, HTTP_MAX_KEY + 1, file);
	if (ferror(file))
		problem = "it could not be read";
	else if (key->length > HTTP_MAX_KEY)
		problem = "it is too long";
	fclose(file);

	key->bytes[key->length > HTTP_MAX_KEY ? HTTP_MAX_KEY : key->length] = '\0';
	if (problem == NULL && memmem(key->bytes, key->length, "-----BEGIN ", 11) != NULL)
	{
		key->is_public = true;
		if (strstr((char *) key->bytes, "-----BEGIN PUBLIC KEY-----") == NULL)
			problem = "of PEM, it must be a public key";
	}
	else if (problem == NULL)
	{
		if (key->length > 0 && key->bytes[key->length - 1] == '\n')
			key->length--;
		if (key->length > 0 && key->bytes[key->length - 1] == '\r')
			key->length--;
		if (key->length < LEAST_SECRET)
			problem = "a secret must have 32 bytes or more";
	}
	if (problem == NULL)
		return key;
	base_log(BASE_LOG_ERROR, "file \"%s\" has no key for tokens: %s", name, problem);
	free(key);
	return NULL;
}
