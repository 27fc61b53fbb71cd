"""A program that is interrupted in a call of a log, at one instruction after the other, and goes on.

Run as `python -m tests.crash.interrupted_log OPERATION EXCEPTION STRIDE DIRECTORY`: it calls the operation
once for every STRIDE-th instruction of it, each time on a new log, and each time lets the exception be raised
there. Then it appends, rolls and flushes, in another thread too, reads all, closes, and opens the log again.
Nothing that was acknowledged may be missing, nothing may be damaged, and nothing may wait: after a minute of
silence faulthandler prints where the program stands, and ends it. Prints how many interruptions there were.
"""

from __future__ import annotations

import builtins
import faulthandler
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kreplica
from tests.support.batches import build
from tests.support.interrupting import interrupted

PATIENCE_SECONDS = 60
Pair = tuple[bytes | None, bytes | None]
BEFORE: list[Pair] = [(b"k%d" % (number % 4), b"%03d" % number * 40) for number in range(12)]
AFTER: list[Pair] = [(b"x", b"after"), (b"y", b"in a new segment"), (b"z", b"by another thread")]
NEW: Pair = (None, b"new" * 100)
SEQUENCED = build([(None, b"new" * 100)], producer_id=7, producer_epoch=0, base_sequence=0)


def pairs(log: kreplica.Log) -> list[Pair]:
    return [(record.key, record.value) for record in log.read()]


def one_of(*allowed: list[Pair]) -> Callable[[list[Pair]], bool]:
    return lambda found: found in allowed


def up_to_three_new(found: list[Pair]) -> bool:
    return found[:12] == BEFORE and found[12:] in ([], [NEW], [NEW] * 2, [NEW] * 3)


def beginning(found: list[Pair]) -> bool:
    return len(found) >= 5 and found == BEFORE[: len(found)]


def end(found: list[Pair]) -> bool:
    return found == BEFORE[12 - len(found) :]


def part(found: list[Pair]) -> bool:
    first = BEFORE.index(found[0]) if found else 0
    return found == BEFORE[first : first + len(found)]


def the_last_of_each_key(found: list[Pair]) -> bool:
    return dict(found) == dict(BEFORE)


def append_again(log: kreplica.Log) -> None:
    # A producer sends what was not acknowledged again; it is in the log once.
    log.append_batch(SEQUENCED)


@dataclass(frozen=True)
class Operation:
    """`fits`: whether a log may hold this afterwards. `then`: what the program does next."""

    call: Callable[[kreplica.Log], Any]
    fits: Callable[[list[Pair]], bool]
    settings: dict[str, Any] = field(default_factory=dict)
    then: Callable[[kreplica.Log], Any] = pairs


SMALL = {"segment_bytes": 600}
AS_IT_WAS = one_of(BEFORE)
PERHAPS_NEW = one_of(BEFORE, [*BEFORE, NEW])
OPERATIONS = {
    "append": Operation(lambda log: log.append([NEW]), PERHAPS_NEW),
    "append-fsync": Operation(lambda log: log.append([NEW]), PERHAPS_NEW, {"durability": "fsync"}),
    "append-compressed": Operation(lambda log: log.append([NEW]), PERHAPS_NEW, {"compression_type": "lz4"}),
    "append-in-new-epoch": Operation(lambda log: log.append([NEW], leader_epoch=3), PERHAPS_NEW),
    "append-over-rolls": Operation(lambda log: [log.append([NEW]) for _ in range(3)], up_to_three_new, SMALL),
    "append-sequenced": Operation(append_again, one_of([*BEFORE, NEW]), then=append_again),
    "roll": Operation(lambda log: log.roll(), AS_IT_WAS),
    "flush": Operation(lambda log: log.flush(), AS_IT_WAS),
    "truncate": Operation(lambda log: log.truncate_to(5), beginning, SMALL),
    "truncate-fully": Operation(lambda log: log._log.truncate_fully_and_start_at(3), part, SMALL),
    "truncate-to-higher": Operation(
        lambda log: log._log.truncate_fully_and_start_at(1_000), one_of([], BEFORE), SMALL
    ),
    "delete-records": Operation(lambda log: log.delete_records(5), end),
    "delete-segments": Operation(
        lambda log: log.delete_old_segments(), end, {**SMALL, "retention_bytes": 700}
    ),
    "compact": Operation(
        lambda log: log.compact(dedupe_buffer_size=1 << 16),
        the_last_of_each_key,
        {"cleanup_policy": "compact"},
    ),
    "close": Operation(lambda log: log.close(), AS_IT_WAS),
    "open": Operation(lambda log: kreplica.Log.open(log.path).close(), AS_IT_WAS),
    "read": Operation(lambda log: list(log.read()), AS_IT_WAS, SMALL),
}
# The log is closed by then.
ENDS = ("close", "open")


def go_on(log: kreplica.Log) -> list[Pair]:
    """What the program does after it was interrupted; what the log holds then."""
    log.append([AFTER[0]])
    log.roll()
    log.append([AFTER[1]])

    def append() -> None:
        log.append([AFTER[2]])
        log.flush()

    thread = threading.Thread(target=append)
    thread.start()
    thread.join()
    return pairs(log)


def run(operation: str, kind: type[BaseException], instruction: int, path: Path) -> bool:
    """Interrupt the operation at `instruction`; return False if it has fewer instructions."""
    todo = OPERATIONS[operation]
    log = kreplica.Log.open(path, **todo.settings)
    for pair in BEFORE:
        log.append([pair])
    held = next(iter(log.read()))
    if operation == "open":
        log.close()
    came = interrupted(lambda: todo.call(log), instruction, kind)
    if operation in ENDS:
        log.close()
        expected = BEFORE
    else:
        todo.then(log)
        expected = go_on(log)
        assert held.value == BEFORE[0][1]
        assert log.damage is None, log.damage
        assert expected[-3:] == AFTER, expected
        assert todo.fits(expected[:-3]), expected
        log.close()
    with kreplica.Log.open(path, **todo.settings) as log:
        assert log.damage is None, log.damage
        assert pairs(log) == expected
        assert log.recovery.clean or operation in ENDS
        assert log.append(AFTER).record_count == 3
    return came


def main(operation: str, name: str, stride: str, directory: str) -> None:
    kind, instruction, runs = getattr(builtins, name), 1, 0
    while True:
        faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
        path = Path(directory) / "t-0"
        try:
            came = run(operation, kind, instruction, path)
        except BaseException as error:
            error.add_note(f"{operation}, {name} at instruction {instruction}")
            raise
        shutil.rmtree(path)
        if not came:
            break
        runs += 1
        instruction += int(stride)
    print(runs)


if __name__ == "__main__":
    main(*sys.argv[1:])
