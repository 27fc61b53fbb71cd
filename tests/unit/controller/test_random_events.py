"""Random events of a cluster: what must hold of partitions after each, and what the log says of them."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kreplica.common.errors import BufferExhausted
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.messages.administration import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kreplica.common.messages.controllers import AlterPartitionRequest, BrokerState
from kreplica.common.messages.controllers import AlterPartitionRequestPartitionData as PartitionData
from kreplica.common.messages.controllers import AlterPartitionRequestTopicData as TopicData
from kreplica.controller.controller_context import PartitionContext, PartitionState, ReplicaState
from kreplica.metadata.registrations import PartitionRegistration
from tests.support.controllers import ControllerStage, creatable, directory_of, topics_request

BROKERS = (0, 1, 2, 3)
RACKS = ("a", "a", "b", "c")
TOPICS = ("red", "green", "blue")
SECOND = datetime.timedelta(seconds=1)

some_brokers = st.sets(st.sampled_from(BROKERS), min_size=1, max_size=3)
assignments = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True)


class Cluster(RuleBasedStateMachine):
    """The stage, and what was true after the last event."""

    @initialize()
    def start(self) -> None:
        self.stage = ControllerStage(BROKERS, racks=RACKS, directories=2)
        self.before: dict[tuple[bytes, int], PartitionRegistration] = {}
        self.epoch = 3

    # ---- topics -------------------------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS),
        partitions=st.integers(1, 3),
        replicas=st.integers(1, 3),
        min_isr=st.integers(1, 3),
        unclean=st.booleans(),
    )
    def create(self, topic: str, partitions: int, replicas: int, min_isr: int, unclean: bool) -> None:
        asked = creatable(
            topic,
            num_partitions=partitions,
            replication_factor=replicas,
            min_insync_replicas=str(min_isr),
            unclean_leader_election_enable=str(unclean).lower(),
        )
        self.stage.control.create_topics(topics_request(asked))

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 2))
    def add_partitions(self, topic: str, more: int) -> None:
        known = self.stage.context.metadata.topics.get(topic)
        count = (len(known.partitions) if known else 0) + more
        asked = CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=(asked,), timeout=SECOND, validate_only=False)
        self.stage.control.create_partitions(request)

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        asked = DeleteTopicState(name=topic, topic_id=None)
        self.stage.control.delete_topics(DeleteTopicsRequest(topics=(asked,), timeout=SECOND))

    @rule(broker_id=st.sampled_from(BROKERS), behind=st.integers(0, 3))
    def heartbeat(self, broker_id: int, behind: int) -> None:
        self.stage.machines.broker_change.on_metadata_offset(broker_id, len(self.stage.log) - 1 - behind)

    # ---- brokers ------------------------------------------------------------------------------------------

    @rule(broker_ids=some_brokers)
    def fence(self, broker_ids: set[int]) -> None:
        self.stage.fence(*sorted(broker_ids))

    @rule(broker_ids=some_brokers)
    def unfence(self, broker_ids: set[int]) -> None:
        self.stage.unfence(*sorted(broker_ids))

    @rule(broker_id=st.sampled_from(BROKERS), unclean=st.booleans())
    def restart(self, broker_id: int, unclean: bool) -> None:
        self.stage.fence(broker_id)
        if unclean:
            self.stage.machines.broker_change.on_unclean_shutdown(broker_id)
        self.stage.register(broker_id, rack=RACKS[broker_id], directories=2)
        self.stage.unfence(broker_id)

    @rule(broker_id=st.sampled_from(BROKERS))
    def shut_down(self, broker_id: int) -> None:
        if broker_id in self.stage.context.live_broker_ids:
            self.stage.shut_down(broker_id)

    @rule(broker_id=st.sampled_from(BROKERS), number=st.integers(0, 1))
    def lose_directory(self, broker_id: int, number: int) -> None:
        directory = directory_of(broker_id, number)
        self.stage.machines.broker_change.on_broker_log_dir_failure(broker_id, {directory})

    # ---- partitions ---------------------------------------------------------------------------------------

    @rule(data=st.data())
    def alter_isr(self, data: st.DataObject) -> None:
        partition = self.draw_partition(data)
        if partition is None or self.registration(partition).leader == NO_LEADER:
            return
        state = self.registration(partition)
        others = [replica for replica in state.replicas if replica != state.leader]
        isr = [
            state.leader,
            *data.draw(st.lists(st.sampled_from(others), unique=True) if others else st.just([])),
        ]
        brokers = self.stage.context.metadata.brokers
        asked = PartitionData(
            partition_index=partition.topic_partition.partition,
            leader_epoch=state.leader_epoch,
            new_isr_with_epochs=tuple(
                BrokerState(broker_id=each, broker_epoch=brokers[each].epoch) for each in isr
            ),
            leader_recovery_state=0,
            partition_epoch=state.partition_epoch,
        )
        topic = TopicData(topic_id=uuid.UUID(bytes=partition.topic_id.raw), partitions=(asked,))
        epoch = brokers[state.leader].epoch
        self.stage.control.alter_partition(
            AlterPartitionRequest(broker_id=state.leader, broker_epoch=epoch, topics=(topic,))
        )

    @rule(data=st.data(), wanted=st.none() | assignments)
    def reassign(self, data: st.DataObject, wanted: list[int] | None) -> None:
        partition = self.draw_partition(data)
        if partition is None:
            return
        topic, number = partition.topic_partition
        asked = ReassignablePartition(
            partition_index=number, replicas=None if wanted is None else tuple(wanted)
        )
        self.stage.control.alter_partition_reassignments(
            AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name=topic, partitions=(asked,)),))
        )

    @rule(kind=st.sampled_from((0, 1)))
    def elect(self, kind: int) -> None:
        self.stage.control.elect_leaders(ElectLeadersRequest(election_type=kind, topic_partitions=None))

    @rule()
    def balance(self) -> None:
        self.stage.machines.preferred_election.balance()

    @rule()
    def fail_over(self) -> None:
        self.epoch += 1
        self.stage.take_over(self.epoch)

    @rule(data=st.data(), broker_ids=some_brokers)
    def refused_append(self, data: st.DataObject, broker_ids: set[int]) -> None:
        events: list[Callable[[], Any]] = [
            lambda: self.fence(broker_ids),
            lambda: self.unfence(broker_ids),
            lambda: self.create("purple", 2, 1, 1, False),
            lambda: self.delete(TOPICS[0]),
            lambda: self.reassign(data, sorted(broker_ids)),
            lambda: self.shut_down(min(broker_ids)),
        ]
        event = data.draw(st.sampled_from(events))
        seen = self.seen()
        self.stage.refuses = True
        try:
            event()
        except BufferExhausted:
            assert self.seen() == seen
        finally:
            self.stage.refuses = False

    # ---- what must hold -----------------------------------------------------------------------------------

    @invariant()
    def the_log_tells_all(self) -> None:
        assert self.stage.replayed() == self.stage.context.metadata

    @invariant()
    def leaders_and_isrs_are_sound(self) -> None:
        context = self.stage.context
        for partition in context.partitions.values():
            state = self.registration(partition)
            assert partition.change is None
            assert state == context.metadata.partition(partition.topic_partition)
            assert state.leader == NO_LEADER or state.leader in state.isr
            up = context.live_or_shutting_down_broker_ids
            assert set(state.isr) <= up & set(state.replicas)
            assert set(state.elr) <= set(state.replicas)
            assert not set(state.isr) & set(state.elr)
            min_isr = min(context.settings.of(partition.topic_partition.topic)[0], len(state.replicas))
            assert len(state.isr) < min_isr or not state.elr
            assert len(set(state.replicas)) == len(state.replicas) == len(state.directories) > 0
            assert set(state.adding_replicas) | set(state.removing_replicas) <= set(state.replicas)

    @invariant()
    def states_and_indexes_fit(self) -> None:
        context = self.stage.context
        not_online, on_broker, reassigning = set(), set(), set()
        for partition in context.partitions.values():
            state = self.registration(partition)
            assert (partition.state is PartitionState.ONLINE) == (state.leader != NO_LEADER)
            if partition.state is not PartitionState.ONLINE:
                not_online.add(partition)
            assert set(partition.replica_states) == set(state.replicas)
            assert ReplicaState.NON_EXISTENT not in partition.replica_states.values()
            on_broker |= {(partition, replica) for replica in state.replicas}
            if state.adding_replicas or state.removing_replicas:
                reassigning.add(partition)
        assert set(context.partitions_being_reassigned) == reassigning
        for deletion in context.topics_to_be_deleted.values():
            for partition in deletion.partitions:
                not_online.add(partition)
                on_broker |= {(partition, replica) for replica in partition.replica_states}
        assert set(context.partitions_not_online) == not_online
        assert on_broker == {
            (partition, broker_id)
            for broker_id in BROKERS
            for partition in context.partitions_on_broker(broker_id)
        }

    @invariant()
    def epochs_go_up(self) -> None:
        now = {
            (partition.topic_id.raw, partition.topic_partition.partition): self.registration(partition)
            for partition in self.stage.context.partitions.values()
        }
        for key, before in self.before.items():
            after = now.get(key)
            if after is not None and after != before:
                assert after.partition_epoch > before.partition_epoch
                changed = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
                assert after.leader_epoch >= before.leader_epoch + changed
        self.before = now

    # ---- ways ---------------------------------------------------------------------------------------------

    def draw_partition(self, data: st.DataObject) -> PartitionContext | None:
        partitions = list(self.stage.context.partitions.values())
        return data.draw(st.sampled_from(partitions)) if partitions else None

    @staticmethod
    def registration(partition: PartitionContext) -> PartitionRegistration:
        assert partition.registration is not None
        return partition.registration

    def seen(self) -> Any:
        """All that a batch may change."""
        context = self.stage.context
        return (
            context.metadata.copy(),
            {
                name: (partition.registration, partition.state, dict(partition.replica_states))
                for name, partition in context.partitions.items()
            },
            (context.live_broker_ids, context.shutting_down_broker_ids, dict(context.offline_directories)),
            set(context.partitions_not_online),
            set(context.topics_to_be_deleted),
            [set(context.partitions_on_broker(broker_id)) for broker_id in BROKERS],
            len(self.stage.log),
        )


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
