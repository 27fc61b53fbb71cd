"""What the committed log of the metadata quorum says of elections."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kreplica.common.leader_and_isr import LeaderRecoveryState
from kreplica.common.types import TopicPartition, Uuid
from kreplica.metadata.cluster_metadata import TOPIC_RESOURCE
from kreplica.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from kreplica.metadata.serde import encode, in_lowest_version
from kreplica.sim.invariants.cluster_view import ClusterView
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.nodes.node_checker import QuorumWord
from tests.support.batches import build
from tests.support.logs import NOW_MS
from tests.support.metadata_logs import open_metadata_log

TOPIC = Uuid(bytes(15) + b"\x01")


def allow(unclean: bool) -> ConfigRecord:
    return ConfigRecord(
        resource_type=TOPIC_RESOURCE,
        resource_name="t",
        name="unclean.leader.election.enable",
        value="true" if unclean else "false",
    )


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_an_unclean_election_is_held_to_the_settings_in_front_of_it(before: bool, after: bool) -> None:
    """One batch has the setting, the election, and the setting once more."""
    log, word = open_metadata_log(), QuorumWord()
    view = ClusterView({}, word)

    def committed(*records: MetadataRecord) -> None:
        start = log.end_offset
        values = [encode(*in_lowest_version(record)) for record in records]
        log.append_as_leader(build(values, base_offset=start, leader_epoch=1, now_ms=NOW_MS), 1)
        word.committed(SimpleNamespace(log=log), start, log.end_offset)
        view.look()

    committed(
        TopicRecord(name="t", topic_id=TOPIC),
        PartitionRecord(
            partition_id=0,
            topic_id=TOPIC,
            replicas=(1, 2),
            isr=(1,),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        ),
    )
    election = PartitionChangeRecord(
        partition_id=0,
        topic_id=TOPIC,
        isr=(2,),
        leader=2,
        leader_recovery_state=LeaderRecoveryState.RECOVERING,
    )
    if before:
        committed(allow(before), election, allow(after))
        assert view.partitions[TopicPartition("t", 0)].unclean_epoch == 1
        again = PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=(1,), leader=1)
        committed(allow(before), again, allow(after))
        assert view.partitions[TopicPartition("t", 0)].unclean_epoch == 2
    else:
        with pytest.raises(InvariantViolated, match="LegalElection"):
            committed(allow(before), election, allow(after))
