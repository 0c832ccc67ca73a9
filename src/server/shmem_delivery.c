/*-------------------------------------------------------------------------
 *
 * shmem_delivery.c
 *	  The last deliveries of each shard of a subscription.
 *
 * A consumer that fails or is killed takes its transaction with it, so what a
 * poll has delivered is counted here, where a rollback does not reach it.
 * subscription/repeat.c says what is made of it.
 *
 * There is room for FEEDPUB_MAX_DELIVERIES shards, of all databases together.  A shard
 * is in one of the WINDOW entries from its hash on.  If all of them are others',
 * it takes the one that was written least recently, and the count of that shard
 * begins again.  A restart of the server forgets all of them.
 *
 * A poll reads an entry, and writes it later.  If two processes poll a shard at the same time, one of the two may
 * not be counted.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "server/shmem.h"

#define WINDOW		16

static CountedShard *find_entry(uint64 shard, bool take);

/*
 * Copy what is known of a shard; all is zero if nothing is.
 */
void
feedpub_shmem_get_deliveries(uint64 shard, FeedpubDeliveries *deliveries)
{
	CountedShard *entry;

	MemSet(deliveries, 0, sizeof(FeedpubDeliveries));
	deliveries->shard = shard;
	feedpub_shmem_attach();
	if (feedpub_shared == NULL)
		return;
	feedpub_shmem_lock(LW_SHARED);
	entry = find_entry(shard, false);
	if (entry != NULL)
		*deliveries = entry->deliveries;
	feedpub_shmem_unlock();
}

void
feedpub_shmem_set_deliveries(const FeedpubDeliveries *deliveries)
{
	CountedShard *entry;

	feedpub_shmem_attach();
	if (feedpub_shared == NULL)
		return;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	entry = find_entry(deliveries->shard, true);
	entry->deliveries = *deliveries;
	entry->used = ++feedpub_shared->clock;
	feedpub_shmem_unlock();
}

/*
 * Nothing is known of a shard any more.
 */
void
feedpub_shmem_forget_deliveries(uint64 shard)
{
	CountedShard *entry;

	feedpub_shmem_attach();
	if (feedpub_shared == NULL)
		return;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	entry = find_entry(shard, false);
	if (entry != NULL)
		entry->used = 0;
	feedpub_shmem_unlock();
}

/*
 * The entry of a shard.  If it has none, one is taken for it, or NULL is
 * returned.
 */
static CountedShard *
find_entry(uint64 shard, bool take)
{
	CountedShard *oldest = NULL;

	for (int i = 0; i < WINDOW; i++)
	{
		CountedShard *entry = &feedpub_shared->shards[(shard + i) % FEEDPUB_MAX_DELIVERIES];

		if (entry->used != 0 && entry->deliveries.shard == shard)
			return entry;
		if (oldest == NULL || entry->used < oldest->used)
			oldest = entry;
	}
	return take ? oldest : NULL;
}
