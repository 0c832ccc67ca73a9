#!/usr/bin/env python3
"""follow_all.py: keeps copies of the tables of a change feed in another database.

    follow_all.py [--begin-again] [--page N] [--without RELATION] SOURCE FEED TARGET
    follow_all.py 'dbname=shop' changes 'dbname=reports'

FEED is a change feed in the database SOURCE, which is only read, with SELECT on the
feed and on the tables that are captured into it.  Each of these is in the database
TARGET, by the same name, with the columns that are captured, and with the key of
the capture as its primary key.  Those that are named by --without are left out.

The copy is filled with the rows that one snapshot of SOURCE sees (feed_snapshot),
and goes on from there.  Each transaction of TARGET ends at a moment of the feed, so
after each the copy has what one snapshot of SOURCE saw, and satisfies the same
foreign keys and unique constraints.  In TARGET foreign keys are DEFERRABLE, and
without ON DELETE and ON UPDATE actions, since what an action does in SOURCE comes
as changes of its own.  Other constraints, also unique indexes, may be as in SOURCE.
No trigger is disabled.

The changes of a moment are collected in a temporary table, so it may be larger than
memory.  Then each key gets its last state: rows are deleted first, and inserted
when all that must go has gone.

Changes and the cursor are written in one transaction of TARGET, so the program may be
killed at any time, and two of them do no harm: one waits for the other.
The cursor is kept by the feed's name, so feeds of one name in two databases need two
targets.

If a table or a column is added, renamed or dropped in SOURCE, the program stops at the
next change and says which.  Do the same in TARGET, and start it again.

To fill all again, delete the feed's row of the table "follower" and empty the copy.  Do
that for a table that had rows when it was captured, and if a column has got another
type with other values (USING), since this changes rows without entries.  If rows were
changed before and after a column was renamed, within one moment, the program says so.

With --begin-again, if the feed has another history (PF001: a backup was restored, or a
standby that lagged took over) or entries are no longer kept (PF002), the copy is
emptied and filled again.  Without, it stops there.

JSON does not tell a JSON null from NULL, nor the lower bounds of arrays: the copy has
NULL, and arrays that begin at 1.

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

# Keys and rows go from one database to the other as texts: Python would round
# the numbers in them.  Statements with names have no parameters, since psycopg
# takes a % in a name for one.
READ = sql.SQL("""
    SELECT cursor, op, moment, (entry).relation, (entry).key::text, (entry).old_key::text, (entry)."row"::text,
        (entry).error
    FROM feed_read(NULL::{feed}, {after}, {page})""")

# What a moment says of each key, in order: the row that it has, or that there is none.
STAGE = "CREATE TEMPORARY TABLE IF NOT EXISTS moment (n bigint, relation text, key json, row json) ON COMMIT DELETE ROWS"
DELETE = sql.SQL("DELETE FROM {table} t USING moment m, json_to_record(m.key) AS k ({key_types})"
                 " WHERE m.relation = {relation} AND m.n > {after} AND ({t_key}) = ({k_key})")
INSERT = sql.SQL("INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values}"
                 " FROM (SELECT DISTINCT ON ({k_key}) m.key, m.row FROM moment m, json_to_record(m.key) AS k ({key_types})"
                 " WHERE m.relation = {relation} AND m.n > {after} ORDER BY {k_key}, m.n DESC) l,"
                 " json_to_record(l.key) AS k ({key_types}), json_to_record(l.row) AS r ({column_types}) WHERE l.row IS NOT NULL")

# What a value is as text depends on these.
SETTINGS = "SET LOCAL datestyle = ISO; SET LOCAL intervalstyle = postgres; SET LOCAL extra_float_digits = 1"
stop = threading.Event()


class Table:
    """A table of the copy."""

    def __init__(self, target, relation):
        self.relation = relation
        self.begin_moment()
        oid, = target.execute("SELECT to_regclass(%s)::oid", (relation,)).fetchone()
        if oid is None:
            raise ValueError(f"The copy has no table {relation}.\nMake it, or name it by --without, and start again.")
        columns = target.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attgenerated <> '',"
            " attnum = ANY ((SELECT indkey FROM pg_index WHERE indrelid = attrelid AND indisprimary)::int2[]),"
            " coalesce(pg_get_expr(adbin, adrelid), 'NULL')"
            " FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
            " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum", (oid,)).fetchall()
        self.columns = [name for name, _, generated, *_ in columns if not generated]
        self.generated = [name for name, _, generated, *_ in columns if generated]
        self.key = [name for name, _, _, is_key, _ in columns if is_key]
        self.defaults = {name: default for name, *_, default in columns}
        if not self.key:
            raise ValueError(f"The table {relation} of the copy has no primary key.")
        wrong = target.execute(
            "SELECT conname, conrelid::regclass::text FROM pg_constraint WHERE contype = 'f' AND conparentid = 0"
            " AND (conrelid = %(oid)s OR confrelid = %(oid)s) AND (NOT condeferrable OR confdeltype <> 'a' OR confupdtype <> 'a')",
            {"oid": oid}).fetchall()
        if wrong:
            raise ValueError("Foreign keys of the copy must be DEFERRABLE, and have no actions: "
                             + ", ".join(f"{name} of {table}" for name, table in wrong) + ".")

        def names(columns, prefix=""):
            return sql.SQL(", ").join(sql.SQL(prefix) + sql.Identifier(name) for name in columns)

        def types(of):
            return sql.SQL(", ").join(sql.Identifier(name) + sql.SQL(" " + type) for name, type, *_ in columns if name in of)

        # to_regclass() has read it, so it is a name as SQL reads it
        self.name = sql.SQL(relation)
        self.parts = {"table": self.name, "columns": names(self.columns), "column_types": types(self.columns),
                      "t_key": names(self.key, "t."), "k_key": names(self.key, "k."), "key_types": types(self.key),
                      "relation": sql.Literal(relation)}

    def begin_moment(self):
        self.latest = [], []
        self.lacking = set()
        self.is_exchanged = False

    def look_at(self, key, row):
        """Notes which columns an entry has.  (A row may be without those of the key.)"""
        columns = json.loads(key)
        if sorted(columns) != sorted(self.key):
            raise ValueError(f"The key of {self.relation} is {key}, and in the copy {', '.join(self.key)}."
                             "\nChange the copy too, and start again.")
        if row is not None:
            columns.update(json.loads(row))
            missing, gone = self.latest = self.difference(columns)
            self.lacking.update(gone)
            self.is_exchanged = self.is_exchanged or bool(missing and gone)

    def difference(self, columns):
        return ([name for name in columns if name not in self.columns + self.generated],
                [name for name in self.columns if name not in columns])

    def check(self, missing, gone):
        if missing or gone:
            raise ValueError(f"The columns of {self.relation} are not those of the copy."
                             + (f"  New in the feed: {', '.join(missing)}." if missing else "")
                             + (f"  Only in the copy: {', '.join(gone)}." if gone else "")
                             + "\nChange the copy too, and start again.")

    def end_moment(self):
        """Returns the values to insert, if the moment ends with the columns of the copy.

        Earlier entries of it may lack a column that was added then, and get the copy's
        default, or have one that was dropped.  If one lacks and has one, that was perhaps
        renamed, so its value would be lost.
        """
        self.check(*self.latest)
        if self.is_exchanged:
            raise ValueError(f"Columns of {self.relation} were renamed or exchanged within a moment.\nFill the copy again.")
        values = []
        for name in self.columns:
            value = sql.SQL("k." if name in self.key else "r.") + sql.Identifier(name)
            if name in self.lacking:
                value = sql.SQL("CASE WHEN l.row -> {} IS NULL THEN {} ELSE {} END").format(
                    sql.Literal(name), sql.SQL(self.defaults[name]), value)
            values.append(value)
        self.begin_moment()
        return sql.SQL(", ").join(values)


class Copy:
    """Tables in the target, and the cursor up to which they are a copy."""

    def __init__(self, source, target, options):
        self.source = source
        self.target = target
        self.options = options
        self.feed, = source.execute("SELECT %s::regclass::text", (options.feed,)).fetchone()
        self.name = sql.SQL(self.feed)
        self.tables = {}
        target.execute("SET client_min_messages = warning")
        target.execute("CREATE TABLE IF NOT EXISTS follower (feed text PRIMARY KEY, cursor text NOT NULL)")
        target.execute("INSERT INTO follower VALUES (%s, '') ON CONFLICT DO NOTHING", (self.feed,))

    def table(self, relation):
        if relation not in self.tables:
            self.tables[relation] = Table(self.target, relation)
        return self.tables[relation]

    def go_on(self):
        """From a moment to a later one.  Returns the cursor to wait at, or None if there may be more."""
        with self.target.transaction():
            # locked: a second process waits here, and finds the cursor moved
            begun, = self.target.execute("SELECT cursor FROM follower WHERE feed = %s FOR UPDATE", (self.feed,)).fetchone()
            self.target.execute(STAGE)
            self.target.execute("SET CONSTRAINTS ALL DEFERRED")
            cursor = begun or self.fill()
            truncated = {}
            changed = {}
            n = 0
            while begun:
                read = READ.format(feed=self.name, after=sql.Literal(cursor), page=sql.Literal(self.options.page))
                rows = self.source.execute(read).fetchall()
                # up to the last moment in the page, or all of it and on
                moment = max((i + 1 for i, row in enumerate(rows) if row[2]), default=0)
                rows = rows[:moment or len(rows)]
                staged = []
                for row in rows:
                    n += 1
                    staged += self.look_at(n, row, truncated, changed)
                with self.target.cursor().copy("COPY moment FROM STDIN") as copy:
                    for row in staged:
                        copy.write_row(row)
                if rows:
                    cursor = rows[-1][0]
                if moment or not (truncated or changed):
                    break
                if not rows or rows[-1][1] == "end":
                    # a backlog of which the end is not published yet
                    self.wait(cursor)
                if stop.is_set():
                    raise psycopg.Rollback()
            self.apply(truncated, changed)
            if cursor != begun:
                self.target.execute("UPDATE follower SET cursor = %s WHERE feed = %s", (cursor, self.feed))
        return cursor if cursor == begun else None

    def wait(self, cursor):
        # not longer, for it is what a stop waits for
        self.source.execute("SELECT feed_wait(%s, %s, '5 s')", (self.feed, cursor))

    def look_at(self, n, entry, truncated, changed):
        """Returns what the entry number n says of keys."""
        _, op, _, relation, key, old_key, row, error = entry
        if op in ("end", "message") or relation in self.options.without:
            return []
        if error is not None:
            raise ValueError(f"{relation} {key}: {error}")
        if op not in ("insert", "update", "delete", "truncate"):
            raise ValueError(f"{self.feed}: unknown operation {op}")
        table = self.table(relation)
        if op == "truncate":
            truncated[table] = n
            return []
        changed[table] = n
        table.look_at(key, row)
        if old_key is None:
            return [(2 * n + 1, relation, key, row)]
        table.look_at(old_key, None)
        return [(2 * n, relation, old_key, None), (2 * n + 1, relation, key, row)]

    def apply(self, truncated, changed):
        """Gives each key of a moment its last state."""
        values = {table: table.end_moment() for table in changed}
        # together, since the tables that refer to one have been truncated, too
        if truncated:
            self.target.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(table.name for table in truncated)))
        for statement in DELETE, INSERT:
            for table in changed:
                # what was there before a TRUNCATE is not looked at
                self.target.execute(statement.format(after=sql.Literal(2 * truncated.get(table, 0) + 1),
                                                     values=values[table], **table.parts))

    def fill(self):
        """Copies the rows that are there.  Returns the cursor of the same moment."""
        captured = self.source.execute(
            "SELECT format('%%I.%%I', n.nspname, c.relname), array(SELECT attname::text FROM pg_attribute"
            " WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND (columns IS NULL OR attname = ANY (key || columns)))"
            " FROM feedpub.captures JOIN pg_class c ON c.oid = relation JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE feed = %s::regclass ORDER BY 1", (self.feed,)).fetchall()
        tables = [(self.table(relation), columns) for relation, columns in captured if relation not in self.options.without]
        if not tables:
            raise ValueError(f"No tables are captured into {self.feed}.")
        names = sql.SQL(", ").join(table.name for table, _ in tables)
        for table, columns in tables:
            table.check(*table.difference(columns))
        if self.options.begin_again:
            self.target.execute(sql.SQL("TRUNCATE {}").format(names))
        for table, _ in tables:
            if self.target.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(table.name)).fetchone()[0]:
                raise ValueError(f"The table {table.relation} of the copy is not empty.")
        # in both a transaction, so that they stay with one session of a pool
        with self.source.transaction(), psycopg.connect(self.options.source, **CONNECTION) as reader, reader.transaction():
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # A TRUNCATE would leave nothing for the snapshot.  The session that copies has the
            # locks: if another had them, it would wait for a TRUNCATE that waits for that one.
            reader.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
            cursor, snapshot = self.source.execute(
                "SELECT cursor, snapshot FROM feed_snapshot(ARRAY[%s::regclass])", (self.feed,)).fetchone()
            reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            # rows that are hidden are an error
            reader.execute("SET LOCAL row_security = off")
            reader.execute(SETTINGS)
            self.target.execute(SETTINGS)
            for table, _ in tables:
                with reader.cursor().copy(sql.SQL("COPY (SELECT {columns} FROM {table}) TO STDOUT").format(**table.parts)) as rows, \
                     self.target.cursor().copy(sql.SQL("COPY {table} ({columns}) FROM STDIN").format(**table.parts)) as copy:
                    for data in rows:
                        copy.write(data)
        return cursor

    def begin_again(self):
        self.target.execute("UPDATE follower SET cursor = '' WHERE feed = %s", (self.feed,))


def work(options):
    """Until stopped, through lost connections on either side."""
    failures = 0
    while not stop.is_set():
        try:
            with psycopg.connect(options.source, **CONNECTION) as source, \
                 psycopg.connect(options.target, **CONNECTION) as target:
                copy = Copy(source, target, options)
                while not stop.is_set():
                    try:
                        cursor = copy.go_on()
                        if cursor is not None and not stop.is_set():
                            copy.wait(cursor)
                    except psycopg.Error as error:
                        if error.sqlstate not in ("PF001", "PF002") or not options.begin_again:
                            raise
                        print(f"{error}\nThe copy is filled again.", file=sys.stderr, flush=True)
                        copy.begin_again()
                    failures = 0
        except ValueError as error:
            sys.exit(str(error))
        except psycopg.Error as error:
            # a name or a right is missing, a row does not fit, a table is referred to by
            # others and cannot be truncated, the feed cannot go on
            if (error.sqlstate or "")[:2] in ("0A", "22", "23", "42", "PF"):
                sys.exit(str(error))
            print(error, file=sys.stderr, flush=True)
            stop.wait(min(0.1 * 2 ** failures, 30) * random.uniform(0.5, 1))
            failures += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--begin-again", action="store_true")
    parser.add_argument("--page", type=int, default=500)
    parser.add_argument("--without", action="append", default=[])
    for name in "source", "feed", "target":
        parser.add_argument(name)
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, lambda *_: stop.set())
    work(parser.parse_args())
