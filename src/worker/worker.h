/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  The process for maintenance, which the database's worker starts: private.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_WORKER_H
#define FEEDPUB_WORKER_H

#include "retention/retention.h"

/* in maintenance_plan.c */
extern void feedpub_maintenance_plan(FeedpubWorkerStats *stats);
extern long feedpub_maintenance_run(void);
extern void feedpub_maintenance_end(void);

#endif							/* FEEDPUB_WORKER_H */
