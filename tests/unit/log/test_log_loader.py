"""Opening a log after its writer died: what the files said too early does not come back later."""

from __future__ import annotations

import shutil
from pathlib import Path

import kreplica
from kreplica.log.verify import verify
from kreplica.runtime.storage import FileStorage


def killed(log: kreplica.Log, name: str) -> Path:
    """A copy of the directory, as it is left when the process dies now."""
    return shutil.copytree(log.path, Path(log.path).parent / name)


def test_an_epoch_whose_first_batch_was_never_written(tmp_path: Path) -> None:
    """Epoch 1 is in the checkpoint, its writer dies, and epoch 0 goes on over the offset where it began."""
    with kreplica.Log.open(tmp_path / "first-0") as log:
        log.append([b"a"], leader_epoch=0)
        log.roll()
        log.flush()  # so that only what follows is read when it is opened again
        log.append([b"b"])
        after_kill = killed(log, "second-0")
    (after_kill / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 2\n")
    with kreplica.Log.open(after_kill) as log:
        log.append([b"c"])
        log.append([b"d"])
        after_kill = killed(log, "third-0")
    assert list(verify(FileStorage(), str(after_kill))) == []
    with kreplica.Log.open(after_kill) as log:
        assert log.damage is None
        assert [record.value for record in log.read()] == [b"a", b"b", b"c", b"d"]


def test_an_epoch_that_was_truncated(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "first-0") as log:
        log.append([b"a", b"b"], leader_epoch=0)
        log.append([b"c"], leader_epoch=1)
        log.truncate_to(2)
        log.append([b"d"], leader_epoch=0)
        log.append([b"e"], leader_epoch=0)
        after_kill = killed(log, "second-0")
    assert list(verify(FileStorage(), str(after_kill))) == []
    with kreplica.Log.open(after_kill) as log:
        assert [record.value for record in log.read()] == [b"a", b"b", b"d", b"e"]
