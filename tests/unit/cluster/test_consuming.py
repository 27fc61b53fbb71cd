"""What a consumer's reader notes: the records that the program has got, and those it is done with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kreplica.client.client_config import ConsumerConfig
from kreplica.client.group_consumer import Chunk, Owned
from kreplica.client.group_messages import Membership
from kreplica.cluster.records import Consuming
from kreplica.common.errors import IllegalGeneration, InvalidRequest
from kreplica.common.types import TopicPartition

AT, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
MEMBER = Membership("g", 3, "m", None)


class Consumer:
    """Stands in for a GroupConsumer that is a member."""

    is_settled, term = True, 1

    def __init__(self, **config):
        self.config = ConsumerConfig(**config)

    def identity(self):
        return MEMBER

    def is_lost(self):
        return IllegalGeneration("lost")


def consuming(*, auto_commit=True):
    return Consuming(Consumer(enable_auto_commit=auto_commit), None)


def chunk(owned, start, stop):
    return Chunk(owned, [SimpleNamespace(value=b"%d" % n, offset=n) for n in range(start, stop)], stop + 1)


def test_a_record_is_processed_when_the_next_one_is_requested():
    reader, owned = consuming(), Owned(AT)
    records = reader.answer([chunk(owned, 5, 7)])
    assert next(records).value == b"5"
    assert (owned.taken, owned.marked) == (6, -1)
    assert next(records).value == b"6"
    assert (owned.taken, owned.marked, owned.done) == (7, 6, 0)
    assert list(records) == []
    assert (owned.taken, owned.marked, owned.done) == (8, 8, 1)


def test_a_revoked_partition_gives_out_no_more_records_and_others_go_on():
    reader, owned, other = consuming(), Owned(AT), Owned(OTHER)
    records = reader.answer([chunk(owned, 0, 5), chunk(other, 0, 1)])
    next(records)
    owned.may_read = False
    assert next(records).value == b"0"
    assert (owned.marked, owned.done, other.done) == (1, 1, 0)


def test_a_batch_counts_when_the_next_one_is_requested():
    reader, owned, revoked = consuming(), Owned(AT), Owned(OTHER)
    revoked.may_read = False
    assert len(reader.batch([chunk(owned, 0, 3), chunk(revoked, 0, 3)])) == 3
    assert (owned.taken, owned.marked, owned.done, revoked.done) == (4, -1, 0, 1)
    reader.processed()
    assert (owned.marked, owned.done) == (4, 1)


def test_batches_do_not_skip_records_that_a_loop_has_left():
    reader, owned = consuming(), Owned(AT)
    records = reader.answer([chunk(owned, 0, 3)])
    next(records)
    with pytest.raises(InvalidRequest, match="one by one"):
        reader.processed()
    assert len(list(records)) == 2
    reader.processed()


def test_a_batch_counts_when_a_loop_goes_on():
    reader, owned = consuming(), Owned(AT)
    reader.batch([chunk(owned, 0, 3)])
    next(reader.answer([chunk(owned, 4, 6)]))
    assert (owned.taken, owned.marked) == (5, 4)


def test_a_transaction_gets_the_offsets_since_the_last_one():
    reader, owned, other = consuming(auto_commit=False), Owned(AT), Owned(OTHER)
    assert reader.given() == (None, {})
    reader.batch([chunk(owned, 0, 3), chunk(other, 0, 3)])
    member, given = reader.given()
    assert (member, given) == (MEMBER, {owned: 4, other: 4})
    assert reader.given() == (member, given)
    reader.transacted(given)
    assert reader.given() == (None, {})
    reader.batch([chunk(other, 4, 6)])
    assert reader.given() == (MEMBER, {other: 7})


def test_a_partition_that_goes_after_its_transaction_is_no_loss():
    reader, owned, other = consuming(auto_commit=False), Owned(AT), Owned(OTHER)
    reader.batch([chunk(owned, 0, 3), chunk(other, 0, 3)])
    reader.transacted(reader.given()[1])
    owned.end()
    reader.batch([chunk(other, 4, 6)])
    assert reader.given() == (MEMBER, {other: 7})


def test_a_partition_that_goes_before_its_transaction_fails_it():
    reader, owned = consuming(auto_commit=False), Owned(AT)
    reader.batch([chunk(owned, 0, 3)])
    owned.end()
    with pytest.raises(IllegalGeneration):
        reader.given()


def test_records_that_are_given_out_twice_to_one_transaction_fail_it():
    reader, owned = consuming(auto_commit=False), Owned(AT)
    reader.batch([chunk(owned, 0, 3)])
    owned.end()
    again = Owned(AT)  # the partition comes back, and is read from the committed offset on
    reader.batch([chunk(again, 0, 3)])
    with pytest.raises(IllegalGeneration):
        reader.given()


def test_a_consumer_that_commits_on_its_own_has_no_offsets_for_transactions():
    with pytest.raises(InvalidRequest, match="auto_commit=False"):
        consuming().given()
