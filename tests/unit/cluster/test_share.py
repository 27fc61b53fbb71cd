"""What a program makes of the messages of a share group, and what the consumer sends for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kreplica.client.share_consumer import ACCEPT, REJECT, RELEASE, RENEW, Acquired
from kreplica.cluster.share import Message, Messages, Sharing
from kreplica.common.errors import InvalidRecordState, RequestTimedOut
from kreplica.common.future import Future, resolved
from kreplica.common.types import TopicPartition

AT = TopicPartition("t", 0)
LOCK_MS = 1_000


class Consumer:
    """Stands in for a ShareConsumer; polls get `lists` one after the other."""

    def __init__(self, lists=()):
        self.lists = list(lists)
        self.sent = []
        self.is_settled = True
        self.is_closed = False

    def poll(self, _max_wait_ms):
        return resolved(self.lists.pop(0) if self.lists else [])

    def claim(self, acquired):
        return acquired.deadline_ms > 0

    def acknowledge(self, acquired, kind):
        self.sent.append((acquired.record.offset, kind, "now"))
        return Future()

    def acknowledge_later(self, acquired, kind):
        self.sent.append((acquired.record.offset, kind, "later"))

    def close(self):
        self.is_closed = True
        return resolved(None)


def acquired(*offsets, deadline_ms=LOCK_MS):
    return [Acquired(AT, SimpleNamespace(offset=n, value=b"%d" % n), 1, 1, deadline_ms) for n in offsets]


def share(consumer, *, auto_accept=True, timeout_ms=5, prepare=None):
    sharing = Sharing(
        consumer, lambda future: future, Message, timeout_ms, auto_accept=auto_accept, prepare=prepare
    )
    return Messages(sharing, lambda ask: ask().result(0))


def test_a_message_is_accepted_when_the_next_one_is_requested():
    consumer = Consumer([acquired(0, 1)])
    messages = share(consumer)
    assert next(messages).value == b"0"
    assert consumer.sent == []
    assert next(messages).value == b"1"
    assert consumer.sent == [(0, ACCEPT, "later")]
    assert list(messages) == []
    assert consumer.sent == [(0, ACCEPT, "later"), (1, ACCEPT, "later")]
    assert consumer.is_closed


def test_a_message_is_what_the_program_makes_of_it():
    consumer = Consumer([acquired(0, 1, 2, 3)])
    ways = [Message.release, Message.reject, Message.accept, Message.renew]
    for message, way in zip(share(consumer), ways, strict=True):
        way(message)
    kinds = [RELEASE, REJECT, ACCEPT, RENEW]
    sent = [(offset, kind, "now") for offset, kind in enumerate(kinds)]
    # One that was only renewed is accepted in the end.
    assert consumer.sent == [*sent, (3, ACCEPT, "later")]


def test_the_group_is_prepared_before_the_first_poll():
    consumer, prepared = Consumer([acquired(0)]), []

    def prepare():
        prepared.append(len(consumer.lists))
        return resolved(None)

    assert [message.offset for message in share(consumer, prepare=prepare)] == [0]
    assert prepared == [1]
    lists = share(Consumer([acquired(0)]), prepare=prepare).batches()
    assert [len(messages) for messages in lists] == [1]


def test_a_message_is_settled_once():
    messages = share(Consumer([acquired(7)]))
    message = next(messages)
    message.reject()
    for again in (message.accept, message.release, message.reject, message.renew):
        with pytest.raises(InvalidRecordState, match="offset 7 is settled"):
            again()


def test_without_auto_accept_nothing_is_accepted_on_its_own():
    consumer = Consumer([acquired(0), acquired(1)])
    assert len(list(share(consumer, auto_accept=False))) == 2
    assert consumer.sent == []


def test_the_message_at_which_a_program_fails_is_not_accepted():
    consumer = Consumer([acquired(0, 1)])

    def work(messages):
        with messages:
            for message in messages:
                assert 1 / message.offset

    with pytest.raises(ZeroDivisionError):
        work(share(consumer))
    assert consumer.sent == []
    assert consumer.is_closed


def test_the_messages_of_a_list_are_accepted_when_the_next_list_is_requested():
    consumer = Consumer([acquired(0, 1), acquired(2)])
    lists = share(consumer).batches()
    first = next(lists)
    first[1].release()
    assert [message.value for message in first] == [b"0", b"1"]
    assert [message.value for message in next(lists)] == [b"2"]
    assert consumer.sent == [(1, RELEASE, "now"), (0, ACCEPT, "later")]
    assert list(lists) == []
    assert consumer.is_closed


def test_a_message_that_another_member_may_have_is_not_given_out():
    consumer = Consumer([[*acquired(0), *acquired(1, deadline_ms=0), *acquired(2)]] * 2)
    assert [message.offset for message in share(consumer)] == [0, 2, 0, 2]
    consumer = Consumer([[*acquired(0), *acquired(1, deadline_ms=0), *acquired(2)]])
    assert [[message.offset for message in each] for each in share(consumer).batches()] == [[0, 2]]


def test_a_group_without_partitions_times_out():
    consumer = Consumer()
    consumer.is_settled = False
    with pytest.raises(RequestTimedOut, match="is there the topic"):
        list(share(consumer, timeout_ms=10_000))
