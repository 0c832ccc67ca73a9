/*
 * kafka_mock.c: librdkafka's mock cluster of Kafka in a process of its own, for
 * test/relay/110_kafka_errors.pl.  It prints its addresses, and takes lines from
 * stdin: "API ERROR N" makes the next N requests of an API fail, by their numbers,
 * and it prints "done".
 *
 * The mock of librdkafka 2.0.2 keeps no committed offsets and does not fence.
 *
 *	cc kafka_mock.c -o kafka_mock $(pkg-config --cflags --libs rdkafka)
 */
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <stdio.h>

#define BROKERS 3

int
main(void)
{
	char		problem[256];
	int			api;
	int			error;
	int			n;
	rd_kafka_t *client = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), problem, sizeof(problem));
	rd_kafka_mock_cluster_t *cluster = client != NULL ? rd_kafka_mock_cluster_new(client, BROKERS) : NULL;

	if (cluster == NULL)
		return 1;
	printf("%s\n", rd_kafka_mock_cluster_bootstraps(cluster));
	fflush(stdout);
	while (scanf("%d %d %d", &api, &error, &n) == 3)
	{
		while (n-- > 0)
			rd_kafka_mock_push_request_errors(cluster, (int16_t) api, 1, (rd_kafka_resp_err_t) error);
		printf("done\n");
		fflush(stdout);
	}
	rd_kafka_mock_cluster_destroy(cluster);
	rd_kafka_destroy(client);
	return 0;
}
