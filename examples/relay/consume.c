/*
 * consume.c: a consumer of a stream that feedpub-relay fills.
 *
 *	cc consume.c -o consume $(pkg-config --cflags --libs libnats)
 *	./consume nats://127.0.0.1:4222 'outbox.>' [N]
 *
 * Prints each message once it is acknowledged, as type, key and data; ends after
 * N of them, or never.  The server keeps how far the consumer "example" is.
 *
 * The stream has each entry once, but a consumer that ends between its work and
 * the acknowledgement is given the message again.  A consumer whose work is a
 * transaction of its own keeps the stream's sequence in it: what is not larger
 * has been done.  The sequence, as the cursor in "ce-id", grows with each message.
 */
#include <nats/nats.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FETCH 100
#define WAIT 5000				/* ms */

static void
end(const char *what, natsStatus status)
{
	if (status == NATS_OK)
		return;
	fprintf(stderr, "consume: %s: %s\n", what, natsStatus_GetText(status));
	exit(1);
}

static const char *
header(natsMsg *message, const char *name)
{
	const char *value = NULL;

	return natsMsgHeader_Get(message, name, &value) == NATS_OK ? value : "";
}

int
main(int argc, char **argv)
{
	natsConnection *connection = NULL;
	natsSubscription *subscription = NULL;
	jsCtx	   *js = NULL;
	jsSubOptions options;
	long		left = argc > 3 ? atol(argv[3]) : -1;
	uint64_t	done = 0;		/* keep it with what the work has changed */

	if (argc < 3)
	{
		fprintf(stderr, "usage: consume URL SUBJECT [N]\n");
		return 2;
	}
	end("connect", natsConnection_ConnectTo(&connection, argv[1]));
	end("JetStream", natsConnection_JetStream(&js, connection, NULL));
	jsSubOptions_Init(&options);
	options.Config.MaxAckPending = FETCH;
	end("subscribe", js_PullSubscribe(&subscription, js, argv[2], "example", NULL, &options, NULL));
	while (left != 0)
	{
		natsMsgList list = {0};
		natsStatus	status = natsSubscription_Fetch(&list, subscription, left > 0 && left < FETCH ? (int) left : FETCH,
													WAIT, NULL);

		/* nothing new */
		if (status == NATS_TIMEOUT)
			continue;
		end("fetch", status);
		for (int i = 0; i < list.Count; i++)
		{
			natsMsg    *message = list.Msgs[i];
			jsMsgMetaData *about = NULL;

			end("metadata", natsMsg_GetMetaData(&about, message));
			if (about->Sequence.Stream > done)
			{
				done = about->Sequence.Stream;
				printf("%s %s %.*s\n", header(message, "ce-type"), header(message, "ce-subject"),
					   natsMsg_GetDataLength(message), natsMsg_GetData(message));
				fflush(stdout);
				if (left > 0)
					left--;
			}
			jsMsgMetaData_Destroy(about);
			end("acknowledge", natsMsg_AckSync(message, NULL, NULL));
		}
		natsMsgList_Destroy(&list);
	}
	natsSubscription_Destroy(subscription);
	jsCtx_Destroy(js);
	natsConnection_Destroy(connection);
	nats_Close();
	return 0;
}
