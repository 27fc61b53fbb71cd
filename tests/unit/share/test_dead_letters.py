"""Dead letters: what they hold, failures between each two steps, and topics that refuse them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kreplica.common.errors import (
    InvalidConfig,
    KreplicaError,
    LeaderNotAvailable,
    MessageTooLarge,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from kreplica.common.future import resolved
from kreplica.common.share_state import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, ShareState, StateBatch
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import TOPIC_RESOURCE
from kreplica.share.dead_letters import ENABLE, PATIENCE_MS, DeadLetterTopics, LetterConfig
from tests.support.replicas import TOPIC
from tests.support.share_members import GROUP, ShareMembers, error

ACCEPT, RELEASE, REJECT = 1, 2, 3


def members(*, copies: bool = True, topic: str = "dlq.t", **settings: Any) -> ShareMembers:
    share = ShareMembers(has_dead_letters=True, **settings)
    share.config = share.config._replace(letters=LetterConfig(topic, copies))
    return share


def states(share: ShareMembers) -> list[tuple[int, int, int]]:
    """Return the stored (first offset, state, delivery count)."""
    stored = share.persister.states[share.key()]
    return [(each.first_offset, each.delivery_state, each.delivery_count) for each in stored.batches]


def fail_over(share: ShareMembers) -> None:
    """Let a leader in the next epoch read what is stored."""
    share.at.elect(2)
    share.at.settle()
    share.at.elect(1)
    share.at.settle()
    share.epochs.clear()
    share.fetch("next", max_wait_ms=100)
    share.at.settle()


def test_a_rejected_record_is_copied_with_its_context() -> None:
    share = members()
    share.produce(b"a", b"b")
    share.fetch()
    assert error(share.acknowledge("a", (0, 1, ACCEPT, REJECT))) == 0
    (letter,) = share.letters.records()
    assert letter.value == b"b"
    assert share.letters.headers() == [
        {
            "topic": TOPIC,
            "partition": "0",
            "offset": "1",
            "group": GROUP,
            "delivery.count": "1",
            "message": "rejected by a member",
        }
    ]
    ((topic, source, _),) = share.letters.batches
    assert (topic, source) == ("dlq.t", TopicPartition(TOPIC, 0))
    assert states(share) == [(1, ARCHIVED, 1)]
    share.produce(b"c")
    assert share.acquired(share.fetch()) == {0: [(2, 2, 1)]}


def test_without_copies_a_letter_has_only_the_context() -> None:
    share = members(copies=False)
    share.produce(b"a")
    share.fetch()
    share.acknowledge("a", (0, 0, REJECT))
    (letter,) = share.letters.records()
    assert (letter.key, letter.value, len(letter.headers)) == (None, None, 6)


@pytest.mark.parametrize("way", ["release", "lock", "leave"])
def test_a_record_that_was_delivered_too_often_is_a_dead_letter(way: str) -> None:
    share = members(delivery_count_limit=2)
    share.produce(b"a")
    for _ in range(2):
        assert share.letters.offsets() == []
        assert share.acquired(share.fetch("a"))
        if way == "release":
            share.acknowledge("a", (0, 0, RELEASE))
        elif way == "lock":
            share.at.pass_time(30_000)
        else:
            share.fetch("a", epoch=-1, numbers=[])
            share.epochs.clear()
    share.at.settle()
    assert share.letters.headers()[0]["delivery.count"] == "2"
    assert share.letters.headers()[0]["message"] == "delivered as often as the group allows"


def test_gaps_and_accepted_records_are_no_dead_letters() -> None:
    share = members()
    share.produce(b"a", b"b")
    share.fetch()
    share.acknowledge("a", (0, 1, 0, ACCEPT))
    assert share.letters.tries == 0
    assert states(share) == [(0, ARCHIVED, 1), (1, ACKNOWLEDGED, 1)]


def test_a_group_without_the_setting_archives_at_once() -> None:
    share = ShareMembers()
    share.produce(b"a")
    share.fetch()
    share.acknowledge("a", (0, 0, REJECT))
    assert share.letters.tries == 0
    assert states(share) == [(0, ARCHIVED, 1)]


def test_a_group_that_consumes_its_dead_letters_writes_none() -> None:
    share = members(topic=TOPIC)
    share.produce(b"a")
    share.fetch()
    share.acknowledge("a", (0, 0, REJECT))
    assert share.letters.tries == 0
    assert states(share) == [(0, ARCHIVED, 1)]


# ---- failures between two steps ----------------------------------------------------------------------------


def test_no_letter_is_written_before_the_rejection_is_stored() -> None:
    share = members()
    share.produce(b"a")
    share.fetch()
    share.persister.held = []
    share.acknowledge("a", (0, 0, REJECT))
    assert share.letters.tries == 0
    share.persister.release()
    share.at.settle()
    assert share.letters.offsets() == [0]


def test_a_rejection_that_is_not_stored_is_no_dead_letter() -> None:
    share = members()
    share.produce(b"a")
    share.fetch()
    share.persister.error = NotLeaderOrFollower()
    assert error(share.acknowledge("a", (0, 0, REJECT))) != 0
    assert share.letters.tries == 0


def test_the_next_leader_writes_what_the_last_one_has_not() -> None:
    share = members()
    share.produce(b"a", b"b")
    share.fetch()
    share.letters.held = []
    assert error(share.acknowledge("a", (0, 1, REJECT))) == 0
    assert states(share) == [(0, ARCHIVING, 1), (1, ARCHIVING, 1)]
    share.letters.held = None
    fail_over(share)
    assert share.letters.offsets() == [0, 1]
    assert share.letters.headers()[0]["message"] == "rejected by a member"
    assert states(share) == [(0, ARCHIVED, 1), (1, ARCHIVED, 1)]


def test_a_letter_is_written_twice_if_its_end_was_not_stored() -> None:
    share = members()
    share.produce(b"a")
    share.fetch()
    share.letters.held = []
    share.acknowledge("a", (0, 0, REJECT))
    share.persister.held = []
    share.letters.release()
    share.at.settle()
    assert share.letters.offsets() == [0]
    share.persister.held = None
    fail_over(share)
    assert share.letters.offsets() == [0, 0]
    fail_over(share)
    assert share.letters.offsets() == [0, 0]


@pytest.mark.parametrize("way", ["with the rejection", "after it"])
def test_a_group_whose_last_member_leaves_still_writes_its_letters(way: str) -> None:
    share = members()
    share.produce(b"a")
    share.fetch()
    share.letters.error = LeaderNotAvailable("no leader")
    if way == "after it":
        share.acknowledge("a", (0, 0, REJECT))
        share.acknowledge("a", epoch=-1)
    else:
        share.acknowledge("a", (0, 0, REJECT), epoch=-1)
    share.at.settle()
    share.letters.error = None
    share.at.pass_time(1_000)
    assert share.letters.offsets() == [0]
    assert states(share) == [(0, ARCHIVED, 1)]
    # Nothing of it is kept: the next session reads the state anew.
    share.epochs.clear()
    share.persister.states[share.key()] = ShareState(9, 0, 0)
    assert share.acquired(share.fetch()) == {0: [(0, 0, 1)]}


def test_a_new_session_takes_over_the_letters_of_a_group_without_members() -> None:
    share = members()
    share.produce(b"a")
    share.fetch()
    share.letters.held = []
    share.acknowledge("a", (0, 0, REJECT), epoch=-1)
    share.at.settle()
    share.letters.held = None
    share.epochs.clear()
    share.fetch("b")
    share.at.settle()
    assert share.letters.offsets() == [0]
    assert states(share) == [(0, ARCHIVED, 1)]


def test_the_answer_to_a_replaced_leader_changes_nothing() -> None:
    share = members()
    share.produce(b"a")
    share.fetch()
    share.letters.held = []
    share.acknowledge("a", (0, 0, REJECT))
    held, share.letters.held = share.letters.held, None
    fail_over(share)
    share.letters.held = held
    share.letters.release()
    share.at.settle()
    assert share.letters.offsets() == [0, 0]
    assert states(share) == [(0, ARCHIVED, 1)]


def test_letters_of_a_stored_state_are_told_apart_by_their_count() -> None:
    share = members(delivery_count_limit=2)
    share.produce(b"a", b"b")
    stored = [StateBatch(0, 0, ARCHIVING, 1), StateBatch(1, 1, ARCHIVING, 2)]
    share.persister.states[share.key()] = ShareState(5, 0, 0, stored)
    share.fetch()
    assert [each["message"] for each in share.letters.headers()] == [
        "rejected by a member",
        "delivered as often as the group allows",
    ]


def test_letters_that_wait_are_archived_once_the_setting_is_gone() -> None:
    share = members()
    share.produce(b"a")
    share.persister.states[share.key()] = ShareState(5, 0, 0, [StateBatch(0, 0, ARCHIVING, 1)])
    share.config = share.config._replace(
        letters=LetterConfig(), settings=share.config.settings._replace(has_dead_letters=False)
    )
    share.fetch()
    share.at.settle()
    assert share.letters.tries == 0
    assert states(share) == [(0, ARCHIVED, 1)]


@pytest.mark.parametrize("is_held", [False, True])
def test_letters_below_the_start_of_the_log_are_forgotten(is_held: bool) -> None:
    share = members()
    share.produce(b"a")
    share.produce(b"b")
    share.fetch()
    if is_held:
        share.letters.held = []
    else:
        share.letters.error = LeaderNotAvailable("no leader")
    share.acknowledge("a", (0, 1, REJECT))
    share.at.manager().delete_records({share.at.partitions[0]: 1}, 1_000)
    share.at.settle()
    share.letters.error = None
    share.letters.release()
    share.at.pass_time(1_000)
    share.produce(b"c")
    assert share.acquired(share.fetch()) == {0: [(2, 2, 1)]}
    assert share.letters.offsets() == ([0, 1] if is_held else [1])


# ---- topics that refuse ------------------------------------------------------------------------------------


def test_a_failure_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    share = members()
    share.produce(b"a")
    share.fetch()
    share.letters.error = UnknownTopicOrPartition("topic 'dlq.t' does not exist")
    share.acknowledge("a", (0, 0, REJECT))
    for pause_ms in (1_000, 2_000, 4_000):
        tries = share.letters.tries
        share.at.pass_time(pause_ms - 100)
        assert share.letters.tries == tries
        share.at.pass_time(100)
        assert share.letters.tries == tries + 1
    assert caplog.text.count("topic 'dlq.t' does not exist") == 1
    # Other records are delivered meanwhile.
    share.produce(b"b")
    assert share.acquired(share.fetch()) == {0: [(1, 1, 1)]}
    share.letters.error = None
    share.at.pass_time(8_000)
    assert share.letters.offsets() == [0]


def test_dead_letters_never_stop_a_group(caplog: pytest.LogCaptureFixture) -> None:
    share = members(max_record_locks=3)
    share.letters.error = InvalidConfig("no dead letters here")
    share.produce(b"a", b"b", b"c")
    share.produce(b"d")
    share.fetch()
    share.acknowledge("a", (0, 2, REJECT))
    waiting = share.fetch("b", max_wait_ms=60_000)
    share.at.pass_time(PATIENCE_MS - 1_000)
    assert not waiting.done()
    with caplog.at_level(logging.ERROR):
        share.at.pass_time(2_000)
    assert share.acquired(waiting) == {0: [(3, 3, 1)]}
    assert "archived without dead letters" in caplog.text
    assert "0-2" in caplog.text
    assert states(share)[0] == (0, ARCHIVED, 1)


def test_a_short_failure_loses_no_letter_although_there_is_no_room() -> None:
    share = members(max_record_locks=2)
    share.letters.error = LeaderNotAvailable("no leader")
    share.produce(b"a", b"b")
    share.produce(b"c")
    share.fetch()
    share.acknowledge("a", (0, 1, REJECT))
    waiting = share.fetch("b", max_wait_ms=60_000)
    share.at.pass_time(10_000)
    share.letters.error = None
    share.at.pass_time(20_000)
    assert share.letters.offsets() == [0, 1]
    assert share.acquired(waiting) == {0: [(2, 2, 1)]}


def test_letters_that_are_too_large_together_are_written_one_by_one_and_then_without_the_record() -> None:
    share = members()
    share.produce(b"a", b"b")
    share.produce(b"x" * 2_000)
    appended = share.letters.append

    def append(topic: str, source: TopicPartition, batch: bytes) -> Any:
        share.letters.error = MessageTooLarge() if len(batch) > 300 else None
        return appended(topic, source, batch)

    share.letters.append = append  # type: ignore[method-assign]
    share.fetch()
    share.acknowledge("a", (0, 2, REJECT))
    share.at.settle()
    assert share.letters.offsets() == [0, 1, 2]
    assert [each.value for each in share.letters.records()] == [b"a", b"b", None]


def test_a_large_rejection_is_written_in_parts() -> None:
    share = members(copies=False)
    share.produce(*[b"v"] * 250)
    share.fetch()
    share.acknowledge("a", (0, 249, REJECT))
    share.at.settle()
    assert share.letters.tries == 3
    assert share.letters.offsets() == list(range(250))
    assert share.persister.states[share.key()].batches
    share.produce(b"w")
    assert share.acquired(share.fetch()) == {0: [(250, 250, 1)]}


# ---- where letters go --------------------------------------------------------------------------------------


class Cluster:
    """Metadata with one topic, and what was appended and created."""

    def __init__(self, name: str, *, leader: int = 5, enabled: str = "true") -> None:
        self.name, self.leader = name, leader
        self.topics = {name: self} if name else {}
        self.partitions = {0: None, 1: None}
        self.configs = {(TOPIC_RESOURCE, name): {ENABLE: enabled}}
        self.appended: list[tuple[int, TopicPartition]] = []
        self.created: list[str] = []

    def config(self, kind: int, name: str) -> dict[str, str]:
        return self.configs.get((kind, name), {})

    def partition(self, at: TopicPartition) -> Any:
        assert at.topic == self.name
        return self

    def letters(self, *, creates: bool = False) -> DeadLetterTopics:
        metadata: Any = self

        def append(leader: int, at: TopicPartition, batch: bytes) -> Any:
            assert batch == b"batch"
            self.appended.append((leader, at))
            return resolved(None)

        create: Callable[[str], None] | None = self.created.append if creates else None
        return DeadLetterTopics(lambda: metadata, append, create, "dlq.")


def test_the_partition_is_that_of_the_record_modulo_their_number() -> None:
    cluster = Cluster("dlq.t")
    for number in range(4):
        cluster.letters().append("dlq.t", TopicPartition("t", number), b"batch").result(0)
    assert cluster.appended == [(5, TopicPartition("dlq.t", number % 2)) for number in range(4)]


@pytest.mark.parametrize(
    ("cluster", "topic", "creates", "refused", "text"),
    [
        (Cluster("t"), "t", True, InvalidConfig, "must begin with 'dlq.'"),
        (Cluster("__x"), "__x", True, InvalidConfig, "not with '__'"),
        (Cluster(""), "dlq.t", False, UnknownTopicOrPartition, "auto.create.topics.enable"),
        (Cluster(""), "dlq.t", True, UnknownTopicOrPartition, "is being created"),
        (Cluster("dlq.t", enabled="false"), "dlq.t", True, InvalidConfig, "group.enable=true"),
        (Cluster("dlq.t", leader=-1), "dlq.t", True, LeaderNotAvailable, "has no leader"),
    ],
)
def test_topics_that_take_no_dead_letters(
    cluster: Cluster, topic: str, creates: bool, refused: type[KreplicaError], text: str
) -> None:
    done = cluster.letters(creates=creates).append(topic, TopicPartition("t", 0), b"batch")
    failure = done.exception()
    assert type(failure) is refused
    assert text in str(failure)
    assert cluster.appended == []
    assert cluster.created == (["dlq.t"] if text == "is being created" else [])


def test_a_record_above_a_lowered_limit_is_a_dead_letter() -> None:
    share = members(delivery_count_limit=2)
    share.produce(b"a")
    share.persister.states[share.key()] = ShareState(5, 0, 0, [StateBatch(0, 0, AVAILABLE, 2)])
    # The limit was lowered after its last release.
    assert share.acquired(share.fetch()) == {}
    share.at.settle()
    assert share.letters.offsets() == [0]
