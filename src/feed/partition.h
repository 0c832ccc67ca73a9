/*-------------------------------------------------------------------------
 *
 * partition.h
 *	  What partition.c and partition_list.c share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_PARTITION_H
#define FEEDPUB_PARTITION_H

#include "feed/feed.h"

/* One row of feedpub._partition. */
typedef struct FeedpubPartitionRow
{
	Oid			partition;
	uint64		since;
	Oid			trigger_id;
	Oid			partition_id;
	uint64		system_id;
	Oid			file;			/* while its TRUNCATE would not be told */
	ItemPointerData tid;
	bool		is_there;		/* it is a partition of the table now */
} FeedpubPartitionRow;

/* in partition_list.c */
extern List *feedpub_partition_read_rows(Oid feed, Snapshot snapshot);
extern FeedpubPartitionRow *feedpub_partition_find_row(List *rows, Oid partition);
extern Oid	feedpub_partition_trigger(Relation rel);
extern bool feedpub_partition_is_changed(const FeedpubPartitionRow *row,
										 Oid trigger_id);
extern bool feedpub_partition_is_guarded(const FeedpubFeed *feed, Relation rel);
extern bool feedpub_partition_has_other_file(const FeedpubPartitionRow *row,
											 Relation rel);
extern bool feedpub_partition_is_of_here(const FeedpubPartitionRow *row);
extern void feedpub_partition_write_row(Relation table, Oid feed,
										const FeedpubPartitionRow *row);

#endif							/* FEEDPUB_PARTITION_H */
