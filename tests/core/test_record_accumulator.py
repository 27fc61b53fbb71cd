"""RecordAccumulator: appends in batches, each whole and in order, with the bytes that BatchBuilder makes."""

from __future__ import annotations

import gc
import threading
from datetime import datetime, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.record_accumulator import BufferPool, RecordAccumulator
from kreplica._core.records import RecordBatch, batches
from kreplica.common import errors

NOW = 1_600_000_000_000
OWNER = object()


class Append:
    """Stands in for a future."""

    def __init__(self):
        self._result = self._index = None

    @property
    def place(self):
        return self._result.place(self._index)


def accumulator(max_request_size=1 << 20, pool=None):
    return RecordAccumulator(OWNER, max_request_size, BufferPool() if pool is None else pool)


def add(to, records, *, acks=-1, now=NOW, deadline=1_000):
    made = Append()
    to.append(records, now, deadline, acks, made)
    return made


def taken(each):
    found = []
    while (batch := each.take()) is not None:
        found.append(batch)
    return found


def records_of(batch):
    [read] = batches(batch.seal(-1, -1, -1))
    return [(record.key, record.value, tuple(record.headers), record.timestamp) for record in read]


records = st.lists(
    st.one_of(
        st.binary(max_size=200),
        st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)),
        st.tuples(
            st.none(),
            st.binary(max_size=9),
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3),
            st.none() | st.integers(1 << 40, 1 << 45),
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(st.lists(records, min_size=1, max_size=20))
def test_a_batch_has_the_bytes_of_one_that_is_built_at_once(appends):
    of = accumulator()
    futures = [add(of, each) for each in appends]
    [batch] = taken(of)
    builder = BatchBuilder()
    builder.producer_id, builder.producer_epoch, builder.base_sequence = 7, 3, 11
    assert batch.seal(7, 3, 11) == builder.build([one for each in appends for one in each], now_ms=NOW)
    first = 0
    for future, each in zip(futures, appends, strict=True):
        assert future.place == (first, len(each))
        first += len(each)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(150, 300))
def test_appends_are_whole_in_order_and_within_the_limit(sizes, limit):
    of = accumulator(limit)
    futures = []
    for number, size in enumerate(sizes):
        value = number.to_bytes(2, "big")
        futures.append((number, add(of, [value, bytes(size)][: 1 + number % 2])))
    made = taken(of)
    assert all(batch.size <= limit for batch in made)
    found = []
    for batch in made:
        values = [value for _, value, _, _ in records_of(batch)]
        for _, future in batch.pending():
            first, count = future.place
            found.append((int.from_bytes(values[first], "big"), future))
            assert count == 1 + found[-1][0] % 2
    assert found == futures


def test_times_of_appends_are_their_own():
    of = accumulator()
    add(of, [b"a"], now=NOW)
    add(of, [b"b"], now=NOW - 5_000)
    add(of, [b"c"], now=NOW + 5_000)
    [batch] = taken(of)
    assert [when for *_, when in records_of(batch)] == [NOW, NOW - 5_000, NOW + 5_000]
    assert RecordBatch(batch.seal(-1, -1, -1)).max_timestamp == NOW + 5_000


def test_appends_with_other_acks_or_none_are_in_another_batch():
    of = accumulator()
    for acks in (-1, -1, 1, 0, 0, -1):
        add(of, [b"v"], acks=acks)
    assert of.acks == -1
    assert [(batch.acks, len(batch)) for batch in taken(of)] == [(-1, 2), (1, 1), (0, 1), (0, 1), (-1, 1)]
    assert of.acks is None


def test_a_batch_that_was_taken_grows_no_more():
    of = accumulator()
    add(of, [b"a"])
    first = of.take()
    add(of, [b"b"])
    assert len(first) == 1
    assert [len(batch) for batch in taken(of)] == [1]


def test_append_says_whether_a_full_batch_waits():
    of = accumulator(100)
    assert not of.append([bytes(20)], NOW, 0, -1, Append())
    assert of.append([bytes(20)], NOW, 0, -1, Append())
    of.take()
    assert not of.append([b""], NOW, 0, -1, Append())


def test_a_smaller_limit_for_batches_is_none_for_single_appends():
    of = accumulator()
    of.max_batch_size = 1
    for _ in range(2):
        add(of, [bytes(1_000)])
    assert [len(batch) for batch in taken(of)] == [1, 1]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([7], TypeError),
        ([b"v", (b"k",)], TypeError),
        ([], errors.InvalidRecord),
        ([bytes(2 << 20)], errors.MessageTooLarge),
        ((b"k", b"v"), TypeError),
    ],
)
def test_what_is_refused_leaves_the_others_as_they_are(bad, error):
    of = accumulator()
    add(of, [b"a"])
    with pytest.raises(error):
        add(of, bad)
    add(of, [b"b"])
    [batch] = taken(of)
    assert [value for _, value, _, _ in records_of(batch)] == [b"a", b"b"]


def test_the_bytes_may_change_after_the_call():
    of = accumulator()
    value = bytearray(b"before")
    add(of, [value])
    value[:] = b"after, and longer"
    [batch] = taken(of)
    assert records_of(batch)[0][1] == b"before"


def test_a_batch_sealed_again_leaves_the_first_bytes():
    of = accumulator()
    add(of, [b"a"])
    [batch] = taken(of)
    first = batch.seal(1, 0, 5)
    before = bytes(memoryview(first))
    again = batch.seal(2, 0, 0)
    assert first == before
    assert RecordBatch(again).producer_id == 2
    assert next(iter(RecordBatch(again))).value == b"a"


def test_appends_expire_each_by_its_deadline():
    of = accumulator()
    futures = [add(of, [b"v"], deadline=deadline) for deadline in (30, 10, 20, 10)]
    assert of.take_earliest_deadline() == 10
    assert of.take_earliest_deadline() is None
    [batch] = of.batches()
    assert (batch.earliest_deadline_ms, batch.latest_deadline_ms) == (10, 30)
    assert batch.expire(9) == []
    assert batch.expire(10) == [futures[1], futures[3]]
    assert batch.expire(10) == []
    assert (batch.earliest_deadline_ms, batch.expired_appends) == (20, 2)
    assert batch.pending() == [(0, futures[0]), (2, futures[2])]
    assert [batch.deadline_ms(index) for index in range(4)] == [30, 10, 20, 10]
    assert batch.release() == [futures[0], futures[2]]
    assert (batch.earliest_deadline_ms, batch.pending()) == (None, [])


def test_an_append_that_is_not_there_has_no_place():
    of = accumulator()
    add(of, [b"v"])
    [batch] = taken(of)
    for index in (-1, 1):
        with pytest.raises(IndexError):
            batch.place(index)
        with pytest.raises(IndexError):
            batch.deadline_ms(index)


def test_a_batch_that_was_released_cannot_be_sealed():
    of = accumulator()
    add(of, [b"v"])
    [batch] = taken(of)
    batch.seal(-1, -1, -1)
    batch.release()
    with pytest.raises(RuntimeError):
        batch.seal(-1, -1, -1)


def test_records_whose_code_appends_more_do_not_mix():
    of = accumulator()

    class Zone(tzinfo):
        def utcoffset(self, _):
            add(of, [b"inner"])
            return datetime.resolution * 0

    add(of, [(None, b"outer", None, datetime(2020, 1, 1, tzinfo=Zone()))])
    [batch] = taken(of)
    assert {value for _, value, _, _ in records_of(batch)} == {b"inner", b"outer"}
    assert len(batch) == batch.record_count >= 2


def test_a_garbage_collection_that_drops_the_callers_records_changes_no_batch():
    of = accumulator()
    given = [bytes([number]) * 100 for number in range(50)]
    others = []

    class Finalized:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            given.clear()
            others.extend(b"\xff" * (100 - number % 2) for number in range(200))

    made = Append()
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        Finalized()
        gc.set_threshold(1)
        gc.enable()
        of.append(given, NOW, 1_000, -1, made)
    except errors.InvalidRecord:
        return  # the list was cleared before it was looked at
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert others
    for batch in taken(of):
        assert [value for _, value, _, _ in records_of(batch)] == [bytes([each]) * 100 for each in range(50)]


def test_threads_append_at_once_and_each_keeps_its_order():
    of = accumulator(4_096)
    count = 2_000
    made = [[], []]

    def run(number):
        for step in range(count):
            made[number].append(add(of, [b"%d/%d" % (number, step)]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    found = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found += taken(of)
    for thread in threads:
        thread.join()
    found += taken(of)
    steps = [[], []]
    for batch in found:
        values = [value for _, value, _, _ in records_of(batch)]
        assert len(values) == len(batch)
        for index, future in batch.pending():
            number, step = map(int, values[index].split(b"/"))
            assert made[number][step] is future
            steps[number].append(step)
    assert steps == [list(range(count))] * 2


def test_a_batch_and_its_futures_are_freed_together():
    of = accumulator()
    future = add(of, [b"v"])
    of.take()
    del of
    gc.collect()
    assert future._result.owner is OWNER


def test_the_memory_of_a_large_batch_serves_the_next_one():
    pool = BufferPool()
    of = accumulator(pool=pool)
    for number in range(3):
        add(of, [bytes([number]) * 100_000])
        [batch] = taken(of)
        data = batch.seal(-1, -1, -1)
        batch.release()
        # As long as somebody looks at the bytes, they stay.
        assert len(pool) == 0
        assert next(iter(RecordBatch(data))).value == bytes([number]) * 100_000
        del data
        gc.collect()
        assert len(pool) == 1


def test_the_pool_keeps_no_small_buffers_and_few_large_ones():
    pool = BufferPool()
    of = accumulator(pool=pool)
    add(of, [b"v"])
    [small] = taken(of)
    small.release()
    assert len(pool) == 0
    for _ in range(20):
        add(of, [bytes(600_000)])
    for batch in taken(of):
        batch.release()
    assert len(pool) == 8


def test_a_batch_whose_appends_have_all_expired_is_dropped():
    pool = BufferPool()
    of = accumulator(100_100, pool)
    made = [add(of, [bytes(100_000)], deadline=deadline) for deadline in (10, 30, 20)]
    for batch in of.batches():
        batch.expire(20)
    of.drop_expired()
    assert len(of) == 1
    assert len(pool) == 2
    # The last one was open: the next append gets a new one.
    add(of, [b"v"])
    assert [len(batch) for batch in taken(of)] == [1, 1]
    assert made[1].place == (0, 1)


def test_a_batch_that_waits_for_an_append_is_not_dropped():
    of = accumulator()
    add(of, [b"late"], deadline=10)
    of.batches()[0].expire(10)
    add(of, [b"in time"], deadline=30)
    of.drop_expired()
    [batch] = taken(of)
    assert [index for index, _ in batch.pending()] == [1]


def test_an_open_or_released_batch_has_no_bytes():
    of = accumulator()
    add(of, [b"v"])
    [batch] = taken(of)
    with pytest.raises(BufferError):
        memoryview(batch)
    batch.seal(-1, -1, -1)
    assert len(memoryview(batch)) == batch.size
    batch.release()
    with pytest.raises(BufferError):
        memoryview(batch)
