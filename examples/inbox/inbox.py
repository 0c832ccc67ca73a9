#!/usr/bin/env python3
"""inbox.py: effects exactly once in another database than the feed's.

    inbox.py SOURCE FEED TARGET
    inbox.py 'dbname=shop' outbox 'dbname=bank'

Reads the outbox FEED of the database SOURCE, and books payments in the database
TARGET (inbox.sql).  Effect, message_id and cursor are written in one transaction
of TARGET; SOURCE is only read, with SELECT on the outbox and nothing else.

The cursor alone makes effects happen once as long as the feed goes on as it
was.  The inbox does it also when messages come again: the cursor was put back to
'' after a restore (PF001), or is so old that batches have been merged; two
processes run by mistake; the producer sends a message twice.

Needs psycopg 3.
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
stop = threading.Event()


def handle(target, message):
    """Book a payment.  Yours goes here.  It may be anything in this database."""
    target.execute(
        "INSERT INTO account (owner, balance) VALUES (%s, %s)"
        " ON CONFLICT (owner) DO UPDATE SET balance = account.balance + excluded.balance",
        (message["message_key"], message["data"]["amount"]))


def take_page(source, feed, target):
    """Books a page.  Returns the cursor after it, and whether there is more."""
    with target.transaction():
        # locked: a second process waits here, and finds the cursor moved
        cursor, = target.execute(
            "SELECT cursor FROM inbox_cursor WHERE feed = %s FOR UPDATE",
            (feed,)).fetchone()
        page, = source.execute(
            "SELECT feed_page(%s, %s, %s)", (feed, cursor, PAGE)).fetchone()

        for entry in page["entries"]:
            message = entry["row"]
            is_new = target.execute(
                "INSERT INTO inbox (message_id) VALUES (%s) ON CONFLICT DO NOTHING",
                (message["message_id"],)).rowcount == 1
            if is_new:
                handle(target, message)

        if page["cursor"] != cursor:
            target.execute("UPDATE inbox_cursor SET cursor = %s WHERE feed = %s",
                           (page["cursor"], feed))
    return page["cursor"], page["more"]


def work(source_dsn, feed, target_dsn):
    """Until stopped, through lost connections on either side."""
    failures = 0
    while not stop.is_set():
        try:
            with psycopg.connect(source_dsn, **CONNECTION) as source, \
                 psycopg.connect(target_dsn, **CONNECTION) as target:
                target.execute("INSERT INTO inbox_cursor (feed) VALUES (%s)"
                               " ON CONFLICT DO NOTHING", (feed,))
                while not stop.is_set():
                    cursor, more = take_page(source, feed, target)
                    if not more:
                        # not longer, for it is what a stop waits for
                        source.execute("SELECT feed_wait(%s, %s, '5 s')", (feed, cursor))
                    failures = 0
        except psycopg.Error as error:
            if error.sqlstate == "PF001":
                sys.exit(f"{error}\nThe feed has another history: a backup was restored, or a standby "
                         "that lagged took over.  With UPDATE inbox_cursor SET cursor = '' all of it is "
                         "read again; what is in the inbox has no effect a second time.")
            if (error.sqlstate or "")[:2] in ("42", "PF"):  # a name or a right is missing
                sys.exit(str(error))
            print(error, file=sys.stderr, flush=True)
            stop.wait(min(0.1 * 2 ** failures, 30) * random.uniform(0.5, 1))
            failures += 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: inbox.py SOURCE FEED TARGET")
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: stop.set())
    work(*sys.argv[1:])
