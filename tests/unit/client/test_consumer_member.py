"""A member of the consumer protocol, with a coordinator that a test plays."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kreplica.client.client_config import ClientConfig, ConsumerConfig
from kreplica.client.client_metadata import ClientMetadata
from kreplica.client.consumer_member import JOIN, LEAVE, LEAVE_FOR_NOW, ConsumerMember
from kreplica.client.coordinator_session import CoordinatorSession
from kreplica.client.group_member import Subscription
from kreplica.common import errors
from kreplica.common.error_code import ErrorCode
from kreplica.common.future import Future
from kreplica.common.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kreplica.common.messages.data import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kreplica.common.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kreplica.common.types import TopicPartition, Uuid
from kreplica.common.wire import topic_id_of, uuid_of
from tests.support.virtual import AnsweringTransport, VirtualMachine

TOPICS = {Uuid(b"%016d" % number): f"t{number}" for number in range(3)}
IDS = {name: topic_id for topic_id, name in TOPICS.items()}
NONE = ErrorCode.none
INTERVAL_MS = 1_000
CONFIG = ConsumerConfig(group_protocol="consumer", session_timeout_ms=4_000, max_poll_interval_ms=60_000)
CLIENT = ClientConfig(request_timeout_ms=500, retry_backoff_ms=20)


class Listener:
    """Notes what the member reports. `is_busy`: a revocation waits until `let_go`."""

    def __init__(self):
        self.notes = []
        self.owned = set()
        self.is_busy = self.is_stalled = False
        self.pending = []

    def assigned(self, partitions):
        assert not self.owned & set(partitions)
        self.owned |= set(partitions)
        self.notes.append(("assigned", names(partitions)))

    def revoke(self, partitions, max_wait_ms):
        assert max_wait_ms == CONFIG.max_poll_interval_ms
        assert set(partitions) <= self.owned
        self.notes.append(("revoke", names(partitions)))
        done: Future[None] = Future()
        self.pending.append((set(partitions), done))
        if not self.is_busy:
            self.let_go()
        return done

    def let_go(self):
        for partitions, done in self.pending:
            self.owned -= partitions
            done.set_result(None)
        self.pending = []

    def lost(self):
        self.notes.append("lost")
        self.owned = set()
        self.let_go()

    def failed(self, error):
        self.notes.append(error)

    def has_stalled(self):
        return self.is_stalled


class Stage:
    """The member, and the answers of node 1, the coordinator. `known`: the topics that it can name."""

    def __init__(self, config=CONFIG, subscription=Subscription(("t0", "t1"))):
        self.machine = VirtualMachine()
        self.transport = AnsweringTransport()
        self.known = dict(TOPICS)
        self.listener = Listener()
        shared = {"transport": self.transport, "loop": self.machine.loop}
        session = CoordinatorSession("g", lambda: [1], clock=self.machine.clock, config=CLIENT, **shared)
        metadata = ClientMetadata(lambda: [1], config=CLIENT, **shared)
        self.member = ConsumerMember(
            "g",
            "m",
            subscription,
            self.listener,
            session,
            metadata,
            loop=self.machine.loop,
            clock=self.machine.clock,
            config=config,
            client_config=CLIENT,
        )
        self.heartbeats = []  # all that were sent
        self.open = []  # (heartbeat, future) of those that are not answered

    def pass_time(self, duration_ms):
        for _ in range(max(duration_ms // 10, 1)):
            self.machine.pass_time(min(10, duration_ms))
            self._answer_others()

    def _answer_others(self):
        while self.transport.sent:
            sent, self.transport.sent[:] = list(self.transport.sent), []
            for _, request, future in sent:
                if isinstance(request, ConsumerGroupHeartbeatRequest):
                    self.heartbeats.append(request)
                    self.open.append((request, future))
                elif isinstance(request, FindCoordinatorRequest):
                    future.set_result(found())
                else:
                    assert isinstance(request, MetadataRequest)
                    future.set_result(self._metadata(request))
            self.machine.settle()

    def _metadata(self, request):
        answers = []
        for each in request.topics:
            topic_id = topic_id_of(each.topic_id)
            name = self.known.get(topic_id)
            answers.append(
                MetadataResponseTopic(
                    error_code=ErrorCode.unknown_topic_id if name is None else NONE,
                    name=name,
                    topic_id=each.topic_id,
                    partitions=(
                        MetadataResponsePartition(
                            error_code=NONE,
                            partition_index=0,
                            leader_id=1,
                            replica_nodes=(1,),
                            isr_nodes=(1,),
                        ),
                    ),
                )
            )
        return MetadataResponse(brokers=(), controller_id=1, topics=tuple(answers))

    def next(self):
        """Return the heartbeat that comes next."""
        for _ in range(500):
            if self.open:
                return self.open[0][0]
            self.pass_time(10)
        raise AssertionError("no heartbeat comes")

    def answer(self, epoch, assigned=None, error=NONE, member_id="m"):
        """Answer the next heartbeat and return it."""
        self.next()
        request, future = self.open.pop(0)
        assignment = None if assigned is None else Assignment(topic_partitions=wire(assigned))
        future.set_result(
            ConsumerGroupHeartbeatResponse(
                throttle_time=timedelta(0),
                error_code=error,
                member_id=member_id,
                member_epoch=epoch,
                heartbeat_interval=timedelta(milliseconds=INTERVAL_MS),
                assignment=assignment,
            )
        )
        self.pass_time(10)
        return request

    def lose(self):
        """Lose the answer to the next heartbeat and return it."""
        self.next()
        request, future = self.open.pop(0)
        future.set_exception(errors.RequestTimedOut("lost"))
        self.pass_time(10)
        return request

    def fail(self, error):
        """Refuse the next heartbeat and return it."""
        return self.answer(0, error=error)

    def joined(self, assigned=(("t0", 0), ("t0", 1)), epoch=2):
        """Join with these partitions, and acknowledge them."""
        self.member.join()
        self.answer(epoch, assigned)
        if assigned:
            assert reported(self.answer(epoch)) == names(assigned)
        self.listener.notes.clear()
        return self


def found():
    coordinator = Coordinator(key="g", node_id=1, host="", port=0, error_code=NONE, error_message=None)
    return FindCoordinatorResponse(coordinators=(coordinator,))


def wire(partitions):
    topics = {}
    for name, number in partitions:
        topics.setdefault(name, []).append(number)
    return tuple(
        TopicPartitions(topic_id=uuid_of(IDS[name]), partitions=tuple(numbers))
        for name, numbers in topics.items()
    )


def names(partitions):
    return sorted(f"{topic}-{number}" for topic, number in partitions)


def reported(request):
    """The partitions in a heartbeat; None if it has none."""
    if request.topic_partitions is None:
        return None
    return names(
        (TOPICS[topic_id_of(topic.topic_id)], number)
        for topic in request.topic_partitions
        for number in topic.partitions
    )


def is_full(request):
    return request.subscribed_topic_names is not None and request.rebalance_timeout > timedelta(0)


def test_a_member_joins_takes_its_partitions_and_acknowledges_them():
    stage = Stage()
    stage.member.join()
    stage.member.join()
    first = stage.answer(2, [("t0", 0), ("t1", 3)])
    assert (first.member_id, first.member_epoch, reported(first)) == ("m", JOIN, [])
    assert first.subscribed_topic_names == ("t0", "t1")
    assert first.rebalance_timeout == timedelta(minutes=1)
    second = stage.answer(2)
    assert (second.member_epoch, reported(second), is_full(second)) == (2, ["t0-0", "t1-3"], False)
    assert stage.listener.notes == [("assigned", ["t0-0", "t1-3"])]
    assert stage.member.is_stable
    assert stage.member.identity.generation_id == 2


def test_a_heartbeat_without_news_has_only_ids():
    stage = Stage().joined()
    stage.pass_time(INTERVAL_MS - 50)
    assert stage.open == []
    request = stage.answer(2)
    assert (request.member_epoch, reported(request)) == (2, None)
    assert (request.subscribed_topic_names, request.instance_id) == (None, None)
    assert request.rebalance_timeout == timedelta(milliseconds=-1)


def test_partitions_that_stay_are_not_touched():
    stage = Stage().joined()
    assert reported(stage.answer(2, [("t0", 1)])) is None
    assert stage.listener.notes == [("revoke", ["t0-0"])]
    assert reported(stage.answer(3, [("t0", 1), ("t1", 0)])) == ["t0-1"]
    assert stage.listener.notes[1:] == [("assigned", ["t1-0"])]
    assert reported(stage.answer(3)) == ["t0-1", "t1-0"]


def test_a_revocation_is_acknowledged_when_the_program_is_done():
    stage = Stage().joined()
    stage.listener.is_busy = True
    stage.answer(2, [("t0", 1)])
    for _ in range(3):  # the member goes on to send heartbeats
        assert reported(stage.answer(2)) is None
    assert not stage.member.is_stable
    stage.listener.let_go()
    assert reported(stage.answer(3)) == ["t0-1"]
    assert stage.member.is_stable


def test_an_assignment_that_comes_during_a_revocation_is_taken_afterwards():
    stage = Stage().joined()
    stage.listener.is_busy = True
    stage.answer(2, [("t0", 1)])
    stage.answer(3, [("t1", 0)])
    stage.listener.let_go()
    assert reported(stage.answer(3)) == ["t0-1"]
    stage.listener.let_go()
    assert reported(stage.answer(3)) == ["t1-0"]
    assert stage.listener.owned == {TopicPartition("t1", 0)}


def test_a_revocation_that_is_taken_back_gives_the_partition_again():
    stage = Stage().joined()
    stage.listener.is_busy = True
    stage.answer(2, [("t0", 1)])
    stage.answer(3, [("t0", 0), ("t0", 1)])
    stage.listener.let_go()
    assert reported(stage.answer(3)) == ["t0-1"]
    assert reported(stage.answer(3)) == ["t0-0", "t0-1"]
    assert stage.listener.notes == [("revoke", ["t0-0"]), ("assigned", ["t0-0"])]


def test_after_a_lost_answer_everything_is_sent_again():
    stage = Stage().joined()
    assert not is_full(stage.lose())
    again = stage.answer(3, [("t0", 0), ("t0", 1), ("t1", 0)])
    assert is_full(again)
    assert (again.member_epoch, reported(again)) == (2, ["t0-0", "t0-1"])
    assert reported(stage.answer(3)) == ["t0-0", "t0-1", "t1-0"]
    assert not is_full(stage.answer(3))


def test_a_lost_acknowledgement_is_sent_again():
    stage = Stage().joined()
    stage.answer(2, [("t0", 1)])
    assert reported(stage.lose()) == ["t0-1"]
    again = stage.answer(3, [("t0", 1)])
    assert (reported(again), again.member_epoch) == (["t0-1"], 2)
    assert stage.listener.notes == [("revoke", ["t0-0"])]


@pytest.mark.parametrize("error", [14, 15, 16])
def test_a_coordinator_that_is_elsewhere_or_loads_is_asked_again(error):
    stage = Stage().joined()
    stage.fail(ErrorCode(error))
    stage.fail(ErrorCode(error))
    again = stage.answer(2)
    assert (again.member_epoch, reported(again)) == (2, ["t0-0", "t0-1"])
    assert stage.listener.notes == []


def test_a_coordinator_that_is_away_for_long_ends_nothing():
    stage = Stage().joined()
    for _ in range(20):
        stage.lose()
        stage.pass_time(CONFIG.session_timeout_ms // 5)
    assert stage.listener.notes == []
    assert is_full(stage.answer(2))


@pytest.mark.parametrize("error", [25, 110, 69])
def test_a_member_that_was_fenced_gives_up_everything_and_joins_again(error):
    stage = Stage().joined()
    stage.fail(ErrorCode(error))
    assert stage.listener.notes == ["lost"]
    again = stage.answer(5, [("t0", 0)])
    assert (again.member_id, again.member_epoch, reported(again)) == ("m", JOIN, [])
    assert stage.listener.notes == ["lost", ("assigned", ["t0-0"])]
    assert stage.member.identity.generation_id == 5


def test_a_member_that_is_fenced_while_it_revokes_joins_again():
    stage = Stage().joined()
    stage.listener.is_busy = True
    stage.answer(2, [("t0", 1)])
    stage.fail(ErrorCode.fenced_member_epoch)
    again = stage.answer(4, [("t0", 0)])
    assert again.member_epoch == JOIN
    assert reported(stage.answer(4)) == ["t0-0"]
    assert stage.listener.owned == {TopicPartition("t0", 0)}


@pytest.mark.parametrize("error", [24, 35, 42, 69, 81, 82, 112, 128])
def test_a_member_that_cannot_be_fails(error):
    stage = Stage()
    stage.member.join()
    stage.fail(ErrorCode(error))
    (noted,) = stage.listener.notes
    assert noted.code == error
    stage.pass_time(5_000)
    assert len(stage.heartbeats) == 1


def test_a_member_waits_for_an_instance_id_that_is_not_released():
    stage = Stage(ConsumerConfig(group_protocol="consumer", group_instance_id="i", session_timeout_ms=4_000))
    stage.member.join()
    for _ in range(3):
        stage.fail(ErrorCode.unreleased_instance_id)
    assert stage.answer(7, [("t0", 0)]).instance_id == "i"
    assert stage.listener.notes == [("assigned", ["t0-0"])]


def test_a_member_does_not_wait_for_ever_for_an_instance_id():
    stage = Stage(ConsumerConfig(group_protocol="consumer", group_instance_id="i", session_timeout_ms=4_000))
    stage.member.join()
    while not stage.listener.notes:
        stage.fail(ErrorCode.unreleased_instance_id)
    assert isinstance(stage.listener.notes[0], errors.UnreleasedInstanceId)
    assert 3 <= len(stage.heartbeats) <= 8_000 // CONFIG.heartbeat_interval_ms + 2


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, LEAVE), ("i", LEAVE_FOR_NOW)])
def test_a_member_leaves(instance_id, epoch):
    config = ConsumerConfig(
        group_protocol="consumer", group_instance_id=instance_id, max_poll_interval_ms=60_000
    )
    stage = Stage(config).joined()
    left = stage.member.leave()
    assert stage.answer(epoch).member_epoch == epoch
    assert left.done()
    assert left.exception() is None
    assert stage.listener.notes == ["lost"]
    stage.pass_time(5_000)
    assert stage.open == []
    assert stage.member.leave().done()


def test_a_heartbeat_that_is_repeated_does_not_bring_back_a_member_that_has_left():
    stage = Stage()
    stage.member.join()
    stage.next()
    stage.member.leave()
    stage.pass_time(10)
    assert stage.lose().member_epoch == JOIN
    assert stage.answer(LEAVE).member_epoch == LEAVE
    stage.pass_time(5_000)
    assert len(stage.heartbeats) == 2


def test_a_program_that_stalls_leaves_the_group_and_may_come_back():
    stage = Stage().joined()
    stage.listener.is_stalled = True
    assert stage.answer(LEAVE).member_epoch == LEAVE
    assert stage.listener.notes == ["lost"]
    stage.listener.is_stalled = False
    stage.member.join()
    assert stage.answer(9, [("t0", 0)]).member_epoch == JOIN


def test_a_topic_that_no_broker_knows_yet_is_taken_later():
    stage = Stage()
    del stage.known[IDS["t1"]]
    stage.member.join()
    stage.answer(2, [("t0", 0), ("t1", 0)])
    assert reported(stage.answer(2)) == ["t0-0"]
    assert not stage.member.is_stable
    stage.known = dict(TOPICS)
    stage.pass_time(500)
    assert reported(stage.answer(2)) == ["t0-0", "t1-0"]
    assert stage.member.is_stable


def test_a_pattern_and_an_assignor_are_sent():
    config = ConsumerConfig(group_protocol="consumer", group_remote_assignor="range")
    stage = Stage(config, Subscription((), "t.*"))
    stage.member.join()
    request = stage.answer(2, [])
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ((), "t.*")
    assert request.server_assignor == "range"


def test_a_refused_commit_hurries_the_next_heartbeat():
    stage = Stage().joined()
    stage.pass_time(INTERVAL_MS // 10)
    stage.member.refused()
    stage.pass_time(10)
    assert stage.answer(3).member_epoch == 2
    assert stage.member.identity.generation_id == 3


def test_a_coordinator_may_choose_the_member_id():
    stage = Stage()
    stage.member.join()
    stage.answer(2, member_id="other")
    assert stage.answer(2, member_id="other").member_id == "other"
    assert stage.member.identity.member_id == "other"
