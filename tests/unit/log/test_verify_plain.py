"""Passing over plain batches changes nothing that a verification says."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

import kreplica
from kreplica.log.verify import Problem, verify
from kreplica.log.verify.segment import PlainRuns
from kreplica.sim.storage import SimStorage
from tests.support.clock import ManualClock

DIRECTORY = "/data/orders-0"


def written(seed: int, index_interval_bytes: int) -> SimStorage:
    storage, noise = SimStorage(), random.Random(seed)
    storage.make_directory("/data")
    clock = ManualClock()
    log = kreplica.Log.open(
        DIRECTORY, storage=storage, clock=clock, index_interval_bytes=index_interval_bytes
    )
    for number in range(20):
        if number in (7, 13):
            log.roll()
        clock.now_ms += noise.randrange(3)
        log.append([noise.randbytes(40) for _ in range(noise.randrange(1, 5))], leader_epoch=number // 9)
    log.close()
    return storage


def said(storage: SimStorage, *, one_by_one: bool) -> list[Problem]:
    advance = PlainRuns.advance
    if one_by_one:
        PlainRuns.advance = lambda self: self.walk.look()  # type: ignore[method-assign]
    try:
        return list(verify(storage, DIRECTORY))
    finally:
        PlainRuns.advance = advance  # type: ignore[method-assign]


def test_a_broken_batch_is_reported_with_its_position_in_the_file() -> None:
    storage = written(1, 0)
    (path,) = [f"{DIRECTORY}/{name}" for name in storage.list_directory(DIRECTORY) if "20.log" in name]
    image = bytearray(storage.read_file(path))
    image[420] ^= 1
    storage.write_file(path, bytes(image))
    for one_by_one in (False, True):
        first, *_ = said(storage, one_by_one=one_by_one)
        assert (first.position, first.text[:23]) == (404, "reading a batch at 404:")


@given(st.data(), st.integers(0, 3), st.sampled_from([0, 100, 4096]))
def test_it_finds_what_a_look_at_each_batch_finds(
    data: st.DataObject, seed: int, index_interval_bytes: int
) -> None:
    storage = written(seed, index_interval_bytes)
    names = [name for name in storage.list_directory(DIRECTORY) if name != ".lock"]
    for _ in range(data.draw(st.integers(0, 3))):
        path = f"{DIRECTORY}/{data.draw(st.sampled_from(names))}"
        image = bytearray(storage.read_file(path))
        if not image:
            continue
        at = data.draw(st.integers(0, len(image) - 1))
        if data.draw(st.booleans()):
            image[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            image[at:] = data.draw(st.sampled_from([b"", b"\0" * 30]))
        storage.write_file(path, bytes(image))
    assert said(storage, one_by_one=False) == said(storage, one_by_one=True)
