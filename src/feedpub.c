/*-------------------------------------------------------------------------
 *
 * feedpub.c
 *	  Start of the library: module magic, settings, caches.
 *
 * The library is loaded by the first call of one of its functions, or by
 * shared_preload_libraries.  Nothing here may fail if the preload line is
 * missing: an INSERT into a feed must not fail because that line was lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "admin/admin.h"

PG_MODULE_MAGIC_EXT(
		.name = "feedpub",
		.version = FEEDPUB_VERSION);

void		_PG_init(void);

void
_PG_init(void)
{
	feedpub_guc_define();
	feedpub_cache_init();
	feedpub_leftover_init();
	if (process_shared_preload_libraries_in_progress)
	{
		feedpub_shmem_preload();
		feedpub_launcher_register();
	}
}
