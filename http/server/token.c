/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Whose request it is: JSON Web Tokens.
 *
 * "Authorization: Bearer" and a token, as PostgREST takes it: the claim "role"
 * is the role of the request, and all claims are in request.jwt.claims.  A
 * token without a role has the anonymous role.  A token is taken from nowhere
 * else, for URLs are in logs and in caches.
 *
 * The key says which algorithms are good, not the token: a secret is for
 * HS256, a public key for RS256 or ES256, whichever it is of.  So a public key
 * is never a secret, and "none" is refused.
 *
 * libjwt reads the key anew for each signature that it checks, which takes
 * longer than a page for a public key: 0.3 to 0.4 ms.  So tokens whose signature
 * is good are kept, until settings are read again.  All else of a token is
 * checked each time, its times too.
 *
 * A role that the login role may not take is refused by the database, when the
 * request runs: pool.c.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <errno.h>
#include <jwt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* s by which the clocks of this server and the issuer may differ */
#define LEEWAY 30

/* How many tokens are kept; those that are longer than this share one slot. */
#define KEPT_TOKENS 1024
#define LONG_TOKEN 2048

/* A token whose signature is good. */
typedef struct KeptToken
{
	char	   *token;			/* or NULL */
	jwt_t	   *jwt;
} KeptToken;

static KeptToken kept_tokens[KEPT_TOKENS + 1];

static const char *take_token(HttpRequest *request, const char *token,
							  unsigned *status);
static jwt_t *check_signature(const char *token, const HttpKey *key);
static KeptToken *slot_of(const char *token);
static bool same_secret(const char *a, const char *b);
static void forget(KeptToken *kept);
static bool has_object(jwt_t *jwt);
static const char *check_claims(HttpRequest *request, jwt_t *jwt);
static bool take_time(jwt_t *jwt, const char *claim, double *time, bool *is_there);
static bool has_critical(jwt_t *jwt);
static bool is_for(jwt_t *jwt, const char *audience);
static bool has_element(const char *json, const char *wanted);
static const char *take_role(HttpRequest *request, jwt_t *jwt, unsigned *status);

/* Take the role of a request.  Returns false if it is refused, and answered. */
bool
http_token_take(HttpRequest *request)
{
	const char *header = http_header(request, "Authorization");
	const char *problem = NULL;
	unsigned	status = 401;
	BaseText	claims = {0};

	request->is_private = header != NULL;
	if (header != NULL && strncasecmp(header, "Bearer", 6) == 0 &&
		(header[6] == ' ' || header[6] == '\0'))
	{
		request->has_token = true;
		if (http_header_count(request, "Authorization") > 1)
		{
			status = 400;
			problem = "there is more than one Authorization header";
		}
		else
			problem = take_token(request, header + 6 + strspn(header + 6, " "),
								 &status);
	}
	else if (*http_config()->database.anonymous_role == '\0')
		problem = "a token is needed";
	else
	{
		request->role = base_copy(http_config()->database.anonymous_role);
		base_text_print(&claims, "{\"role\": ");
		base_text_json(&claims, request->role);
		base_text_print(&claims, "}");
		request->claims = claims.data;
	}
	if (problem != NULL)
		http_problem(request, status, problem);
	return problem == NULL;
}

/* Take a token.  Returns what is wrong, or NULL. */
static const char *
take_token(HttpRequest *request, const char *token, unsigned *status)
{
	const HttpKey *key = http_config()->key;
	const char *problem;
	jwt_t	   *jwt;
	jwt_alg_t	algorithm;

	if (key == NULL)
		return "this server takes no tokens";
	jwt = check_signature(token, key);
	if (jwt == NULL)
		return "the token is not valid";
	algorithm = jwt_get_alg(jwt);
	if (key->is_public ?
			algorithm != JWT_ALG_RS256 && algorithm != JWT_ALG_ES256 :
			algorithm != JWT_ALG_HS256)
		problem = "the token is not valid";
	else if (!has_object(jwt))
		problem = "the token is not valid";
	else if (has_critical(jwt))
		problem = "the token has an extension that is not known";
	else
		problem = check_claims(request, jwt);
	if (problem == NULL)
		problem = take_role(request, jwt, status);
	if (problem == NULL)
		request->claims = jwt_get_grants_json(jwt, NULL);
	return problem;
}

/* The parts of a token, which stay kept; NULL if its signature is not good. */
static jwt_t *
check_signature(const char *token, const HttpKey *key)
{
	KeptToken  *kept = slot_of(token);
	jwt_t	   *jwt;

	if (kept->token != NULL && same_secret(kept->token, token))
		return kept->jwt;
	if (jwt_decode(&jwt, token, key->bytes, key->length) != 0)
		return NULL;
	forget(kept);
	kept->token = base_copy(token);
	kept->jwt = jwt;
	return jwt;
}

static KeptToken *
slot_of(const char *token)
{
	unsigned	hash = 0;
	const char *c = token;

	for (; *c != '\0'; c++)
		hash = hash * 31 + (unsigned char) *c;
	return &kept_tokens[c - token > LONG_TOKEN ? KEPT_TOKENS : hash % KEPT_TOKENS];
}

/* Are they equal?  How long that takes does not tell how far they are. */
static bool
same_secret(const char *a, const char *b)
{
	size_t		length = strlen(a);
	unsigned char difference = 0;

	if (strlen(b) != length)
		return false;
	for (size_t i = 0; i < length; i++)
		difference |= a[i] ^ b[i];
	return difference == 0;
}

static void
forget(KeptToken *kept)
{
	if (kept->token == NULL)
		return;
	free(kept->token);
	jwt_free(kept->jwt);
	kept->token = NULL;
}

/* Settings have been read again: the key may be another one. */
void
http_token_forget(void)
{
	for (int i = 0; i < KEPT_TOKENS + 1; i++)
		forget(&kept_tokens[i]);
}

/* Are the claims an object?  libjwt takes an array too. */
static bool
has_object(jwt_t *jwt)
{
	char	   *json = jwt_get_grants_json(jwt, NULL);
	bool		is_object = json != NULL && *json == '{';

	free(json);
	return is_object;
}

/* Must one be understood that is not?  None is. */
static bool
has_critical(jwt_t *jwt)
{
	char	   *json = jwt_get_headers_json(jwt, "crit");
	bool		is_there = json != NULL;

	free(json);
	return is_there;
}

static const char *
check_claims(HttpRequest *request, jwt_t *jwt)
{
	const char *audience = http_config()->jwt_audience;
	double		now = time(NULL);
	double		at;
	bool		is_there;

	if (!take_time(jwt, "exp", &at, &is_there))
		return "a time of the token is not valid";
	if (is_there)
	{
		if (now >= at + LEEWAY)
			return "the token has expired";
		/* of one that lasts for ever, no more is said */
		if (at < INT32_MAX * 1000.0)
			request->expires = (int64_t) at + LEEWAY;
	}
	if (!take_time(jwt, "nbf", &at, &is_there))
		return "a time of the token is not valid";
	if (is_there && now < at - LEEWAY)
		return "the token is not valid yet";
	if (*audience != '\0' && !is_for(jwt, audience))
		return "the token is for another audience";
	return NULL;
}

/* Take a claim that is a time; false if it is anything else. */
static bool
take_time(jwt_t *jwt, const char *claim, double *time, bool *is_there)
{
	char	   *json = jwt_get_grants_json(jwt, claim);
	char	   *end;

	*is_there = json != NULL;
	if (json == NULL)
		return true;
	*time = strtod(json, &end);
	if (end == json || *end != '\0')
		end = NULL;
	free(json);
	return end != NULL;
}

/* Is this the claim "aud", or one of its elements? */
static bool
is_for(jwt_t *jwt, const char *audience)
{
	char	   *json = jwt_get_grants_json(jwt, "aud");
	BaseText	wanted = {0};
	bool		found;

	if (json == NULL)
		return false;
	base_text_json(&wanted, audience);
	found = strcmp(json, wanted.data) == 0 || has_element(json, wanted.data);
	free(wanted.data);
	free(json);
	return found;
}

/*
 * Has an array this string?  Only its own elements count: not those of an array
 * in it, and no part of another string.  libjwt has made the JSON, so it is
 * valid, and a string is written in one way.
 */
static bool
has_element(const char *json, const char *wanted)
{
	int			depth = 0;
	size_t		length = strlen(wanted);

	if (*json != '[')
		return false;
	for (const char *c = json; *c != '\0'; c++)
	{
		const char *begin = c;

		if (*c == '[' || *c == '{')
			depth++;
		else if (*c == ']' || *c == '}')
			depth--;
		if (*c != '"')
			continue;
		for (c++; *c != '"'; c++)
			if (*c == '\\')
				c++;
		if (depth == 1 && (size_t) (c + 1 - begin) == length &&
			strncmp(begin, wanted, length) == 0)
			return true;
	}
	return false;
}

/*
 * Take the role.  "" and "none" would be the login role, so they are roles
 * that may not be taken.
 */
static const char *
take_role(HttpRequest *request, jwt_t *jwt, unsigned *status)
{
	const char *claim = http_config()->jwt_role_claim;
	const char *role = jwt_get_grant(jwt, claim);
	char	   *other = role == NULL ? jwt_get_grants_json(jwt, claim) : NULL;

	if (other != NULL)
	{
		free(other);
		return "the role of the token is not a string";
	}
	if (role == NULL)
	{
		role = http_config()->database.anonymous_role;
		if (*role == '\0')
			return "the token has no role";
		jwt_add_grant(jwt, claim, role);
	}
	if (*role == '\0' || strcmp(role, "none") == 0)
	{
		*status = 403;
		return "the role may not be taken";
	}
	request->role = base_copy(role);
	request->subject = base_copy(jwt_get_grant(jwt, "sub"));
	return NULL;
}

/* Has the token of a request expired since? */
bool
http_token_expired(const HttpRequest *request)
{
	return request->expires > 0 && time(NULL) >= request->expires;
}

/* A deadline, in ms by base_now(), or when the token expires if that is before. */
int64_t
http_token_deadline(const HttpRequest *request, int64_t deadline)
{
	int64_t		left;

	if (request->expires == 0)
		return deadline;
	left = (request->expires - time(NULL)) * 1000;
	if (left < 0)
		left = 0;
	return base_now() + left < deadline ? base_now() + left : deadline;
}
