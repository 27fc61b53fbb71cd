"""Lost ranges come back from another replica, byte for byte, where both agree; else nothing is touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kreplica
from kreplica._core.record_batch import stamp_crc
from kreplica.log.repair import Finding, repair
from kreplica.log.verify import verify
from kreplica.runtime.storage import FileStorage
from tests.support.logs import ManualClock
from tests.unit.log.repair.test_repair import damage, frames, offsets, segment

STORAGE = FileStorage()
Damage = Callable[[Path], None]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two replicas of a log of three segments of four batches with three records each."""
    path = tmp_path / "one" / "orders-0"
    with kreplica.Log.open(path) as log:
        for part in range(3):
            if part:
                log.roll()
            for batch in range(4):
                log.append([b"%d/%d" % (part, batch)] * 3, leader_epoch=part)
    return path, shutil.copytree(path, tmp_path / "two" / "orders-0")


def take(path: Path, peer: Path, *, apply: bool = True) -> list[Finding]:
    return list(repair(STORAGE, ManualClock(), str(path), apply_changes=apply, peer=str(peer)))


def same(path: Path, peer: Path) -> bool:
    ours, theirs = ({f.name: f.read_bytes() for f in each.glob("*.log")} for each in (path, peer))
    return ours == theirs


def rot(path: Path) -> None:
    damage(segment(path, 12), frames(segment(path, 12))[1][1] - 1, b"?")


def rot_at_both_ends_of_a_segment(path: Path) -> None:
    found = frames(segment(path, 12))
    damage(segment(path, 12), found[0][1] - 1, b"?")
    damage(segment(path, 12), found[3][1] - 1, b"?")


def rot_at_the_end(path: Path) -> None:
    damage(segment(path, 24), frames(segment(path, 24))[3][0] + 30, b"??")


def cut_short(path: Path) -> None:
    segment(path, 12).write_bytes(segment(path, 12).read_bytes()[:100])


def cut_short_at_the_end(path: Path) -> None:
    segment(path, 24).write_bytes(segment(path, 24).read_bytes()[:-100])


def without_a_segment(path: Path) -> None:
    segment(path, 12).unlink()


def without_the_last_segment(path: Path) -> None:
    segment(path, 24).unlink()


def nothing_left_of_a_segment(path: Path) -> None:
    segment(path, 12).write_bytes(b"")


@pytest.mark.parametrize("first", [False, True], ids=["at once", "after a quarantine"])
@pytest.mark.parametrize(
    "spoil",
    [
        rot,
        rot_at_both_ends_of_a_segment,
        rot_at_the_end,
        cut_short,
        cut_short_at_the_end,
        without_a_segment,
        without_the_last_segment,
        nothing_left_of_a_segment,
    ],
)
def test_what_was_lost_comes_back(pair: tuple[Path, Path], spoil: Damage, first: bool) -> None:
    path, peer = pair
    spoil(path)
    if first:
        assert all(f.done for f in repair(STORAGE, ManualClock(), str(path), apply_changes=True))
        assert not same(path, peer)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert "take from peer" in {finding.action for finding in take(path, peer, apply=False)}
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert all(finding.done for finding in take(path, peer))
    assert same(path, peer)
    assert list(verify(STORAGE, str(path))) == []
    assert not list(path.glob("*.rot*"))
    assert offsets(path) == list(range(36))


def other_record(peer: Path) -> None:
    """In the batch before the damage."""
    image = bytearray(segment(peer, 12).read_bytes())
    position, end, *_ = frames(segment(peer, 12))[0]
    batch = bytearray(image[position:end])
    batch[-3] ^= 1
    stamp_crc(batch)
    image[position:end] = batch
    segment(peer, 12).write_bytes(image)


def other_epoch(peer: Path) -> None:
    (peer / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n1 12\n2 17\n")


def rotten_too(peer: Path) -> None:
    damage(segment(peer, 12), frames(segment(peer, 12))[1][0] + 70, b"?")


def quarantined_too(peer: Path) -> None:
    rot(peer)
    assert list(repair(STORAGE, ManualClock(), str(peer), apply_changes=True))


def shorter(peer: Path) -> None:
    segment(peer, 24).unlink()
    segment(peer, 12).write_bytes(segment(peer, 12).read_bytes()[: frames(segment(peer, 12))[0][1]])


def empty(peer: Path) -> None:
    for file in peer.iterdir():
        file.unlink()


def gone(peer: Path) -> None:
    shutil.rmtree(peer)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_record, "another batch at offset 12"),
        (other_epoch, "leader epochs"),
        (rotten_too, "rotted, too"),
        (quarantined_too, "has lost the offsets from 15 to 17, too"),
        (shorter, "no batch at offset 18"),
        (empty, "no batch at offset 12"),
        (gone, ""),
    ],
)
def test_a_peer_that_disagrees_is_refused(pair: tuple[Path, Path], change: Damage, reason: str) -> None:
    path, peer = pair
    rot(path)
    change(peer)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    found = take(path, peer)
    assert all(finding.is_open for finding in found)
    (refusal,) = [finding for finding in found if finding.kind == "PeerDisagrees"]
    assert reason in refusal.text
    assert before.items() <= {file.name: file.read_bytes() for file in path.iterdir()}.items()


def test_where_nothing_is_left_there_is_nothing_to_compare(pair: tuple[Path, Path]) -> None:
    path, peer = pair
    for file in path.glob("*.log"):
        file.write_bytes(b"")
    assert {"PeerDisagrees"} <= {finding.kind for finding in take(path, peer)}


def test_a_node_takes_from_the_same_partition_of_another(pair: tuple[Path, Path]) -> None:
    path, peer = pair
    rot(path)
    assert [finding.done for finding in take(path.parent, peer.parent)] == [True]
    assert same(path, peer)
