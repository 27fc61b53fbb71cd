"""A batch in a mapped file that is truncated from outside: an error, never zeros in the lost page's place."""

import os

import pytest

from kreplica._core.records import RecordBatch, batches
from kreplica._core.region import Region
from kreplica.common import errors
from tests.support.batches import build

PAGE = 4096


@pytest.fixture
def mapped(tmp_path):
    """A batch of three values of two pages each in a mapped file, as a slice, and the file's path."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(build([bytes([65 + i]) * 2 * PAGE for i in range(3)]))
    with Region(path, 1 << 20) as region:
        made = region.slice(0, path.stat().st_size)
        assert made.mapped
        yield made, path


@pytest.mark.parametrize("read", [RecordBatch, lambda data: next(batches(data))])
def test_a_page_lost_after_the_check(mapped, read):
    data, path = mapped
    first, second, third = read(data)
    assert first.value == b"A" * 2 * PAGE
    os.truncate(path, PAGE)
    with pytest.raises(errors.MappedPageLost):
        third.value  # noqa: B018
    with pytest.raises(errors.MappedPageLost):
        third.value  # noqa: B018
    assert first.value == b"A" * 2 * PAGE
    with pytest.raises(errors.MappedPageLost):
        second.value  # noqa: B018


def test_a_page_lost_before_the_check(mapped):
    data, path = mapped
    batch = RecordBatch(data)
    os.truncate(path, PAGE)
    with pytest.raises(errors.MappedPageLost):
        list(batch)
    with pytest.raises(errors.MappedPageLost):
        batch.check()
