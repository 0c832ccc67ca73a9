/*-------------------------------------------------------------------------
 *
 * status.h
 *	  What others see of the relay: /live, /ready and /metrics.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_RELAY_STATUS_H
#define FEEDPUB_RELAY_STATUS_H

#include "feed/feed.h"

/* in status.c */
extern bool status_listen(const char *address);

#endif							/* FEEDPUB_RELAY_STATUS_H */
