/*-------------------------------------------------------------------------
 *
 * server.h
 *	  Shared memory, and which databases have a worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_SERVER_H
#define FEEDPUB_SERVER_H

#include "storage/condition_variable.h"
#include "utils/timestamp.h"

#include "base/base.h"

struct		Latch;

/* What shared memory has on one database; its fields are in shmem.h. */
typedef struct FeedpubDatabase FeedpubDatabase;

#define FEEDPUB_MAX_DIRTY		48
#define FEEDPUB_MAX_LISTENED	64

/* What the workers of a database have done since the server started. */
typedef struct FeedpubWorkerStats
{
	int64		turns;			/* of the loop */
	int64		wakeups;		/* turns after the latch was set */
	int64		batches;		/* published */
	int64		transactions;	/* in them */
	int64		stamped;		/* rows, for feed_republish() */
	int64		errors;			/* steps that failed */
	int			failing;		/* feeds whose last attempt failed, now */
} FeedpubWorkerStats;

/* The size of the buffer for a worker's last error, in bytes. */
#define FEEDPUB_ERROR_LENGTH	256

/* The state of a database's worker. */
typedef enum FeedpubWorkerState
{
	FEEDPUB_WORKER_RUNNING,
	FEEDPUB_WORKER_NONE,		/* the next reader starts it */
	FEEDPUB_WORKER_STOPPED,		/* by hand */
	FEEDPUB_WORKER_REFUSED,		/* the server has no room for one */
} FeedpubWorkerState;

/* The worker of one database. */
typedef struct FeedpubWorkerInfo
{
	Oid			dbid;
	int			pid;			/* 0: no worker */
	bool		wanted;			/* there were feeds at the last look */
	bool		stopped;		/* by hand: no process starts it */
	TimestampTz started_at;		/* the worker that is there */
	FeedpubWorkerStats stats;
	TimestampTz error_at;		/* 0: there was none */
	Oid			error_feed;
	int			error_encoding;
	char		error[FEEDPUB_ERROR_LENGTH];
} FeedpubWorkerInfo;

/* how many shards of subscriptions have their deliveries counted */
#define FEEDPUB_MAX_DELIVERIES	256

/* The last deliveries of a shard: shmem_delivery.c, subscription/repeat.c. */
typedef struct FeedpubDeliveries
{
	uint64		shard;			/* a hash; 0: deliveries are not counted */
	uint64		first;			/* a hash of the entry that came first */
	int			count;			/* how often it did */
	int			alone;			/* and how often the page had no other */
	bool		small;			/* a page came again: pages have one entry */
	int64		until_batch;	/* up to this entry, where that page ended */
	int64		until_table;
	int64		until_pos;
} FeedpubDeliveries;

/* in launcher.c */
extern bool feedpub_launcher_ensure(Oid relid);
extern bool feedpub_launcher_is_starting(void);
extern int	feedpub_launcher_errdetail(void);
extern void feedpub_launcher_warn(Oid relid);
struct		BackgroundWorker;
extern void feedpub_launcher_describe(struct BackgroundWorker *worker, const char *type,
									  const char *function);
extern bool feedpub_launcher_start_worker(FeedpubDatabase *entry, Oid dbid, int retry_ms, int elevel);
extern void feedpub_launcher_register(void);

/* in shmem.c */
extern void feedpub_shmem_preload(void);
extern bool feedpub_shmem_exists(void);
extern uint64 feedpub_shmem_start(uint64 (*draw)(void));
extern FeedpubDatabase *feedpub_shmem_database(void);
extern FeedpubDatabase *feedpub_shmem_database_of(Oid dbid);
extern int	feedpub_shmem_read_workers(FeedpubWorkerInfo *workers);
extern void feedpub_shmem_reclaim(void);
extern void feedpub_shmem_set_launcher(struct Latch *latch);
extern ConditionVariable *feedpub_shmem_waiters(Oid feed);
extern void feedpub_shmem_wake_waiters(Oid feed);

/* in shmem_delivery.c */
extern void feedpub_shmem_get_deliveries(uint64 shard, FeedpubDeliveries *deliveries);
extern void feedpub_shmem_set_deliveries(const FeedpubDeliveries *deliveries);
extern void feedpub_shmem_forget_deliveries(uint64 shard);

/* in shmem_listen.c */
extern bool feedpub_shmem_listen(Oid feed, TimestampTz until);
extern bool feedpub_shmem_is_listened(Oid feed);

/* in shmem_mark.c */
extern void feedpub_shmem_mark(const Oid *feeds, int nfeeds, bool all, bool prepared);
extern int	feedpub_shmem_read_marks(Oid *dirty, bool *all, bool *prepared);
extern void feedpub_shmem_take_mark(Oid feed);

/* in shmem_worker.c */
extern bool feedpub_shmem_claim_worker(FeedpubWorkerStats *stats);
extern void feedpub_shmem_release_worker(void);
extern bool feedpub_shmem_needs_worker(FeedpubDatabase *entry, int retry_ms);
extern void feedpub_shmem_set_refused(FeedpubDatabase *entry, bool refused);
extern FeedpubWorkerState feedpub_shmem_worker_state(FeedpubDatabase *entry);
extern void feedpub_shmem_set_unwanted(void);
extern int	feedpub_shmem_set_stopped(FeedpubDatabase *entry, bool stopped);
extern int	feedpub_shmem_count_workers(void);
extern void feedpub_shmem_set_stats(const FeedpubWorkerStats *stats);
extern void feedpub_shmem_note_error(Oid feed, const char *error);

#endif							/* FEEDPUB_SERVER_H */
