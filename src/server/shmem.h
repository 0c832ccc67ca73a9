/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  The structs in shared memory, for shmem.c, shmem_delivery.c,
 *	  shmem_listen.c, shmem_mark.c and shmem_worker.c.
 *
 * The head of shmem.c says which lock protects what.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_SHMEM_H
#define FEEDPUB_SHMEM_H

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/spin.h"

#include "server/server.h"

#define NWAITERS		32

/* A feed whose batches are announced: shmem_listen.c. */
typedef struct ListenedFeed
{
	Oid			feed;
	TimestampTz until;
} ListenedFeed;

struct FeedpubDatabase
{
	slock_t		mutex;
	Oid			dbid;			/* by the struct's mutex; InvalidOid: free */
	int			worker_pid;		/* 0: no worker */
	Latch	   *worker_latch;
	TimestampTz launched_at;	/* when a worker was last asked for */
	bool		wanted;			/* there were feeds at the last look */
	bool		stopped;		/* by hand: no process starts it */
	bool		refused;		/* there was no room for one */
	bool		all_dirty;		/* more feeds have news than fit below */
	int			ndirty;
	Oid			dirty[FEEDPUB_MAX_DIRTY];
	int			nprepared;
	FeedpubPrepared prepared[FEEDPUB_MAX_PREPARED];
	ListenedFeed listened[FEEDPUB_MAX_LISTENED];
	TimestampTz all_listened_until;

	/* for feedpub.workers */
	TimestampTz started_at;		/* the worker that is there */
	FeedpubWorkerStats stats;
	TimestampTz error_at;
	Oid			error_feed;
	int			error_encoding;
	char		error[FEEDPUB_ERROR_LENGTH];
};

typedef struct FeedpubShared
{
	slock_t		mutex;
	pg_atomic_uint64 start;		/* id of the server start; 0: not drawn yet */
	Latch	   *launcher_latch; /* by the mutex; NULL: there is none */
	FeedpubDatabase databases[FEEDPUB_MAX_DATABASES];
	ConditionVariable waiters[2][NWAITERS]; /* by FeedpubWaits and a hash of
											 * database and feed */
} FeedpubShared;

/* The deliveries of a shard, and when they were written; 0: free. */
typedef struct CountedShard
{
	uint64		used;
	FeedpubDeliveries deliveries;
} CountedShard;

typedef struct FeedpubCounted
{
	slock_t		mutex;
	uint64		clock;			/* counts what is written */
	CountedShard shards[FEEDPUB_MAX_DELIVERIES];
} FeedpubCounted;

extern FeedpubShared *feedpub_shared;	/* NULL: there is none */
extern FeedpubDatabase *feedpub_database;	/* ours; NULL: not known */

extern FeedpubCounted *feedpub_counted; /* NULL: there is none */

extern void feedpub_shmem_attach(void);
extern void feedpub_shmem_wake_all(void);

#endif							/* FEEDPUB_SHMEM_H */
