/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  The settings, feedpub.*.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "feedpub.h"

int			feedpub_max_page_rows = 10000;

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

	MarkGUCPrefixReserved("feedpub");
}
