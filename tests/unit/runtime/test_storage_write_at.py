"""FileStorage.write_at and sync_file: small appended files without a region."""

from pathlib import Path

import pytest

from kreplica.common.errors import KafkaStorageError
from kreplica.runtime.storage import FileStorage


def test_write_at_creates_extends_and_overwrites(tmp_path: Path) -> None:
    storage = FileStorage()
    path = tmp_path / "file"
    storage.write_at(str(path), 0, b"abcdef")
    storage.write_at(str(path), 6, b"gh")
    storage.write_at(str(path), 2, b"X")
    storage.sync_file(str(path))
    assert path.read_bytes() == b"abXdefgh"


def test_missing_files_and_directories_are_typed_errors(tmp_path: Path) -> None:
    storage = FileStorage()
    with pytest.raises(KafkaStorageError):
        storage.write_at(str(tmp_path / "none" / "file"), 0, b"x")
    with pytest.raises(KafkaStorageError):
        storage.sync_file(str(tmp_path / "none"))
