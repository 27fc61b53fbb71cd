"""A program that is interrupted in `Cluster.append`, at one instruction after the other.

Run as `python -m tests.crash.interrupted_cluster STRIDE [EXCEPTION]`: by a signal's handler or, where an
exception is named, by another thread that raises it in the one that appends. After each interruption it
appends again, and at the end it reads: nothing acknowledged may be missing, no node may have met an error,
and nothing may wait. Prints how many interruptions there were.
"""

from __future__ import annotations

import builtins
import faulthandler
import signal
import sys
from functools import partial

import kreplica
from tests.support.interrupting import interrupted

PATIENCE_SECONDS = 60


class Interrupted(Exception):
    """Raised by the handler."""


def handle(_number: int, _frame: object) -> None:
    raise Interrupted


def main(stride: str, exception: str = "") -> None:
    signal.signal(signal.SIGALRM, handle)
    kind, number = (getattr(builtins, exception), None) if exception else (Interrupted, signal.SIGALRM)
    acknowledged: list[bytes] = []
    instruction = runs = 0
    with kreplica.Cluster(3) as cluster:
        cluster.create_topic("orders")

        def append(value: bytes) -> None:
            cluster.append("orders", [value], partition=0).result(PATIENCE_SECONDS)
            acknowledged.append(value)

        append(b"first")
        came = True
        while came:
            faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
            instruction += int(stride)
            again = partial(append, b"try %d" % instruction)
            came = interrupted(again, instruction, kind, number)
            append(b"after %d" % instruction)
            runs += came
        found = {record.value for record in cluster.read("orders", 0)}
        assert found >= set(acknowledged), set(acknowledged) - found
        assert cluster.failures == [], cluster.failures
    print(runs)


if __name__ == "__main__":
    main(*sys.argv[1:])
