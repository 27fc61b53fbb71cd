"""Formatting, and what a node that is started on the wrong directory says."""

from __future__ import annotations

import random

import pytest

from kreplica.broker.node_config import NodeConfig
from kreplica.broker.node_directories import directory_ids, format_node, is_formatted
from kreplica.common import errors
from kreplica.common.config import MetadataLogConfig
from kreplica.common.types import Uuid
from kreplica.log.meta_properties import MetaPropertiesFile
from kreplica.raft.kafka_metadata_log import KafkaMetadataLog
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.snapshots import BOOTSTRAP_SNAPSHOT_ID
from kreplica.raft.voter_set import ReplicaKey, VoterNode, VoterSet
from kreplica.sim.storage import SimStorage
from tests.support.clocks import ManualClock

CLUSTER = "dpbFJ6ZBRoSUiuWQ5q1v1w"


def config_of(**changes):
    fields = {"node_id": 1, "cluster_id": CLUSTER, "directories": ("/a", "/b"), **changes}
    return NodeConfig(**fields)


def formatted(storage=None, **changes):
    storage = storage or SimStorage()
    config = config_of(**changes)
    ids = directory_ids(config, storage, random.Random(7))
    voters = VoterSet([VoterNode(ReplicaKey(1, ids[config.metadata_directory]), (), 0, 1)])
    format_node(config, ids, storage=storage, clock=ManualClock(), initial_voters=voters)
    return storage, config, ids


def test_directories_become_the_nodes():
    storage, config, ids = formatted()
    assert is_formatted(config, storage)
    found = {path: MetaPropertiesFile(storage, path).read() for path in ("/a", "/b")}
    assert {(each.cluster_id, each.node_id) for each in found.values()} == {(CLUSTER, 1)}
    assert {path: each.directory_id for path, each in found.items()} == ids
    log = KafkaMetadataLog.open("/a/__cluster_metadata-0", storage=storage, clock=ManualClock())
    assert log.latest_snapshot_id == BOOTSTRAP_SNAPSHOT_ID
    log.close()
    assert not storage.exists("/b/__cluster_metadata-0")


def test_what_is_formatted_lasts_and_stays_as_it_is():
    storage, config, ids = formatted()
    after = storage.after_power_cut()
    assert directory_ids(config, after, random.Random(8)) == ids
    before = after.read_file("/a/meta.properties")
    formatted(after)
    assert after.read_file("/a/meta.properties") == before


def test_a_crash_at_any_step_leaves_what_can_be_formatted_again():
    class Cut(Exception):
        pass

    steps = 0
    while True:
        storage, left = SimStorage(), [steps]

        def before(*_, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Cut

        storage.before = before
        try:
            formatted(storage)
        except Cut:
            steps += 1
            for after in (storage.after_kill(), storage.after_power_cut()):
                again, config, _ = formatted(after)
                log = KafkaMetadataLog.open("/a/__cluster_metadata-0", storage=again, clock=ManualClock())
                assert log.latest_snapshot_id == BOOTSTRAP_SNAPSHOT_ID
                assert is_formatted(config, again)
                log.close()
        else:
            break
    assert steps > 10


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"cluster_id": "another"}, errors.InconsistentClusterId), ({"node_id": 2}, errors.InvalidFile)],
)
def test_a_foreign_directory_is_refused_and_nothing_changes(changes, error):
    storage, _, _ = formatted()
    changed = []
    storage.before = lambda operation, path: changed.append((operation, path))
    with pytest.raises(error):
        is_formatted(config_of(**changes), storage)
    with pytest.raises(error):
        formatted(storage, **changes)
    assert changed == []


def test_configurations_that_make_no_sense():
    for changes in (
        {"node_id": -1},
        {"roles": frozenset()},
        {"roles": frozenset({"king"})},
        {"directories": ()},
        # A batch that the log refuses would end the leader that appends it.
        {"raft": RaftConfig(), "metadata_log": MetadataLogConfig(log_segment_bytes=1 << 20)},
    ):
        with pytest.raises(errors.InvalidConfig):
            config_of(**changes)
    assert config_of(metadata_directory="/m").all_directories == ("/m", "/a", "/b")
    assert isinstance(directory_ids(config_of(), SimStorage(), random.Random(1))["/a"], Uuid)
