#!/usr/bin/env python3
"""follow.py: keeps a copy of a table in another database.

    follow.py [--begin-again] [--without COLUMN] SOURCE FEED TARGET TABLE
    follow.py 'dbname=shop' public.product 'dbname=search' product

FEED is a table feed in the database SOURCE, which is only read, with SELECT on
the table and nothing else.  TABLE is in the database TARGET; it has the columns
of FEED, by their names, and a primary key or unique index on the key columns of
the feed.  The copy does not have the columns that are named by --without, once for
each.  The first pages are the rows that are there; changes follow.

If a column is added, renamed or dropped in FEED, the program stops at the next
change and says which: a column that no entry has would silently become NULL.  Do
the same to TABLE, and start the program again.  If a column is added with a
default, give it to TABLE with the same default: rows that do not change are not
delivered for that (or call feed_republish() in the source: then all are).

A page and the cursor are written in one transaction of TARGET, so the program may
be killed at any time, and two of them do no harm: one waits for the other.

With --begin-again, if the feed has another history (PF001: a backup was restored,
or a standby that lagged took over) or deletes have expired (PF002: the program was
away for too long), the copy is emptied and filled again.  Without, it stops there.

Needs psycopg 3.
"""
import argparse
import json
import random
import signal
import sys
import threading

import psycopg
from psycopg import sql

# Statements are not prepared, so that it works through pgbouncer in
# transaction mode.  In a database of SQL_ASCII texts would come as bytes.
CONNECTION = {"autocommit": True, "connect_timeout": 10, "prepare_threshold": None, "client_encoding": "UTF8"}

PAGE = 500

# Keys and rows go from one database to the other as texts: Python would round
# the numbers in them.
PAGE_QUERY = """
    SELECT page ->> 'cursor', (page ->> 'more')::bool, e ->> 'op', e ->> 'key', e ->> 'row', e ->> 'error'
    FROM feed_page(%s::regclass, %s, %s) AS page LEFT JOIN LATERAL json_array_elements(page -> 'entries') AS e ON true"""
stop = threading.Event()


class Copy:
    """A table in the target, and the cursor up to which it is a copy."""

    def __init__(self, target, feed, table, without):
        self.target = target
        self.feed = feed
        self.without = without
        # a name as SQL reads it becomes one that can be put into a statement
        self.oid, self.table = target.execute(
            "SELECT c.oid, c.oid::regclass::text FROM pg_class c WHERE c.oid = %s::regclass", (table,)).fetchone()
        self.table = sql.SQL(self.table)
        columns = target.execute(
            "SELECT attname, attgenerated <> '' FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum", (self.oid,)).fetchall()
        self.columns = [name for name, generated in columns if not generated]
        self.generated = [name for name, generated in columns if generated]
        target.execute("CREATE TABLE IF NOT EXISTS follower (feed text PRIMARY KEY, cursor text NOT NULL)")
        target.execute("INSERT INTO follower VALUES (%s, '') ON CONFLICT DO NOTHING", (feed,))

    def take_page(self, source):
        """Applies a page.  Returns the cursor after it, and whether there is more."""
        with self.target.transaction():
            # locked: a second process waits here, and finds the cursor moved
            cursor, = self.target.execute(
                "SELECT cursor FROM follower WHERE feed = %s FOR UPDATE", (self.feed,)).fetchone()
            entries = source.execute(PAGE_QUERY, (self.feed, cursor, PAGE)).fetchall()
            moved, more = entries[0][:2]
            for _, _, op, key, row, error in entries:
                if op is not None:
                    self.apply(op, key, row, error)
            if moved != cursor:
                self.target.execute("UPDATE follower SET cursor = %s WHERE feed = %s", (moved, self.feed))
        return moved, more

    def apply(self, op, key_json, row_json, error):
        """Applies an entry: it is done once, but doing it again would do no harm."""
        if error is not None:
            raise ValueError(f"{self.feed} {key_json}: {error}")
        if op not in ("upsert", "delete", "truncate"):
            raise ValueError(f"{self.feed}: unknown operation {op}")
        if op == "truncate":
            self.target.execute(sql.SQL("TRUNCATE {}").format(self.table))
            return
        key = sql.SQL(", ").join(map(sql.Identifier, json.loads(key_json)))
        if op == "delete":
            self.target.execute(
                sql.SQL("DELETE FROM {0} WHERE ({1}) = (SELECT {1} FROM json_populate_record(NULL::{0}, %s))")
                .format(self.table, key), (key_json,))
            return
        self.check_columns(json.loads(row_json))
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        changes = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in self.columns)
        self.target.execute(
            sql.SQL("INSERT INTO {0} ({1}) SELECT {1} FROM json_populate_record(NULL::{0}, %s)"
                    " ON CONFLICT ({2}) DO UPDATE SET {3}")
            .format(self.table, columns, key, changes), (row_json,))

    def check_columns(self, row):
        """Is the copy still one of all columns?"""
        missing = [name for name in row if name not in self.columns + self.generated + self.without]
        gone = [name for name in self.columns if name not in row]
        if missing or gone:
            raise ValueError(f"The columns of {self.feed} are not those of the copy."
                             + (f"  New in the feed: {', '.join(missing)}." if missing else "")
                             + (f"  Only in the copy: {', '.join(gone)}." if gone else "")
                             + "\nChange the copy too, and start again.")

    def begin_again(self):
        with self.target.transaction():
            self.target.execute("UPDATE follower SET cursor = '' WHERE feed = %s", (self.feed,))
            self.target.execute(sql.SQL("TRUNCATE {}").format(self.table))


def work(options):
    """Until stopped, through lost connections on either side."""
    failures = 0
    while not stop.is_set():
        try:
            with psycopg.connect(options.source, **CONNECTION) as source, \
                 psycopg.connect(options.target, **CONNECTION) as target:
                copy = Copy(target, options.feed, options.table, options.without)
                while not stop.is_set():
                    try:
                        cursor, more = copy.take_page(source)
                    except psycopg.Error as error:
                        if error.sqlstate not in ("PF001", "PF002") or not options.begin_again:
                            raise
                        print(f"{error}\nThe copy is filled again.", file=sys.stderr, flush=True)
                        copy.begin_again()
                        continue
                    if not more:
                        # not longer, for it is what a stop waits for
                        source.execute("SELECT feed_wait(%s, %s, '5 s')", (options.feed, cursor))
                    failures = 0
        except ValueError as error:
            sys.exit(str(error))
        except psycopg.Error as error:
            # a name or a right is missing, a row does not fit, the feed cannot go on
            if (error.sqlstate or "")[:2] in ("22", "23", "42", "PF"):
                sys.exit(str(error))
            print(error, file=sys.stderr, flush=True)
            stop.wait(min(0.1 * 2 ** failures, 30) * random.uniform(0.5, 1))
            failures += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--begin-again", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    for name in "source", "feed", "target", "table":
        parser.add_argument(name)
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: stop.set())
    work(parser.parse_args())
