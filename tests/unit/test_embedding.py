"""Brokers and a controller inside a program: what docs/EMBEDDING.md shows and promises."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common import errors
from kreplica.embedding import Controller, LocalNetwork, ReplicaNode, TopicPartition

WAIT_S = 30
AT = TopicPartition("orders", 0)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "EMBEDDING.md"
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Stage:
    """Three nodes on one network, with a controller that keeps its decisions in `root`."""

    def __init__(self, root: Path, ids=(1, 2, 3)):
        self.root = root
        self.stack = ExitStack()
        self.network = self.stack.enter_context(LocalNetwork())
        self.controller = self.stack.enter_context(Controller(root / "controller", self.network))
        self.nodes = {n: self.start(n) for n in ids}

    def start(self, node_id):
        node = ReplicaNode(node_id, self.root / str(node_id), self.network, controller=self.controller)
        return self.stack.enter_context(node)

    def put(self, node_id, *values, **options):
        return self.nodes[node_id].append("orders", list(values), **options).result(WAIT_S)

    def values(self, node_id):
        return [record.value for record in self.nodes[node_id].read("orders")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()


@pytest.fixture
def stage(tmp_path):
    with Stage(tmp_path) as stage:
        stage.controller.create_topic("orders", replicas=[1, 2, 3])
        yield stage


def test_three_replicas_take_at_most_fifteen_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = SNIPPET.findall(PAGE.read_text())[0]
    assert len(program.splitlines()) <= 15
    exec(compile(program, str(PAGE), "exec"), {})


def test_three_processes_replicate_over_a_transport_of_the_program(tmp_path):
    (tmp_path / "program.py").write_text(SNIPPET.findall(PAGE.read_text())[1])
    command = [sys.executable, "program.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (run.stdout, run.returncode) == ("committed up to offset 1\n", 0), run.stderr


def test_a_record_is_committed_only_when_every_in_sync_replica_has_it(stage):
    stage.network.pause(stage.nodes[3]._endpoint)
    appended = stage.nodes[1].append("orders", [b"a"])
    stage.put(1, b"b", acks=1)
    leader = stage.nodes[1].partition("orders")
    assert (leader.log_end_offset, leader.high_watermark) == (2, 0)
    assert stage.values(1) == []
    assert not appended.done()
    stage.network.resume(stage.nodes[3]._endpoint)
    assert appended.result(WAIT_S).base_offset == 0
    assert stage.put(1, b"c").base_offset == 2
    assert stage.values(1) == [b"a", b"b", b"c"]


def test_another_replica_leads_when_the_leader_closes(stage):
    stage.put(1, b"a")
    stage.nodes[1].close()
    assert stage.put(2, b"b").base_offset == 1
    assert stage.controller.state.partitions["orders", 0].isr == (2, 3)
    stage.nodes[1] = stage.start(1)
    stage.controller.elect("orders", 3)
    assert stage.put(3, b"c").base_offset == 2
    with pytest.raises(errors.NotLeaderOrFollower):
        stage.put(2, b"d")


def test_a_callback_of_an_append_may_make_the_controller_decide(stage):
    for follower in (2, 3):
        stage.network.pause(stage.nodes[follower]._endpoint)
    cut_off = stage.nodes[1].append("orders", [b"a"])
    cut_off.add_done_callback(lambda _: stage.controller.elect("orders", 3))
    stage.controller.elect("orders", 2)
    with pytest.raises(errors.NotLeaderOrFollower):
        cut_off.result(WAIT_S)
    assert stage.controller.state.partitions["orders", 0].leader == 3
    assert stage.nodes[3].partition("orders").is_leader
    for follower in (2, 3):
        stage.network.resume(stage.nodes[follower]._endpoint)
    assert stage.put(3, b"b").base_offset == 0


def test_a_node_closes_its_logs_even_if_the_controller_cannot_write(stage, monkeypatch):
    def fail(*_):
        raise errors.KafkaStorageError("no disk")

    monkeypatch.setattr(stage.controller._storage, "write_file_atomically", fail)
    with pytest.raises(errors.KafkaStorageError, match="no disk"):
        stage.nodes[1].close()
    monkeypatch.undo()
    stage.nodes[1].close()  # closed already
    stage.start(1)  # its directory is free


def test_records_that_are_no_list_are_refused(stage):
    for records in (b"a", (b"k", b"v"), None):
        with pytest.raises(TypeError, match="must be a list"):
            stage.nodes[1].append("orders", records)


def test_without_a_majority_in_sync_nothing_is_appended(stage):
    for node_id in (2, 3):
        stage.nodes[node_id].close()
    with pytest.raises(errors.NotEnoughReplicas):
        stage.put(1, b"a")


def test_only_a_replica_in_sync_is_elected_unless_the_election_is_unclean(stage):
    stage.put(1, b"a")
    stage.controller.remove_broker(3)
    stage.put(1, b"b")
    with pytest.raises(
        errors.EligibleLeadersNotAvailable, match=r"broker 3 may not lead; in sync are \[1, 2\]"
    ):
        stage.controller.elect("orders", 3)
    with pytest.raises(errors.EligibleLeadersNotAvailable):
        stage.controller.elect("orders", 4, unclean=True)
    stage.controller.elect("orders", 2, unclean=True)
    assert stage.controller.state.partitions["orders", 0].leader == 2
    with pytest.raises(errors.UnknownTopicOrPartition):
        stage.controller.elect("orders", 2, partition=7)


def test_decisions_and_records_outlast_the_program(tmp_path):
    with Stage(tmp_path) as stage:
        stage.controller.create_topic("orders", replicas=[1, 2, 3])
        stage.put(1, b"a")
        before = stage.controller.state
    with Stage(tmp_path, ids=()) as stage:
        # The last one to close has all that is committed, and the others may lack some of it.
        assert stage.controller.state.partitions["orders", 0].isr == (1,)
        stage.nodes = {n: stage.start(n) for n in (3, 2, 1)}
        after = stage.controller.state.partitions["orders", 0]
        assert (after.leader, after.topic_id) == (1, before.topics["orders"].topic_id)
        assert after.leader_epoch > before.partitions["orders", 0].leader_epoch
        assert stage.values(1) == [b"a"]


def test_a_controller_that_forgot_its_topics_is_refused(tmp_path, caplog):
    with Stage(tmp_path, ids=(1,)) as stage:
        stage.controller.create_topic("orders", replicas=[1])
        stage.put(1, b"a")
    (tmp_path / "controller" / "controller.json").unlink()
    with Stage(tmp_path, ids=(1,)) as stage:
        stage.controller.create_topic("orders", replicas=[1])
        with pytest.raises(errors.NotLeaderOrFollower):
            stage.put(1, b"b")
    assert "broker 1 cannot take its role in orders-0: InconsistentTopicId" in caplog.text


def test_a_controllers_file_that_is_broken_is_named(tmp_path):
    for text in ("", "[]", '{"topics": []}', '{"topics": {"t": ["no id", {}]}}'):
        (tmp_path / "controller.json").write_text(text)
        with pytest.raises(errors.InvalidFile, match=r"controller\.json is not the state of a controller"):
            Controller(tmp_path)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (errors.TopicAlreadyExists, {"name": "orders", "replicas": [1]}),
        (errors.InvalidTopic, {"name": "no/name", "replicas": [1]}),
        (errors.InvalidReplicaAssignment, {"name": "t", "replicas": []}),
        (errors.InvalidReplicaAssignment, {"name": "t", "replicas": [1, 1]}),
        (errors.InvalidReplicaAssignment, {"name": "t", "replicas": [1, 4]}),
        (errors.InvalidReplicaAssignment, {"name": "t", "replicas": [1], "partitions": 0}),
        (errors.InvalidConfig, {"name": "t", "replicas": [1], "config": {"no.such": 1}}),
    ],
)
def test_a_topic_that_cannot_be_is_refused(stage, error, arguments):
    with pytest.raises(error):
        stage.controller.create_topic(**arguments)
    assert set(stage.controller.state.topics) == {"orders"}


def test_an_older_state_changes_nothing(stage):
    older = stage.controller.state
    stage.controller.elect("orders", 2)
    assert stage.nodes[2].apply(older) == {}
    assert stage.nodes[2].partition("orders").is_leader


def test_acks_are_all_or_one(stage):
    for acks in (0, 2, True, "1"):
        with pytest.raises(ValueError, match='acks must be "all" or 1'):
            stage.nodes[1].append("orders", [b"a"], acks=acks)


def test_a_manager_takes_encoded_batches_deletes_records_and_counts(stage):
    manager = stage.nodes[1].manager
    batch = bytes(BatchBuilder().build([b"a", b"b"], now_ms=1_000))
    assert manager.append(AT, batch).result(WAIT_S).base_offset == 0
    assert manager.delete_records({AT: 1}).result(WAIT_S)[AT].low_watermark == 1
    assert [(each.topic_partition, each.log_start_offset) for each in manager.partitions] == [(AT, 1)]
    assert manager.metrics.values()["kafka.server:type=ReplicaManager,name=LeaderCount"] == 1
    assert manager.broker_id == 1
