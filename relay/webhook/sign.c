/*-------------------------------------------------------------------------
 *
 * sign.c
 *	  Signatures of Standard Webhooks: HMAC with SHA-256 of "id.timestamp.body".
 *
 * A file has a secret on each line: whsec_ and the base64 of 24 to 64 bytes.  A
 * message has a signature by each of them, so that receivers can go from one
 * secret to the next.
 *
 *-------------------------------------------------------------------------
 */
#include "webhook/webhook.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "whsec_"
#define LEAST_BYTES 24

static int	decode(unsigned char *bytes, const char *text, size_t length);

/* The bytes of a secret, and how many; 0 if it is none. */
static int
decode(unsigned char *bytes, const char *text, size_t length)
{
	unsigned char block[3 * WEBHOOK_SECRET_BYTES];
	int			n;

	if (length < strlen(PREFIX) || strncmp(text, PREFIX, strlen(PREFIX)) != 0)
		return 0;
	text += strlen(PREFIX);
	length -= strlen(PREFIX);
	if (length == 0 || length % 4 != 0 || length > 2 * WEBHOOK_SECRET_BYTES)
		return 0;
	n = EVP_DecodeBlock(block, (const unsigned char *) text, length);
	for (size_t i = length; n > 0 && text[i - 1] == '=' && i > length - 2; i--)
		n--;
	if (n < LEAST_BYTES || n > WEBHOOK_SECRET_BYTES)
		n = 0;
	memcpy(bytes, block, n);
	OPENSSL_cleanse(block, sizeof(block));
	return n;
}

/* Read secrets; false if there are none, or one is wrong, as logged. */
bool
webhook_keys_read(WebhookKeys *keys, const char *file)
{
	char	   *content = relay_config_file(file);
	const char *problem = NULL;

	keys->count = 0;
	if (content == NULL)
		return false;
	for (char *line = content; problem == NULL && *line != '\0';)
	{
		size_t		length = strcspn(line, " \t\r\n");

		if (keys->count == WEBHOOK_SECRETS)
			problem = "has too many secrets";
		else if ((keys->lengths[keys->count] = decode(keys->bytes[keys->count], line, length)) == 0)
			problem = "has a line that is no secret: whsec_ and the base64 of 24 to 64 bytes";
		else
			keys->count++;
		line += length;
		line += strspn(line, " \t\r\n");
	}
	if (problem == NULL && keys->count == 0)
		problem = "has no secret";
	if (problem != NULL)
		base_log(BASE_LOG_ERROR, "file \"%s\" %s", file, problem);
	OPENSSL_cleanse(content, strlen(content));
	free(content);
	return problem == NULL;
}

/* Add the value of webhook-signature: a signature by each secret. */
void
webhook_sign(BaseText *out, const WebhookKeys *keys, const char *id,
			 int64_t timestamp, const char *body, size_t length)
{
	BaseText	text = {0};

	base_text_print(&text, "%s.%" PRId64 ".", id, timestamp);
	base_text_add(&text, body, length);
	for (int i = 0; i < keys->count; i++)
	{
		unsigned char mac[EVP_MAX_MD_SIZE];
		unsigned char base64[2 * EVP_MAX_MD_SIZE];
		unsigned	size;

		if (HMAC(EVP_sha256(), keys->bytes[i], keys->lengths[i],
				 (unsigned char *) text.data, text.length, mac, &size) == NULL)
			abort();
		EVP_EncodeBlock(base64, mac, size);
		base_text_print(out, "%sv1,%s", i > 0 ? " " : "", (char *) base64);
	}
	free(text.data);
}
