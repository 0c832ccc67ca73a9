/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  The settings, feedpub.*.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "datatype/timestamp.h"
#include "utils/guc.h"

#include "base/base.h"

int			feedpub_max_page_rows = 10000;
int			feedpub_max_batch_transactions = 100;
int			feedpub_max_subscription_shards = 4096;
int			feedpub_naptime = 1000;
int			feedpub_publish_interval = 10;
int			feedpub_read_wait = 100;
int			feedpub_max_workers = 8;
int			feedpub_batch_retention = 7 * SECS_PER_DAY;
int			feedpub_max_unmerged_batches = 1000000;
int			feedpub_tombstone_retention = 7 * SECS_PER_DAY;
int			feedpub_stamping_rate = 5000;
int			feedpub_removal_rate = 20000;
int			feedpub_publish_synchronous_commit = SYNCHRONOUS_COMMIT_ON;

/* the values of synchronous_commit, without its synonyms */
static const struct config_enum_entry commit_options[] = {
	{"local", SYNCHRONOUS_COMMIT_LOCAL_FLUSH, false},
	{"remote_write", SYNCHRONOUS_COMMIT_REMOTE_WRITE, false},
	{"remote_apply", SYNCHRONOUS_COMMIT_REMOTE_APPLY, false},
	{"on", SYNCHRONOUS_COMMIT_ON, false},
	{"off", SYNCHRONOUS_COMMIT_OFF, false},
	{NULL, 0, false}};

/*
 * Define the settings.  _PG_init() calls this once.
 */
void
feedpub_guc_define(void)
{
	DefineCustomIntVariable("feedpub.max_page_rows",
							"Sets the largest number of rows in one page of a feed.",
							"A reader that asks for more gets a page of this size.",
							&feedpub_max_page_rows,
							10000,
							1, 1000000,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.max_batch_transactions",
							"Sets how many transactions one batch may hold.",
							"A larger backlog is cut into several batches.",
							&feedpub_max_batch_transactions,
							100,
							1, 1000000,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.max_subscription_shards",
							"Sets how many shards the subscriptions of one role may have together.",
							"Superusers may make any number.",
							&feedpub_max_subscription_shards,
							4096,
							0, INT_MAX,
							PGC_SUSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.naptime",
							"Sets the time after which an idle worker looks at its database.",
							"A commit wakes it at once.  Within this time it sees that the last feed is gone, or that DROP DATABASE or a similar command waits for the database.",
							&feedpub_naptime,
							1000,
							10, INT_MAX / 1000,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.publish_interval",
							"Sets the time between two batches of a feed under load.",
							"Commits gather that long in one batch; a feed with little traffic is published at once.",
							&feedpub_publish_interval,
							10,
							0, 60000,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.read_wait",
							"Sets how long a read that finds nothing waits for committed rows to be published.",
							"Zero turns waiting off.  If nothing has been committed, a read does not wait.",
							&feedpub_read_wait,
							100,
							0, 60000,
							PGC_USERSET,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.batch_retention",
							"Sets the age after which batches may be merged.",
							"If a cursor is inside a merged batch, all of the batch may be delivered again.",
							&feedpub_batch_retention,
							7 * SECS_PER_DAY,
							0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.max_unmerged_batches",
							"Sets how many batches of a feed may be kept as they were published.",
							"Older batches are merged, whatever their age.",
							&feedpub_max_unmerged_batches,
							1000000, 0, INT_MAX,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.tombstone_retention",
							"Sets the age after which deletes in table feeds expire.",
							"A cursor from before an expired delete is refused.  -1 keeps deletes forever.",
							&feedpub_tombstone_retention,
							7 * SECS_PER_DAY,
							-1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.stamping_rate",
							"Sets how many rows of partitions are stamped anew in a second, in the background.",
							"Zero sets no limit.",
							&feedpub_stamping_rate,
							5000,
							0, INT_MAX,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.removal_rate",
							"Sets how many rows or deletes before the floor of a feed are removed in a second, in the background.",
							"Zero sets no limit.",
							&feedpub_removal_rate,
							20000,
							0, INT_MAX,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("feedpub.max_workers",
							"Sets the number of databases that may have a worker at the same time.",
							NULL,
							&feedpub_max_workers,
							8,
							0, FEEDPUB_MAX_DATABASES,
							PGC_SIGHUP,
							0,
							NULL, NULL, NULL);

	DefineCustomEnumVariable("feedpub.publish_synchronous_commit",
							 "Sets the synchronous_commit with which batches are published.",
							 NULL,
							 &feedpub_publish_synchronous_commit,
							 SYNCHRONOUS_COMMIT_ON,
							 commit_options,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved("feedpub");
}

/*
 * The name of the synchronous_commit value with which batches are published.
 */
const char *
feedpub_guc_publish_commit_name(void)
{
	for (const struct config_enum_entry *entry = commit_options;
		 entry->name != NULL; entry++)
	{
		if (entry->val == feedpub_publish_synchronous_commit)
			return entry->name;
	}
	return "on";
}

/*
 * Set what a background process of a database needs, whatever the defaults of
 * the database and the role are.
 */
void
feedpub_guc_pin(void)
{
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off",
					PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("statement_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	if (GetConfigOption("transaction_timeout", true, false) != NULL)
		SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("search_path", "pg_catalog, pg_temp",
					PGC_SUSET, PGC_S_OVERRIDE);
}
