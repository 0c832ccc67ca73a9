/*-------------------------------------------------------------------------
 *
 * subscription.h
 *	  Subscriptions: cursors that the server keeps for consumers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_SUBSCRIPTION_H
#define FEEDPUB_SUBSCRIPTION_H

#include "read/read.h"

/* A shard of a subscription: its committed cursor and its lease. */
typedef struct FeedpubShard
{
	int			shard;
	int64		n;				/* of this version of its row: shard.c */
	text	   *cursor;			/* the committed cursor */
	int64		state;			/* receipt.c */
	int64		page;			/* that was acknowledged last, or 0 */
	int64		settled;		/* page of the parked entry that was, or 0 */
	text	   *consumer;		/* the one that has leased it, or NULL */
	TimestampTz leased_until;
	int			parked;			/* how many entries are parked */
} FeedpubShard;

typedef struct FeedpubSubscription
{
	text	   *name;
	Oid			feed;
	Oid			owner;
	int64		lease_ms;
	int			max_attempts;	/* 0: any number */
	ArrayType  *backoff;		/* intervals, or NULL */
	FeedpubTypes *types;		/* that its consumers want; NULL: all */
	bool		delayed;		/* messages are delivered when they are due */
	TimestampTz seen_until;		/* of the calling consumer, or 0 */
	int			nshards;
	int			nloaded;		/* how many of them are in shards */
	FeedpubShard *shards;
} FeedpubSubscription;

/* How far a poll has read in a shard while the shard has this state: pass.c. */
typedef struct FeedpubReached
{
	int64		state;			/* 0: it has not read in the shard */
	FeedpubCursor cursor;
	FeedpubCursor visible;		/* up to there row security has hidden nothing */
} FeedpubReached;

/* A receipt, as feed_ack(), feed_nack() and feed_park() take it: receipt.c. */
typedef struct FeedpubReceipt
{
	char		kind;			/* FEEDPUB_RECEIPT_... */
	unsigned int shard;
	uint64		state;			/* of the shard, or of the parked entry */
	uint64		page;
	uint32		name;			/* a hash of the subscription's name */
	text	   *cursor;
	FeedpubCursor parsed;		/* the same cursor */
} FeedpubReceipt;

#define FEEDPUB_RECEIPT_PLAIN	'p' /* of a page */
#define FEEDPUB_RECEIPT_LEASED	'l' /* of a page for a consumer with a name */
#define FEEDPUB_RECEIPT_RETRY	'r' /* of a parked entry */

/* length of a receipt up to its cursor */
#define FEEDPUB_RECEIPT_PREFIX	45

/* What became of what a consumer has said with a receipt. */
typedef enum FeedpubAck
{
	FEEDPUB_ACK_DONE,
	FEEDPUB_ACK_ALREADY,		/* it has been dealt with before */
	FEEDPUB_ACK_LOST,			/* another page or delivery has it */
} FeedpubAck;

/* A parked entry that is delivered again. */
typedef struct FeedpubRetried
{
	text	   *cursor;
	FeedpubPageRow row;			/* the entry is NULL: it comes as it was kept */
	ArrayType  *key_texts;		/* of a table feed's key, or NULL */
	text	   *kept_key;		/* JSON, as it was parked, or NULL */
	text	   *kept_row;
	Datum		kept_change[FEEDPUB_CHANGE_NCOLUMNS];	/* relation, old_key, old, or 0 */
	bool		discarded;
	int			attempts;		/* how often it has failed */
	int64		state;
} FeedpubRetried;

/* What a poll delivers: a page of a shard, or a parked entry. */
typedef struct FeedpubDelivery
{
	FeedpubPage *page;			/* NULL: nothing */
	FeedpubShard *shard;
	FeedpubRetried *retried;	/* the parked entry, or NULL */
	FeedpubDeliveries seen;		/* what was delivered before: repeat.c */
	int			attempt;		/* which one it is for the first entry */
} FeedpubDelivery;

/* columns of feedpub._shard h, for feedpub_shard_get() */
#define FEEDPUB_SHARD_COLUMNS \
	" h.shard, h.n, h.cursor, h.state, h.page, h.settled," \
	" h.consumer, h.leased_until, h.parked"

/* how many shards a subscription may have; receipts have room for them */
#define FEEDPUB_MAX_SHARDS	1024

/* in ack.c */
extern FeedpubAck feedpub_ack_page(FeedpubSubscription *sub,
								   const FeedpubReceipt *receipt);
extern void feedpub_ack_check(const text *name, FeedpubAck result);

/* in delay.c */
extern AttrNumber feedpub_delay_column(const FeedpubFeed *feed, Relation heap);
extern bool feedpub_delay_park(const FeedpubSubscription *sub,
							   FeedpubShard *shard, FeedpubReached *reached,
							   FeedpubPage *page, int limit);

/* in delivery.c */
extern void feedpub_delivery_put(FunctionCallInfo fcinfo, const text *name,
								 const FeedpubDelivery *delivery, bool as_rows);

/* in lease.c */
extern bool feedpub_lease_is_of(const FeedpubShard *shard,
								const text *consumer);
extern bool feedpub_lease_is_due(const FeedpubSubscription *sub,
								 const text *consumer);
extern int	feedpub_lease_take(FeedpubSubscription *sub, text *consumer,
							   FeedpubShard **own);
extern int	feedpub_lease_share(FeedpubSubscription *sub, text *consumer);
extern bool feedpub_lease_lock_all(const FeedpubSubscription *sub);
extern bool feedpub_lease_is_held(const FeedpubSubscription *sub,
								  const FeedpubShard *shard);

/* in park.c */
extern void feedpub_park_hide(const FeedpubSubscription *sub,
							  const FeedpubShard *shard, FeedpubPage *page);
extern void feedpub_park_until(const FeedpubSubscription *sub, int shard,
							   const FeedpubPage *page, FeedpubPageRow *row,
							   TimestampTz due, int64 state);
extern bool feedpub_park_failed(FeedpubSubscription *sub,
								const FeedpubDelivery *delivery);

/* in pass.c */
extern void feedpub_pass_begin(const FeedpubShard *shard,
							   const FeedpubReached *reached,
							   FeedpubCursor *cursor);
extern void feedpub_pass_note(const FeedpubShard *shard,
							  FeedpubReached *reached,
							  const FeedpubPage *page);
extern bool feedpub_pass_takes_too_long(const FeedpubSubscription *sub,
										const FeedpubShard *shard,
										const FeedpubReached *reached,
										TimestampTz began);
extern void feedpub_pass_move(const FeedpubSubscription *sub,
							  const FeedpubShard *shard,
							  const FeedpubReached *reached);

/* in receipt.c */
extern int64 feedpub_receipt_draw(void);
extern uint32 feedpub_receipt_name(const text *name);
extern void feedpub_receipt_check(const FeedpubReceipt *receipt,
								  const FeedpubSubscription *sub);
extern bool feedpub_receipt_counts(const FeedpubReceipt *receipt,
								   const FeedpubShard *shard);
extern void feedpub_receipt_print(const FeedpubReceipt *receipt, char *buffer);
extern void feedpub_receipt_parse(const text *input, FeedpubReceipt *receipt);

/* in repeat.c */
extern void feedpub_repeat_load(const FeedpubSubscription *sub, int shard,
								bool retried, FeedpubDeliveries *seen);
extern void feedpub_repeat_forget(const text *name, int shards);
extern bool feedpub_repeat_resizes(const FeedpubSubscription *sub,
								   FeedpubDeliveries *seen,
								   const FeedpubPage *page);
extern bool feedpub_repeat_failed(const FeedpubSubscription *sub,
								  const FeedpubDelivery *delivery);
extern void feedpub_repeat_count(FeedpubDelivery *delivery);
extern int	feedpub_repeat_attempt(const FeedpubDelivery *delivery,
								   const FeedpubCursor *cursor);
extern int	feedpub_repeat_failures(const FeedpubSubscription *sub,
									const FeedpubReceipt *receipt);

/* in retry.c */
extern FeedpubRetried *feedpub_retry_find_due(const FeedpubSubscription *sub,
											  FeedpubPage *page,
											  const FeedpubShard *shard,
											  bool again);
extern TimestampTz feedpub_retry_next_due(const FeedpubSubscription *sub,
										  const FeedpubShard *shard,
										  TimestampTz since);
extern bool feedpub_retry_forget(const FeedpubSubscription *sub, FeedpubShard *shard,
								 List *cursors, int64 state);
extern int64 feedpub_retry_page(const FeedpubSubscription *sub, int shard,
								const text *cursor);

/* in shard.c */
extern bool feedpub_shard_lock(const FeedpubSubscription *sub, int number,
							   bool wait, FeedpubShard *shard);
extern void feedpub_shard_get(FeedpubShard *shard, uint64 row, int column);
extern void feedpub_shard_write(const FeedpubSubscription *sub,
								const FeedpubShard *shard);

/* in start.c */
extern text *feedpub_start_find(Oid feed, const text *start);
extern text *feedpub_start_at(Oid feed, TimestampTz at);

/* in subscription.c */
extern void feedpub_subscription_load(text *name, const text *consumer,
									  int shard_wanted,
									  FeedpubSubscription *sub);
extern void feedpub_subscription_load_again(const text *consumer, bool found,
											FeedpubSubscription *sub);
extern void feedpub_subscription_require_feed(const FeedpubSubscription *sub);
extern void feedpub_subscription_check_name(const text *name, const char *what);
extern bool feedpub_subscription_find(text *name, const text *consumer, int shard_wanted, FeedpubSubscription *sub);

#endif							/* FEEDPUB_SUBSCRIPTION_H */
