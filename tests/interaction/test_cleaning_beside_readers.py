"""Readers in the same process and beside it, while segments are replaced under their eyes all the time."""

from __future__ import annotations

import sys
import threading

import pytest

import kreplica

KEYS = 5
ROUNDS = 40
SETTINGS = {"cleanup_policy": "compact", "segment_bytes": 4000, "segment_index_bytes": 4096}


def append(log, count):
    """Record `offset` has the key offset % KEYS, and a value that begins with its offset."""
    for _ in range(count):
        offset = log.log_end_offset
        log.append([(b"%d" % (offset % KEYS), b"%d:" % offset + bytes(300))])


class Reader(threading.Thread):
    """Reads the log over and over; `failure`: what it met."""

    def __init__(self, log):
        super().__init__()
        self.log = log
        self.stopped = threading.Event()
        self.failure = None
        self.passes = 0

    def run(self):
        try:
            while not self.stopped.is_set():
                self.look()
                self.passes += 1
        except BaseException as error:
            self.failure = error

    def look(self):
        end = self.log.log_end_offset
        last = -1
        found = set()
        for record in self.log.read():
            assert record.offset > last
            assert record.value.startswith(b"%d:" % record.offset)
            assert record.key == b"%d" % (record.offset % KEYS)
            last = record.offset
            found.add(last)
        # What was the last of its key when the reading began may have been overwritten since, by a later one.
        for key in range(KEYS):
            newest = max((offset for offset in found if offset % KEYS == key), default=-1)
            assert newest >= end - 1 - (end - 1 - key) % KEYS, (key, newest, end)


@pytest.fixture
def short_turns():
    """Let threads take turns often: the writer is met at more places, and does not wait long for its turn."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 50)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("short_turns")
def test_no_reader_sees_a_torn_view(tmp_path):
    with kreplica.Log.open(tmp_path / "t-0", **SETTINGS) as log:
        append(log, KEYS)
        with kreplica.Log.open(tmp_path / "t-0", read_only=True) as beside:
            readers = [Reader(log), Reader(beside)]
            for reader in readers:
                reader.start()
            try:
                for number in range(ROUNDS):
                    append(log, 30)
                    log.compact()
                    if number % 4 == 3:
                        log._log.idle()
            finally:
                for reader in readers:
                    reader.stopped.set()
                for reader in readers:
                    reader.join()
        assert [reader.failure for reader in readers] == [None, None]
        assert all(reader.passes for reader in readers)
        assert len(list(log.read())) == KEYS


def test_a_reader_that_began_before_reads_what_was_there_then(tmp_path):
    with kreplica.Log.open(tmp_path / "t-0", **SETTINGS) as log:
        append(log, 100)
        with kreplica.Log.open(tmp_path / "t-0", read_only=True) as beside:
            begun = [log.read(), beside.read()]
            first = [next(each).offset for each in begun]
            log.compact()
            assert first == [0, 0]
            for each in begun:
                assert [record.offset for record in each] == list(range(1, 100))
            assert [record.offset for record in beside.read()] == list(range(95, 100))
