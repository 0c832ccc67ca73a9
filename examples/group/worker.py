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

A message that cannot be handled is set aside, with the reason, and comes again
later; when that has failed max_attempts times, it stays in feedpub.parked until
somebody calls feed_retry() or feed_discard().  The others go on.

The effects are in the transaction of the acknowledgement, so they happen once.
Needs psycopg 3.  Where to connect to is libpq's affair: PGHOST, PGDATABASE.
"""
import random
import signal
import sys
import threading

import psycopg

PAGE = 100
RETRY_AFTER = "10 s"

ADVICE = {
    "PF001": "Another history: a backup was restored, or a standby that lagged "
             "took over.  Decide where to go on, then call feed_seek().",
    "PF002": "The subscription was away for longer than deletes are kept.  Empty "
             "what was made of the feed, then call feed_seek(..., 'earliest').",
}

stop = threading.Event()


def handle(conn, op, entry):
    """Plan a shipment.  Yours goes here; an exception sets the message aside."""
    if op == "upsert" and entry["message_type"] == "OrderPlaced":
        conn.execute(
            "INSERT INTO shipment (customer, order_id) VALUES (%s, %s)",
            (entry["message_key"], entry["data"]["order"]))


def is_passing(error):
    """Does an error say nothing about the message?  A lost connection, a
    deadlock, a server that stops: then all of the page is handled again."""
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def take_page(conn, subscription, consumer):
    """Handles a page and acknowledges it, or neither.  False if there is none."""
    page = conn.execute(
        "SELECT cursor, op, entry, token FROM feed_poll(%s, %s, %s)",
        (subscription, PAGE, consumer)).fetchall()
    if not page:
        return False

    with conn.transaction():
        done = None
        for cursor, op, entry, token in page:
            try:
                if op != "end":  # which only says how far the page got
                    with conn.transaction():  # a savepoint
                        handle(conn, op, entry)
                done = cursor
            except Exception as error:
                if is_passing(error):
                    raise
                conn.execute(
                    "SELECT feed_nack(%s, %s, %s, delay => %s, token => %s)",
                    (subscription, cursor, str(error), RETRY_AFTER, token))

        # Up to the last one that was handled.  When all were set aside, nothing
        # is acknowledged: the next page leaves them out and leads past them.
        #
        # strict: an error, PF003, when another worker has the shard by now.
        # What was done here is rolled back then, for the other one does it.
        if done is not None:
            conn.execute(
                "SELECT feed_ack(%s, %s, %s, strict => true)",
                (subscription, done, token))
    return True


def work(subscription, consumer):
    """Until stopped, through lost connections and lost leases."""
    failures = 0
    while not stop.is_set():
        try:
            # autocommit: no transaction is open while it waits
            with psycopg.connect(autocommit=True, connect_timeout=10,
                                 application_name=consumer) as conn:
                while not stop.is_set():
                    if not take_page(conn, subscription, consumer):
                        # not longer, for it is what a stop waits for
                        conn.execute("SELECT feed_wait_poll(%s, '5 s', %s)",
                                     (subscription, consumer))
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
