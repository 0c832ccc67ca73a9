/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  What shared memory holds, for shmem.c, shmem_delivery.c, shmem_listen.c,
 *	  shmem_mark.c and shmem_worker.c.
 *
 * The rules.  One LWLock, feedpub_shared->lock, protects all of it, but for the
 * id of the server start, which is atomic, and the queues, which have locks of
 * their own.  While a process holds it, it only reads and writes this memory: it
 * raises no error, waits for nothing and takes no other lock, so it may take this
 * one wherever an LWLock can be taken, and in the callbacks of a transaction's
 * end.  It sets latches and wakes queues after it has given the lock back.  A
 * latch is in a PGPROC, which stays for ever: one of a process that has just
 * ended wakes another one for nothing.  A backend keeps a pointer to its
 * database's entry, which is given back when that database is gone, and with it
 * all its backends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_SHMEM_H
#define FEEDPUB_SHMEM_H

#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/lwlock.h"

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
	FeedpubWorkerInfo worker;	/* whose database; InvalidOid: free */
	Latch	   *latch;			/* of the worker that is there */
	TimestampTz launched_at;	/* when a worker was last asked for */
	bool		refused;		/* there was no room for one */
	bool		all_dirty;		/* more feeds have news than fit below */
	int			ndirty;
	Oid			dirty[FEEDPUB_MAX_DIRTY];
	bool		prepared;		/* transactions have been, since the last look */
	ListenedFeed listened[FEEDPUB_MAX_LISTENED];
	TimestampTz all_listened_until;
};

/* The deliveries of a shard, and when they were written; 0: free. */
typedef struct CountedShard
{
	uint64		used;
	FeedpubDeliveries deliveries;
} CountedShard;

typedef struct FeedpubShared
{
	LWLock		lock;
	pg_atomic_uint64 start;		/* id of the server start; 0: not drawn yet */
	Latch	   *launcher_latch; /* NULL: there is none */
	FeedpubDatabase databases[FEEDPUB_MAX_DATABASES];
	uint64		clock;			/* counts the deliveries that are written */
	CountedShard shards[FEEDPUB_MAX_DELIVERIES];
	ConditionVariable waiters[NWAITERS];	/* by a hash of database and feed */
} FeedpubShared;

extern FeedpubShared *feedpub_shared;	/* NULL: there is none */
extern FeedpubDatabase *feedpub_database;	/* ours; NULL: not known */

extern void feedpub_shmem_attach(void);
extern void feedpub_shmem_lock(LWLockMode mode);
extern void feedpub_shmem_unlock(void);
extern void feedpub_shmem_wake_all(void);

#endif							/* FEEDPUB_SHMEM_H */
