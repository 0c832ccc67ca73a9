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

/* The settings that are numbers; their defaults are those of the variables. */
static const struct
{
	const char *name;
	int		   *value;
	int			min;
	int			max;
	GucContext	context;
	int			flags;
	const char *description;
	const char *more;
} numbers[] = {
	{"feedpub.max_page_rows", &feedpub_max_page_rows, 1, 1000000, PGC_SUSET, 0,
	 "Sets the largest number of rows in one page of a feed.",
	 "A reader that asks for more gets a page of this size."},
	{"feedpub.max_batch_transactions", &feedpub_max_batch_transactions, 1, 1000000, PGC_SUSET, 0,
	 "Sets how many transactions one batch may hold.",
	 "A larger backlog is cut into several batches."},
	{"feedpub.max_subscription_shards", &feedpub_max_subscription_shards, 0, INT_MAX, PGC_SUSET, 0,
	 "Sets how many shards the subscriptions of one role may have together.",
	 "Superusers may make any number."},
	{"feedpub.naptime", &feedpub_naptime, 10, INT_MAX / 1000, PGC_SIGHUP, GUC_UNIT_MS,
	 "Sets the time after which an idle worker looks at its database.",
	 "A commit wakes it at once.  Within this time it sees that the last feed is gone, or that DROP DATABASE or a similar command waits for the database."},
	{"feedpub.publish_interval", &feedpub_publish_interval, 0, 60000, PGC_SIGHUP, GUC_UNIT_MS,
	 "Sets the time between two batches of a feed under load.",
	 "Commits gather that long in one batch; a feed with little traffic is published at once."},
	{"feedpub.read_wait", &feedpub_read_wait, 0, 60000, PGC_USERSET, GUC_UNIT_MS,
	 "Sets how long a read that finds nothing waits for committed rows to be published.",
	 "Zero turns waiting off.  If nothing has been committed, a read does not wait."},
	{"feedpub.batch_retention", &feedpub_batch_retention, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_S,
	 "Sets the age after which batches may be merged.",
	 "If a cursor is inside a merged batch, all of the batch may be delivered again."},
	{"feedpub.max_unmerged_batches", &feedpub_max_unmerged_batches, 0, INT_MAX, PGC_SIGHUP, 0,
	 "Sets how many batches of a feed may be kept as they were published.",
	 "Older batches are merged, whatever their age."},
	{"feedpub.tombstone_retention", &feedpub_tombstone_retention, -1, INT_MAX, PGC_SIGHUP, GUC_UNIT_S,
	 "Sets the age after which deletes in table feeds expire.",
	 "A cursor from before an expired delete is refused.  -1 keeps deletes forever."},
	{"feedpub.stamping_rate", &feedpub_stamping_rate, 0, INT_MAX, PGC_SIGHUP, 0,
	 "Sets how many rows of partitions are stamped anew in a second, in the background.",
	 "Zero sets no limit."},
	{"feedpub.removal_rate", &feedpub_removal_rate, 0, INT_MAX, PGC_SIGHUP, 0,
	 "Sets how many rows or deletes before the floor of a feed are removed in a second, in the background.",
	 "Zero sets no limit."},
	{"feedpub.max_workers", &feedpub_max_workers, 0, FEEDPUB_MAX_DATABASES, PGC_SIGHUP, 0,
	 "Sets the number of databases that may have a worker at the same time.",
	 NULL},
};

/*
 * Define the settings.  _PG_init() calls this once.
 */
void
feedpub_guc_define(void)
{
	for (int i = 0; i < lengthof(numbers); i++)
		DefineCustomIntVariable(numbers[i].name, numbers[i].description, numbers[i].more,
								numbers[i].value, *numbers[i].value, numbers[i].min, numbers[i].max,
								numbers[i].context, numbers[i].flags, NULL, NULL, NULL);
	DefineCustomEnumVariable("feedpub.publish_synchronous_commit",
							 "Sets the synchronous_commit with which batches are published.", NULL,
							 &feedpub_publish_synchronous_commit, SYNCHRONOUS_COMMIT_ON, commit_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);

	MarkGUCPrefixReserved("feedpub");
}

/*
 * Set what a background process of a database needs, whatever the defaults of
 * the database and the role are.
 */
void
feedpub_guc_pin(void)
{
	static const char *const settings[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"transaction_timeout", "0"},	/* since 17 */
		{"search_path", "pg_catalog, pg_temp"},
	};

	for (int i = 0; i < lengthof(settings); i++)
	{
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
}
