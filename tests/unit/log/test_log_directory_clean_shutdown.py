"""The clean-shutdown marker: once taken it is gone, whatever happens next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica.common.errors import InvalidFile, KafkaStorageError
from kreplica.log.log_directory import CleanShutdownFile
from tests.support.damage import bit_flips, truncations
from tests.support.memory_storage import MemoryStorage

FILE = "data/.kafka_cleanshutdown"


def test_kafkas_bytes() -> None:
    storage = MemoryStorage()
    CleanShutdownFile(storage, "data").write(10)
    assert storage.durable == {FILE: b'{"version":0,"brokerEpoch":10}'}
    CleanShutdownFile(storage, "data").write()
    assert storage.durable == {FILE: b'{"version":0,"brokerEpoch":-1}'}


def test_taken_once_and_gone_even_if_the_power_goes_right_after() -> None:
    storage = MemoryStorage()
    CleanShutdownFile(storage, "data").write(10)
    assert CleanShutdownFile(storage, "data").take() == 10
    storage.crash()
    assert not CleanShutdownFile(storage, "data").exists()
    assert CleanShutdownFile(storage, "data").take() is None


@pytest.mark.parametrize(("data", "epoch"), [(b"", -1), (b'{"version":0}', None), (b"garbage", None)])
def test_empty_marker_of_old_kafka_counts_but_no_unreadable_one(data: bytes, epoch: int | None) -> None:
    storage = MemoryStorage()
    storage.write_file_atomically(FILE, data)
    assert CleanShutdownFile(storage, "data").take() == epoch
    assert storage.durable == {}


def test_a_marker_that_cannot_be_removed_is_an_error() -> None:
    storage = MemoryStorage()
    CleanShutdownFile(storage, "data").write()
    storage.fail = KafkaStorageError
    with pytest.raises(KafkaStorageError):
        CleanShutdownFile(storage, "data").take()


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":1,"brokerEpoch":1}',
        b'{"version":0,"brokerEpoch":-2}',
        b'{"version":0,"brokerEpoch":"1"}',
        b'{"version":0,"brokerEpoch":9223372036854775808}',
        b'{"version":0,"brokerEpoch":1,"brokerEpoch":2}',
        b"[]",
        b"[" * 100_000,
    ],
)
def test_refused(data: bytes) -> None:
    with pytest.raises(InvalidFile, match=f"^{FILE}: "):
        CleanShutdownFile.parse(data, FILE)


def test_truncations_and_flips() -> None:
    data = CleanShutdownFile.format(4711)
    for cut in truncations(data):
        if cut:
            with pytest.raises(InvalidFile):
                CleanShutdownFile.parse(cut, FILE)
    for flipped in bit_flips(data):
        try:
            assert CleanShutdownFile.parse(flipped, FILE) != 4711
        except InvalidFile:
            continue


@given(st.integers(-1, 2**63 - 1))
def test_round_trip(epoch: int) -> None:
    assert CleanShutdownFile.parse(CleanShutdownFile.format(epoch), FILE) == epoch
