#!/usr/bin/env python3
"""worker.py: one consumer of a group that shares a subscription.

    SELECT feed_subscribe('shipping', 'outbox', 'earliest',
                          shards => 16, max_attempts => 5);
    CREATE TABLE shipment (id bigserial, customer text, order_id bigint);

    worker.py shipping 'worker 1'

Start as many as you like, each under a name of its own (group.py starts four);
there should be a few shards for each.  They divide the shards among them, and
those of one that dies go to the others when its lease has run out.  Messages of
one key are handled in order, by one worker at a time.

A message that cannot be handled is parked, with the reason, and comes again
later; if that has failed max_attempts times, it stays in feedpub.parked until
feed_retry() or feed_discard() is called.  The others go on.

The effects are in the transaction of the acknowledgement, so they happen once.
Needs psycopg 3.  Where to connect to is libpq's affair: PGHOST, PGDATABASE.
"""
import random
import signal
import sys
import threading

import psycopg

# Statements are not prepared, so that it works through pgbouncer in
# transaction mode.  In a database of SQL_ASCII texts would come as bytes.
CONNECTION = {"autocommit": True, "connect_timeout": 10, "prepare_threshold": None, "client_encoding": "UTF8"}

PAGE = 100
RETRY_AFTER = "10 s"

ADVICE = {
    "PF001": "Another history: a backup was restored, or a standby that lagged "
             "took over.  Decide where to go on, then call feed_seek().",
    "PF002": "The subscription was away for longer than deletes are kept.  Empty "
             "what was made of the feed, then call feed_seek(..., 'earliest').",
}

stop = threading.Event()


def handle(conn, op, row):
    """Plan a shipment.  Yours goes here; an exception parks the message."""
    if op == "upsert" and row["message_type"] == "OrderPlaced":
        conn.execute(
            "INSERT INTO shipment (customer, order_id) VALUES (%s, %s)",
            (row["message_key"], row["data"]["order"]))


def is_passing(error):
    """Does an error say nothing about the message?  A lost connection, a
    deadlock, a server that stops: then all of the page is handled again."""
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def take_page(conn, subscription, consumer):
    """Handles a page and acknowledges it, or neither."""
    # It waits, not longer, for it is what a stop waits for.  A consumer with a
    # name waits for a third of its lease at most, so it renews that in time.
    page = conn.execute(
        "SELECT receipt, op, row, error FROM feed_poll(%s, %s, %s, '5 s')",
        (subscription, PAGE, consumer)).fetchall()
    if not page:
        return

    with conn.transaction():
        for receipt, op, row, problem in page:
            try:
                with conn.transaction():  # a savepoint
                    if problem is not None:  # the server could not make its JSON
                        raise ValueError(problem)
                    handle(conn, op, row)
            except Exception as error:
                if is_passing(error):
                    raise
                conn.execute(
                    "SELECT feed_nack(%s, %s, %s, %s)",
                    (subscription, receipt, str(error), RETRY_AFTER))

        # By the last receipt; what is parked stays parked.
        #
        # It is an error if another worker has the shard by now (PF003), or if
        # this has been committed before and the answer was lost (PF005).  What
        # was done here is rolled back then, for it is done already, or comes
        # again.
        conn.execute("SELECT feed_ack(%s, %s)", (subscription, receipt))


def work(subscription, consumer):
    """Until stopped, through lost connections and lost leases."""
    failures = 0
    while not stop.is_set():
        try:
            # autocommit: no transaction is open while it waits
            with psycopg.connect(**CONNECTION,
                                 application_name=consumer) as conn:
                while not stop.is_set():
                    take_page(conn, subscription, consumer)
                    failures = 0
                # so that the others need not wait until the lease has run out
                conn.execute("SELECT feed_leave(%s, %s)", (subscription, consumer))
        except psycopg.Error as error:
            if error.sqlstate in ADVICE:
                sys.exit(f"{consumer}: {error}\n{ADVICE[error.sqlstate]}")
            if (error.sqlstate or "")[:2] == "42":  # a name or a right is missing
                sys.exit(f"{consumer}: {error}")
            print(f"{consumer}: {error}", file=sys.stderr, flush=True)
            stop.wait(min(0.1 * 2 ** failures, 30) * random.uniform(0.5, 1))
            failures += 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: worker.py SUBSCRIPTION CONSUMER")
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: stop.set())
    work(*sys.argv[1:])
