#!/usr/bin/env python3
"""psycopg3.py prepared|unprepared [feature]: what works in psycopg 3.  See node.mjs."""
import sys
import threading

import psycopg

SETTING = {} if sys.argv[1] == "prepared" else {"prepare_threshold": None}
WAIT = "SELECT feed_wait(%s::regclass, feed_head('outbox'), %s::interval)"

first = psycopg.connect(autocommit=True, **SETTING)
second = psycopg.connect(autocommit=True, **SETTING)


def value(sql, values=None, conn=first):
    return conn.execute(sql, values).fetchone()[0]


def expect(got, wanted):
    if got != wanted:
        raise ValueError(f"{got} in place of {wanted}")


def report(feature, check):
    if feature not in (sys.argv[2:] or [feature]):
        return
    try:
        result = check() or "works"
    except Exception as error:
        result = f"no: {getattr(error, 'sqlstate', None) or error}"
    print(f"{feature}: {result}")


def page():
    keys, cursor, rows = [], "", True
    while rows:
        rows = first.execute(
            "SELECT cursor, (entry).message_key FROM feed_read(NULL::outbox, %s, %s)",
            (cursor, 2)).fetchall()
        keys += [key for _, key in rows]
        cursor = rows[-1][0] if rows else cursor
    expect(keys, ["1", "2", "3", "4", "5"])
    expect(value("SELECT feed_page(%s::regclass, %s, %s)", ("outbox", cursor, 2))["entries"], [])


def uncast():
    expect(value("SELECT feed_wait(%s, %s, %s)", ("outbox", "", "0 s")), True)
    expect(len(first.execute("SELECT * FROM feed_fetch(NULL::outbox, %s, %s, %s)",
                             ("0", 0, 2)).fetchall()), 2)


def altered(column, ddl, entry="(entry).*"):
    def has():
        cursor = first.execute(
            f"SELECT {entry} FROM feed_read(NULL::outbox, %s, %s) /* {ddl} */", ("", 10))
        row = cursor.fetchone()
        return column in (row[0] if isinstance(row[0], dict) else [c.name for c in cursor.description])
    for _ in range(6):
        has()
    second.execute(ddl)
    if not has():
        raise ValueError("missing")


def call():
    expect(value("CALL feed_await(%s::regclass, %s, %s::interval)", ("outbox", "", "1 min")), True)


def pipeline():
    with first.pipeline():
        pages = [first.execute("SELECT feed_page('outbox', '', %s)", (n,)) for n in (1, 2, 3)]
    expect([len(page.fetchone()[0]["entries"]) for page in pages], [1, 2, 3])


def cursor():
    keys = []
    with first.transaction(), first.cursor(name="c") as rows:
        rows.execute("SELECT message_key FROM feed_fetch(NULL::outbox, %s, %s, %s)", ("0", 0, 100))
        while some := rows.fetchmany(2):
            keys.append([key for key, in some])
    expect(keys, [["1", "2"], ["3", "4"], ["5"]])


def declare():
    keys = []
    with first.transaction():
        first.execute("DECLARE d CURSOR FOR SELECT message_key FROM feed_fetch(NULL::outbox, '0', 0, 100)")
        while some := first.execute("FETCH 2 FROM d").fetchall():
            keys += [key for key, in some]
    expect(keys, ["1", "2", "3", "4", "5"])


def ack():
    for commit in (False, True):
        with first.transaction(force_rollback=not commit):
            entries = first.execute(
                "SELECT receipt, key ->> 'message_key' FROM feed_poll(%s, %s)", ("mail", 2)).fetchall()
            for receipt, key in entries:
                first.execute("INSERT INTO effect VALUES (%s)", (key,))
            expect(value("SELECT feed_ack(%s, %s)", ("mail", receipt)), True)
    expect(first.execute("SELECT key FROM effect ORDER BY key").fetchall(), [("1",), ("2",)])
    try:
        first.execute("SELECT feed_ack(%s, %s)", ("mail", receipt))
        raise ValueError("no error in place of PF005")
    except psycopg.Error as error:
        expect(error.sqlstate, "PF005")


def waiting(then):
    """Waits in another thread, and returns what came of it."""
    ended = []

    def wait():
        try:
            ended.append(value(WAIT, ("outbox", "1 min")))
        except psycopg.Error as error:
            ended.append(error.sqlstate)
    thread = threading.Thread(target=wait)
    thread.start()
    while not ended and value("""SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'
            AND query LIKE '%feed_wait%' AND pid <> pg_backend_pid()""", conn=second) != 1:
        pass
    then()
    thread.join()
    return ended[0]


def wait():
    expect(waiting(lambda: second.execute("INSERT INTO outbox (message_type, data) VALUES ('News', '6')")), True)


def cancel():
    expect(waiting(first.cancel), "57014")
    expect(value("SELECT 1"), 1)


def session():
    with second.transaction():
        second.execute("SELECT 1")
        for _ in range(6):
            value("SELECT feed_page(%s::regclass)", ("outbox",))
    with first.transaction():
        value("SELECT feed_page(%s::regclass)", ("outbox",))


print("setting:", "`prepare_threshold=%s`" % first.prepare_threshold)
report("page", page)
report("uncast", uncast)
ANEW = "ALTER FUNCTION feed_read(anyelement, text, integer, integer, integer, text[]) COST 1000"
report("add", lambda: altered("one", "ALTER TABLE outbox ADD COLUMN one int"))
report("replan", lambda: altered("two", f"ALTER TABLE outbox ADD COLUMN two int; {ANEW}"))
report("retype", lambda: altered("two", "ALTER TABLE outbox ALTER COLUMN two TYPE bigint"))
report("to_jsonb", lambda: altered("three", "ALTER TABLE outbox ADD COLUMN three int", "to_jsonb(entry)"))
report("call", call)
report("pipeline", pipeline)
report("cursor", cursor)
report("declare", declare)
xid, pos, scheduled = first.execute(
    "SELECT feed_xid, feed_pos, scheduled FROM feed_fetch(NULL::outbox, '0', 0, 1)").fetchone()
entry, json = first.execute(
    "SELECT entry, feed_page('outbox', '', 1) FROM feed_read(NULL::outbox, '', 1)").fetchone()
report("xid8", lambda: type(xid).__name__)
report("bigint", lambda: type(pos).__name__)
report("timestamptz", lambda: type(scheduled).__name__)
report("json", lambda: type(json).__name__)
report("entry", lambda: type(entry).__name__)
report("digits", lambda: expect(json["entries"][0]["row"]["data"]["n"], 9007199254740993))
report("ack", ack)
report("wait", wait)
report("cancel", cancel)
report("session", session)
