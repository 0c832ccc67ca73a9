/*-------------------------------------------------------------------------
 *
 * forgery.c
 *	  Against forged requests: the secret that a form of a page has, which a
 *	  page of another origin cannot know.
 *
 * A browser sends a form of any page to this server, and a proxy, or the address
 * alone, may give that request rights.  So a form has a secret: an HMAC of what
 * it is for, and as whom it was shown, with a key that is made when the process
 * starts.  Nothing is kept for it.  A form that was shown by another process, or
 * before a start, is refused, and its page says so.
 *
 * libjwt makes the HMAC, as the signature of a JWT of which nothing else is sent.
 * Its key is another one than that of requests, so it is good for nothing else.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <jwt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* as many bytes as HS256 has */
#define KEY_BYTES 32

static const unsigned char *key_of_process(void);

/* The secret of a form, for free(). */
char *
http_forgery_secret(const HttpRequest *request, const char *purpose)
{
	jwt_t	   *jwt;
	char	   *signed_text;
	char	   *secret;

	if (jwt_new(&jwt) != 0 ||
		jwt_set_alg(jwt, JWT_ALG_HS256, key_of_process(), KEY_BYTES) != 0 ||
		jwt_add_grant(jwt, "purpose", purpose) != 0 ||
		jwt_add_grant(jwt, "role", request->role) != 0 ||
		(request->subject != NULL && jwt_add_grant(jwt, "sub", request->subject) != 0) ||
		(signed_text = jwt_encode_str(jwt)) == NULL)
		abort();				/* out of memory */
	secret = base_copy(strrchr(signed_text, '.') + 1);
	free(signed_text);
	jwt_free(jwt);
	return secret;
}

/* Is it that secret?  How long that takes does not tell how far it is right. */
bool
http_forgery_check(const HttpRequest *request, const char *purpose, const char *secret)
{
	char	   *right = http_forgery_secret(request, purpose);
	size_t		length = strlen(right);
	unsigned char difference = secret == NULL || strlen(secret) != length;

	for (size_t i = 0; difference == 0 && i < length; i++)
		difference |= right[i] ^ secret[i];
	free(right);
	return difference == 0;
}

static const unsigned char *
key_of_process(void)
{
	static unsigned char key[KEY_BYTES];
	static bool is_made;

	if (!is_made && getrandom(key, KEY_BYTES, 0) != KEY_BYTES)
		abort();
	is_made = true;
	return key;
}
