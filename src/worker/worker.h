/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  What the files of a database's worker share: private.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_WORKER_H
#define FEEDPUB_WORKER_H

#include "retention/retention.h"

/* Runs a step in a transaction; returns whether it raised no error. */
typedef bool (*FeedpubRunStep)(const char *activity, void (*step)(Oid feed),
							   Oid feed);

/* in prepared.c */
extern void feedpub_prepared_check(bool is_new, void (*mark)(Oid feed),
								   FeedpubRunStep run_step);
extern long feedpub_prepared_wait(void);

#endif							/* FEEDPUB_WORKER_H */
