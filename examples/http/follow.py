#!/usr/bin/env python3
"""follow.py: follows a feed over HTTP.

    follow.py [--begin-again] [--jwt JWT] URL FILE
    follow.py http://localhost:8080/feeds/outbox cursor.txt

Hands each entry to handle(), and writes the cursor into the file when a page has
been handled, from where it goes on when it is started again.  If it is killed in
between, the entries of that page come again; none is left out.  So handle() must
bear an entry that comes twice; better, it writes the cursor in the transaction
that writes its results.

410 says that the cursor is not accepted any more.  With --begin-again the feed is
read from its beginning then: empty what you keep of it in begin_again().

Needs requests.
"""
import argparse
import json
import os
import sys
import time

import requests


def handle(entry):
    """Yours: here it prints the entry."""
    print(json.dumps(entry), flush=True)


def begin_again():
    """Yours: what is kept of the feed is to be emptied."""


def load(file):
    try:
        with open(file, encoding="ascii") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def save(file, cursor):
    with open(file + ".new", "w", encoding="ascii") as f:
        f.write(cursor)
    os.replace(file + ".new", file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--begin-again", action="store_true")
    parser.add_argument("--jwt")
    parser.add_argument("url")
    parser.add_argument("file")
    args = parser.parse_args()
    session = requests.Session()
    if args.jwt:
        session.headers["Authorization"] = "Bearer " + args.jwt
    cursor = load(args.file)
    pause = 1
    while True:
        try:
            # answered when there is something, or after 30 s
            response = session.get(args.url, timeout=(10, 60), params={
                "after": cursor, "limit": 1000, "wait": 30})
        except requests.RequestException as error:
            response = None
            print("follow.py:", error, file=sys.stderr)
        if response is None or response.status_code >= 500 or response.status_code == 429:
            time.sleep(pause)
            pause = min(2 * pause, 30)
            continue
        pause = 1
        if response.status_code == 410 and args.begin_again:
            begin_again()
            cursor = ""
            continue
        if response.status_code != 200:
            sys.exit(f"follow.py: {response.status_code}: {response.text}")
        page = response.json()
        for entry in page["entries"]:
            handle(entry)
        if page["cursor"] != cursor:
            cursor = page["cursor"]
            save(args.file, cursor)


main()
