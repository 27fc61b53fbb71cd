"""A small file that is read and replaced as a whole."""

from __future__ import annotations

import pytest

from kreplica.common.errors import InvalidFile
from kreplica.log.small_file import SmallFile
from kreplica.sim.storage import SimStorage


class NumberFile(SmallFile[int]):
    NAME = "number"

    @staticmethod
    def format(content: int) -> bytes:
        return b"%d" % content

    @staticmethod
    def parse(data: bytes, path: str) -> int:
        if not data.isdigit():
            raise InvalidFile(f"{path}: {data!r} is not a number")
        return int(data)


def test_it_is_missing_until_it_is_written_and_survives_a_power_cut() -> None:
    storage = SimStorage()
    storage.make_directory("/data")
    file = NumberFile(storage, "/data")
    assert not file.exists()
    assert file.read() is None
    storage.sync_directory("/data")
    file.write(7)
    assert file.exists()
    assert NumberFile(storage.after_power_cut(keeps_names=True), "/data").read() == 7


def test_it_follows_its_directory() -> None:
    storage = SimStorage()
    storage.make_directory("/data")
    file = NumberFile(storage, "/data")
    file.write(7)
    storage.rename("/data", "/elsewhere")
    file.directory = "/elsewhere"
    assert file.read() == 7


def test_an_error_names_the_file() -> None:
    storage = SimStorage()
    storage.make_directory("/data")
    storage.write_file("/data/number", b"seven")
    with pytest.raises(InvalidFile, match="/data/number: b'seven'"):
        NumberFile(storage, "/data").read()
