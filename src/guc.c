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

#include "feedpub.h"

int			feedpub_max_page_rows = 10000;
int			feedpub_max_batch_transactions = 1000;
int			feedpub_publish_synchronous_commit = SYNCHRONOUS_COMMIT_ON;

/* the values of synchronous_commit, without its synonyms */
static const struct config_enum_entry commit_options[] = {
	{"local", SYNCHRONOUS_COMMIT_LOCAL_FLUSH, false},
	{"remote_write", SYNCHRONOUS_COMMIT_REMOTE_WRITE, false},
	{"remote_apply", SYNCHRONOUS_COMMIT_REMOTE_APPLY, false},
	{"on", SYNCHRONOUS_COMMIT_ON, false},
	{"off", SYNCHRONOUS_COMMIT_OFF, false},
	{NULL, 0, false}
};

/*
 * Define the settings.  Called once, from _PG_init().
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
							1000,
							1, 1000000,
							PGC_SUSET,
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
 * The name of the synchronous_commit to publish with.
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
