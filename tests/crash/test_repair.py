"""Any byte of any file flipped, any file cut short, any segment gone: after a repair the log opens for
writing, holds every record whose batch was left alone at its offset, and nothing else.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import kreplica
from kreplica.log.repair import Finding, repair
from kreplica.log.verify import verify
from kreplica.sim.storage import SimStorage
from tests.support.clock import ManualClock
from tests.support.crashing import DIRECTORY, Stopped, abandon, open_log

LIMITS = settings(
    max_examples=int(os.environ.get("KREPLICA_REPAIRS", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
ENDINGS = ("clean", "killed", "restarted")


def written(ending: str, seed: int) -> tuple[SimStorage, dict[int, bytes]]:
    """A log of some segments, epochs and batch sizes, and what each offset holds."""
    storage, noise = SimStorage(), random.Random(seed)
    storage.make_directory("/data")
    storage.sync_directory("/")
    log = open_log(storage)
    values: dict[int, bytes] = {}
    for number in range(14):
        if number in (4, 9, 10):
            log.roll()
        made = [noise.randbytes(noise.randrange(60)) for _ in range(noise.randrange(1, 4))]
        info = log.append(made, leader_epoch=number // 6)
        values.update(enumerate(made, info.base_offset))
    if ending == "clean":
        log.close()
        return storage, values
    if ending == "restarted":
        log.flush()
        log._log.flush_state()
        storage.sync_directory("/data")
        storage.sync_directory(DIRECTORY)
        abandon(log)
        return storage.after_power_cut(), values
    abandon(log)
    return storage.after_kill(), values


def mend(storage: SimStorage, *, apply: bool = True, peer: str | None = None) -> list[Finding]:
    return list(repair(storage, ManualClock(), DIRECTORY, apply_changes=apply, peer=peer))


def spans(storage: SimStorage) -> dict[str, list[tuple[int, int, int, int]]]:
    """For each segment, (position, end, base offset, next offset) of its batches."""
    found: dict[str, list[tuple[int, int, int, int]]] = {}
    for name in storage.list_directory(DIRECTORY):
        if name.endswith(".log"):
            data, position = storage.read_file(f"{DIRECTORY}/{name}"), 0
            data = data[: len(data.rstrip(b"\0")) + 60]
            found[name] = []
            for batch in kreplica._core.records.batches(data, partial=True) if data.strip(b"\0") else ():
                found[name].append((position, position + batch.size, batch.base_offset, batch.next_offset))
                position += batch.size
                if not data[position:].strip(b"\0"):
                    break
    return found


def read(storage: SimStorage) -> dict[int | None, bytes | None]:
    log = open_log(storage)
    assert log.damage is None
    found = {record.offset: record.value for record in log.read()}
    end = log.log_end_offset
    info = log.append([b"goes on"])
    assert info.base_offset == end
    log.close()
    return found


@LIMITS
@given(st.data(), st.sampled_from(ENDINGS), st.integers(0, 3))
def test_every_record_left_alone_is_read_after_a_repair(data, ending, seed):
    storage, values = written(ending, seed)
    frames = spans(storage)
    spoilt: set[int] = set()
    names = [name for name in storage.list_directory(DIRECTORY) if name != ".lock"]
    # One fault in each file: where several come together, one may make another look right.
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        path = f"{DIRECTORY}/{name}"
        if name in frames and name not in (min(frames), max(frames)) and data.draw(st.booleans()):
            storage.remove(path)
            spoilt |= {offset for *_, base, following in frames[name] for offset in range(base, following)}
            continue
        image = bytearray(storage.read_file(path))
        used = frames[name][-1][1] if frames.get(name) else len(image)
        if not image or not used:
            continue
        at = data.draw(st.integers(0, used - 1))
        cut = data.draw(st.booleans())
        if cut:
            image = image[:at]
        elif at < len(image):
            image[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            continue
        storage.write_file(path, bytes(image))
        for position, end, base, following in frames.get(name, ()):
            if (cut and end > at) or (not cut and position <= at < end):
                spoilt |= set(range(base, following))
    before = {n: storage.read_file(f"{DIRECTORY}/{n}") for n in storage.list_directory(DIRECTORY)}
    planned = mend(storage, apply=False)
    assert before == {n: storage.read_file(f"{DIRECTORY}/{n}") for n in storage.list_directory(DIRECTORY)}
    done = mend(storage)
    assert all(not f.is_open for f in done), done
    assert bool(planned) == bool(done)
    assert [p for p in verify(storage, DIRECTORY) if not p.is_known] == []
    found = read(storage)
    for offset, value in values.items():
        if offset not in spoilt:
            assert found.get(offset) == value, f"{offset} is lost: {done}"
    for offset, value in found.items():
        assert values.get(offset) == value, f"{offset} was never written"
    assert all(not f.is_open for f in mend(storage, apply=False))


def test_what_fills_a_lost_segment_has_no_epoch_that_the_same_repair_corrects():
    """The bytes of a segment are gone, and the batch before it has a leader epoch that cannot be."""
    storage, _ = written("clean", 1)
    storage.write_file(f"{DIRECTORY}/00000000000000000008.log", b"")
    first = f"{DIRECTORY}/00000000000000000000.log"
    image = bytearray(storage.read_file(first))
    image[spans(storage)["00000000000000000000.log"][1][0] + 12] ^= 1
    storage.write_file(first, bytes(image))
    done = mend(storage)
    assert {"EpochRegression", "Rot"} <= {f.kind for f in done}
    assert all(not f.is_open for f in done), done


def spoil(storage: SimStorage) -> set[int]:
    """Rot in two segments, a third one cut short, and an index that lies; the offsets that are lost."""
    lost: set[int] = set()
    for name, frames in spans(storage).items():
        path, image = f"{DIRECTORY}/{name}", bytearray(storage.read_file(f"{DIRECTORY}/{name}"))
        if len(frames) < 2:
            continue
        _, end, base, following = frames[1]
        image[end - 1] ^= 1
        lost |= set(range(base, following))
        storage.write_file(path, bytes(image))
        storage.write_file(path[:-3] + "index", b"\x07" * 16)
    for name in storage.list_directory(DIRECTORY):
        storage.sync_file(f"{DIRECTORY}/{name}")
    storage.sync_directory(DIRECTORY)
    return lost


@LIMITS
@given(st.sampled_from(ENDINGS), st.integers(0, 90), st.booleans(), st.integers(0, 1 << 20))
def test_a_repair_that_stops_anywhere_loses_nothing(ending, stop_at, power, seed):
    storage, values = written(ending, 1)
    lost = spoil(storage)
    left = [stop_at]

    def before(_operation: str, _path: str) -> None:
        if left[0] == 0:
            raise Stopped
        left[0] -= 1

    storage.before = before
    with suppress(Stopped):
        mend(storage)
    storage.before = None
    noise = random.Random(seed)
    storage = storage.after_power_cut(noise) if power else storage.after_kill()
    if seed % 2 and not (ending == "killed" and power):
        # The log is opened before it is repaired again. (Recovery cuts what was never flushed.)
        log = open_log(storage)
        log.close()
    assert all(not f.is_open for f in mend(storage))
    found = read(storage)
    assert {offset: found.get(offset) for offset in values.keys() - lost} == {
        offset: value for offset, value in values.items() if offset not in lost
    }
    assert found.keys() <= values.keys()


PEER = "/data/peer-0"
EPOCH = slice(12, 16)


def is_hidden(storage: SimStorage, frames: dict[str, Any], name: str, at: int) -> bool:
    """Whether a flipped bit at `at` is in a batch's leader epoch, and the epochs are still in order.

    No CRC covers the epoch. Only the checkpoint contradicts then, and a repair believes the batches.
    """
    if not any(start + EPOCH.start <= at < start + EPOCH.stop for start, *_ in frames[name]):
        return False
    epochs = []
    for each, found in sorted(frames.items()):
        image = storage.read_file(f"{DIRECTORY}/{each}")
        epochs += [int.from_bytes(image[start:][EPOCH], "big", signed=True) for start, *_ in found]
    return epochs == sorted(epochs)


def used(storage: SimStorage, directory: str) -> dict[str, bytes]:
    """The segments of a log without what was allocated ahead."""
    names = [name for name in storage.list_directory(directory) if name.endswith(".log")]
    return {name: storage.read_file(f"{directory}/{name}").rstrip(b"\0") for name in names}


@LIMITS
@given(st.data(), st.sampled_from(["clean", "killed"]), st.integers(0, 3), st.integers(0, 120), st.booleans())
def test_with_a_good_peer_everything_comes_back(data, ending, seed, stop_at, power):
    storage, values = written(ending, seed)
    storage.make_directory(PEER)
    storage.sync_directory("/data")
    for name in storage.list_directory(DIRECTORY):
        storage.write_file_atomically(f"{PEER}/{name}", storage.read_file(f"{DIRECTORY}/{name}"))
        storage.sync_file(f"{DIRECTORY}/{name}")
    storage.sync_directory(DIRECTORY)
    frames = spans(storage)
    # Each range lies between batches that are left: there the replicas are compared.
    name = data.draw(st.sampled_from([n for n, found in frames.items() if found]))
    path, image = f"{DIRECTORY}/{name}", bytearray(storage.read_file(f"{DIRECTORY}/{name}"))
    kind = data.draw(st.sampled_from(["flip", "cut", "gone"]))
    at = data.draw(st.integers(0, frames[name][-1][1] - 1))
    if kind == "gone" and name != min(frames):
        storage.remove(path)
    elif kind == "cut":
        storage.write_file(path, bytes(image[:at]))
    else:
        image[at] ^= 1 << data.draw(st.integers(0, 7))
        storage.write_file(path, bytes(image))
        assume(not is_hidden(storage, frames, name, at))
    for left in storage.list_directory(DIRECTORY):
        storage.sync_file(f"{DIRECTORY}/{left}")
    storage.sync_directory(DIRECTORY)
    steps = [stop_at]

    def before(_operation: str, _path: str) -> None:
        if steps[0] == 0:
            raise Stopped
        steps[0] -= 1

    storage.before = before
    with suppress(Stopped):
        mend(storage, peer=PEER)
    storage.before = None
    if ending == "clean" and power:
        storage = storage.after_power_cut(random.Random(seed))
    else:
        storage = storage.after_kill()
    done = mend(storage, peer=PEER)
    assert all(not f.is_open for f in done), done
    assert used(storage, DIRECTORY) == used(storage, PEER)
    assert list(verify(storage, DIRECTORY)) == []
    assert read(storage) == values
