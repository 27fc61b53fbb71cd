"""Rot in what no CRC covers, in a cluster: offsets, lengths, leader epochs and magics of a replica's batches.

Each flip is healed, or a reader gets an error; no replica stays out of the ISR for good, and none has a wrong
record. By default every few bits are tried; `make flips` tries all (KREPLICA_FLIP_BYTES).
"""

from __future__ import annotations

import ctypes
import logging
import os

import pytest

from kreplica.common.errors import KreplicaError
from kreplica.common.types import TopicPartition
from kreplica.log.checkpoint import EpochEntry
from tests.support.replicas import Replicas, batch

T0 = TopicPartition("t", 0)
ALL = int(os.environ.get("KREPLICA_FLIP_BYTES", "0")) > 0
BITS = range(17 * 8) if ALL else (0, 40, 57, 60, 75, 90, 110, 120, 122, 124, 127, 132)
SETTINGS = {"segment.bytes": 1000, "segment.index.bytes": 4096, "max.message.bytes": 900}


def append(at: Replicas, count: int, leader: int = 1) -> None:
    for _ in range(count):
        end = at.partition(leader).log_end_offset
        at.manager(leader).append(T0, batch(b"%03d" % end * 50), required_acks=1)
    for _ in range(3):
        at.settle()


def filled() -> Replicas:
    """Three replicas with records of leader epochs 0 to 3."""
    at = Replicas(settings=SETTINGS)
    for epoch in range(4):
        append(at, 5)
        if epoch < 3:
            at.elect(1)
            at.settle()
    return at


def flip(at: Replicas, broker: int, offset: int, bit: int) -> None:
    log = at.partition(broker).local_log
    segment = log.local.segments[log.local.segments.index_for(offset)]
    found = segment.position_of(offset)
    assert found is not None
    cell = segment.region.slice(found[0] + bit // 8, 1)
    ctypes.c_uint8.from_address(cell.address).value ^= 1 << bit % 8


def back_in_sync(at: Replicas, count: int) -> None:
    """All replicas are in sync, and have the same records."""
    wanted = [b"%03d" % offset * 50 for offset in range(count)]
    for _ in range(60):
        at.pass_time(1_000)
        at.notify(at.controller.partitions[T0])
        try:
            if set(at.partition(1).isr) == {1, 2, 3} and all(at.values(each) == wanted for each in at.ids):
                return
        except KreplicaError:
            continue  # a reader gets an error
    raise AssertionError([at.partition(1).isr, *(at.partition(each) for each in at.ids)])


@pytest.mark.parametrize("offset", [0, 7, 19])
@pytest.mark.parametrize("bit", BITS)
def test_a_killed_follower_comes_back_in_sync(offset: int, bit: int) -> None:
    at = filled()
    flip(at, 2, offset, bit)
    at.cluster.kill(2)
    append(at, 5)
    at.cluster.start(2)
    at.notify(at.controller.partitions[T0])
    back_in_sync(at, 25)
    epochs = at.partition(2).local_log.epochs.entries
    assert epochs == at.partition(1).local_log.epochs.entries


@pytest.mark.parametrize("offset", [20, 22, 24])
@pytest.mark.parametrize("bit", BITS)
def test_a_follower_that_lags_takes_nothing_wrong_from_its_leader(offset: int, bit: int) -> None:
    """The leader finds its rot when it is asked for it, and takes the range from the other follower."""
    at = filled()
    at.cluster.kill(2)
    append(at, 5)
    flip(at, 1, offset, bit)
    at.cluster.start(2)
    at.notify(at.controller.partitions[T0])
    back_in_sync(at, 25)


def test_a_leader_epoch_that_the_leader_never_had_is_cut_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever brought it into the follower's epochs, it fetches in vain, and begins again there."""
    at = filled()
    log = at.partition(2).local_log
    with caplog.at_level(logging.WARNING):
        log.epochs.assign(17, 18)
        at.elect(1)
        append(at, 5)
        back_in_sync(at, 25)
    assert EpochEntry(17, 18) not in at.partition(2).local_log.epochs.entries
    said = [record.getMessage() for record in caplog.records]
    assert any("t-0" in each and "makes no progress at offset 20" in each for each in said)
    assert any("leader epoch 17" in each for each in said)
