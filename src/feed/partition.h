/*-------------------------------------------------------------------------
 *
 * partition.h
 *	  What the files on partitions share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_PARTITION_H
#define FEEDPUB_PARTITION_H

#include "feed/feed.h"

/* One row of feedpub._partition; the columns come first, as they are stored. */
typedef struct FeedpubPartitionRow
{
	Oid			feed;
	Oid			partition;
	uint64		since;
	Oid			trigger_id;
	Oid			partition_id;
	int64		system_id;
	Oid			file;			/* while its TRUNCATE would not be told */
	ItemPointerData tid;
	bool		is_there;		/* it is a partition of the table now */
} FeedpubPartitionRow;

/* in partition_list.c */
extern List *feedpub_partition_read_rows(Oid feed, Snapshot snapshot);
extern FeedpubPartitionRow *feedpub_partition_find_row(List *rows, Oid partition);
extern bool feedpub_partition_is_changed(const FeedpubPartitionRow *row,
										 Oid trigger_id);
extern bool feedpub_partition_is_of_here(const FeedpubPartitionRow *row);
extern uint64 feedpub_partition_listed_since(List *rows, Relation rel);
extern bool feedpub_partition_has_other_file(const FeedpubPartitionRow *row,
											 Relation rel);
extern void feedpub_partition_write_row(Relation table,
										const FeedpubPartitionRow *row);

#endif							/* FEEDPUB_PARTITION_H */
