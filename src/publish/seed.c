/*-------------------------------------------------------------------------
 *
 * seed.c
 *	  The seed of a feed's batches and pages, and the id of the server start that
 *	  it is made of.
 *
 * Each start of the server as a primary draws 64 random bits when they are
 * first needed.  They are in shared memory, which does not survive a crash
 * restart: that is a new start.  So is a promotion: a standby draws none
 * before it is promoted.  All databases share one id.  If there is no room for
 * our shared memory, pages have the id 0, and each process makes batches as a
 * start of its own.
 *
 * What a server loses, in a crash or because it was not replicated, was made
 * by a start that does not go on: the server continues as another start.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"

#include "publish/publish.h"

static uint64 draw(void);

/*
 * A number of this server on a timeline, this database, and our tables in it.
 */
uint32
feedpub_seed_site(TimeLineID timeline)
{
	struct
	{
		uint64		system;
		TimeLineID	timeline;
		Oid			database;
		Oid			table;
		uint32		unused;
	} parts = {GetSystemIdentifier(), timeline, MyDatabaseId, feedpub_registry_table("_batch"), 0};

	return hash_bytes((const unsigned char *) &parts, sizeof(parts));
}

/*
 * The seed of a feed's batches, or of its pages, of this server start.
 *
 * Batches of another history have another one.  Two histories separate:
 *
 * - if a server goes on from an earlier state, which is another start of it
 *   (above);
 * - in feed_begin_history(), which gives the feed another random number;
 * - if a dump is restored, perhaps by the start that has made more batches
 *   since, into tables that are then new;
 * - with a copy of the database.
 *
 * Within one history, a start makes one batch of each number.  So number and
 * seed tell which batch it is; and the seed, the number and merged_from tell
 * which batches are in a merged one, whichever start has merged them.
 */
uint32
feedpub_seed_make(Oid feed, uint32 history, bool is_batch)
{
	static uint64 own = 0;
	struct
	{
		uint64		start;
		uint32		history;
		Oid			database;
		Oid			table;
		Oid			feed;
	} parts;					/* no padding */

	parts.start = feedpub_shmem_start(draw);
	if (parts.start == 0 && is_batch)
	{
		if (own == 0)
			own = draw();
		parts.start = own;
	}
	parts.history = history;
	parts.database = MyDatabaseId;
	parts.table = feedpub_registry_table("_batch");
	parts.feed = feed;
	return hash_bytes((const unsigned char *) &parts, sizeof(parts));
}

static uint64
draw(void)
{
	uint64		id = 0;

	while (id == 0)
	{
		if (!pg_strong_random(&id, sizeof(id)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
	}
	return id;
}
