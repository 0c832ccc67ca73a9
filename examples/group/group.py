#!/usr/bin/env python3
"""group.py: a group of workers on one machine.

    group.py SUBSCRIPTION [NUMBER]

Starts worker.py four times, or NUMBER times, as "HOST 1", "HOST 2", ...; starts
one that was killed again, under the same name, so that it goes on with the
shards that it has leased.  SIGTERM and SIGINT stop them all, each after the page
at hand.  When one gives up, because only a human can help, so do the others.

systemd or Kubernetes do the same for you: then start worker.py by itself.
"""
import pathlib
import signal
import socket
import subprocess
import sys

WORKER = pathlib.Path(__file__).with_name("worker.py")


def main(subscription, number="4"):
    workers = {}
    stopping = False
    status = 0

    def start(name):
        # Ctrl-C comes to them by itself, and from us once more: no harm.  With
        # SIGKILL, kill the process group, or they go on without us.
        workers[name] = subprocess.Popen(
            [sys.executable, WORKER, subscription, name])
        print(f"{name}: process {workers[name].pid}", file=sys.stderr, flush=True)
        if stopping:  # the signal came just now
            workers[name].terminate()

    def stop(*_):
        nonlocal stopping
        stopping = True
        for worker in list(workers.values()):
            worker.terminate()

    for n in signal.SIGTERM, signal.SIGINT:
        signal.signal(n, stop)
    for n in range(int(number)):
        start(f"{socket.gethostname()} {n + 1}")

    while workers:
        for name, worker in list(workers.items()):
            try:
                code = worker.wait(timeout=1 / len(workers))
            except subprocess.TimeoutExpired:
                continue
            del workers[name]
            if code > 0:  # it has said why
                status = code
                stop()
            elif code < 0 and not stopping:
                print(f"{name}: killed by signal {-code}", file=sys.stderr, flush=True)
                start(name)
    sys.exit(status)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: group.py SUBSCRIPTION [NUMBER]")
    main(*sys.argv[1:])
