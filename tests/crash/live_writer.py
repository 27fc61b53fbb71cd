"""A program that appends to a log, rolls it and lets old segments go, until its input is closed.

Run as `python live_writer.py DIRECTORY`. All records of a batch have its number and say how many they are, so
a torn one shows; each value begins with its own offset. A line is printed once there is something to read.
"""

from __future__ import annotations

import random
import select
import sys

import kreplica

SETTINGS = {"segment_bytes": 64 << 10, "retention_ms": -1, "segment_index_bytes": 4096}
KEEP = 2000


def main() -> None:
    chance = random.Random(3)
    with kreplica.Log.open(sys.argv[1], **SETTINGS) as log:
        for number in range(1_000_000_000):
            end = log.log_end_offset
            filler = bytes(chance.randrange(300))
            count = chance.randrange(1, 8)
            log.append(
                [b"%d:%d:%d:" % (offset, number, count) + filler for offset in range(end, end + count)]
            )
            if number == 0:
                print("go", flush=True)
            if number % 50 == 0 and end > KEEP:
                log.delete_records(end - KEEP)
                log.delete_old_segments()
            if number % 20 == 0 and select.select([sys.stdin], [], [], 0)[0]:
                return


if __name__ == "__main__":
    main()
