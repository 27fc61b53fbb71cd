"""Scripts of whole nodes, in which the quorum and its controller make all decisions.

A script begins with `nodes` instead of `brokers`; shared commands are the same as in scripts of brokers. What
the controller's log commits is printed under the line that caused it. Timeouts are Kafka's defaults, so a
script's events are far from them. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import NO_LEADER, LeaderAndIsr
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim.network import LinkConditions
from kreplica.sim.nodes.node_cluster import FIRST_CLIENT_ID, NodeCluster
from kreplica.sim.scheduler import SimEvent
from kreplica.sim.story import CommittedNews, stands
from kreplica.sim.transcript.broker_commands import SCRIPT_LOG, table
from kreplica.sim.transcript.runner import (
    COMMANDS,
    Arguments,
    Command,
    ScriptError,
    Transcript,
    brokers_of,
    command,
    error_name,
    number_of,
    refused,
)

# Kafka's defaults, except that a metadata commit does not wait to share its flush with others.
SETTINGS: Mapping[str, object] = {
    "controller.quorum.election.timeout.ms": 1_000,
    "controller.quorum.fetch.timeout.ms": 2_000,
    "controller.quorum.election.backoff.max.ms": 1_000,
    "controller.quorum.request.timeout.ms": 2_000,
    "controller.quorum.append.linger.ms": 0,
    "broker.session.timeout.ms": 9_000,
    "broker.session.hint.ms": 9_000,
    "broker.session.max.timeout.ms": 9_000,
    "broker.heartbeat.interval.ms": 2_000,
    "broker.heartbeat.timeout.ms": 4_000,
    "leader.imbalance.check.interval.seconds": 300,
    "replica.lag.time.max.ms": 30_000,
    "replica.fetch.wait.max.ms": 500,
    "replica.fetch.backoff.ms": 1_000,
    "replica.socket.timeout.ms": 30_000,
    "replica.high.watermark.checkpoint.interval.ms": 5_000,
    "metadata.log.max.record.bytes.between.snapshots": 20 << 20,
}
# The commands of brokers' scripts that do not need a scripted controller.
_SHARED = (
    *("start", "kill", "power-cut", "pause", "resume", "disk", "flush", "checkpoint"),
    *("hold", "release", "deliver", "drop", "messages", "cut", "heal", "disconnect", "clock", "date"),
    *("produce", "read", "delete-records", "status", "records", "epochs", "recovery", "why", "history"),
)
NODE_COMMANDS: dict[str, Command] = {name: COMMANDS[name] for name in _SHARED}


class ScriptedNodes(NodeCluster):
    """Nodes whose messages take no time and whose events run in the order they were added."""

    def __init__(self, brokers: int, controllers: int, settings: Mapping[str, object]) -> None:
        super().__init__(
            brokers,
            controllers=controllers,
            shuffle=False,
            conditions=LinkConditions(),
            as_bytes=False,
            settings={**SETTINGS, **settings},
        )

    def send(self, broker_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send a request as a client."""
        return self.client.endpoint.send(broker_id, request, timeout_ms=timeout_ms)


class NodesTranscript(Transcript):
    """A run of a script of whole nodes. `check(cluster)` installs checks that run after each event."""

    NAMES: Mapping[str, int] = {"client": FIRST_CLIENT_ID}

    def __init__(self, check: Callable[[NodeCluster], object] | None = None) -> None:
        super().__init__(_no_brokers, NODE_COMMANDS)
        self._check = check
        self._nodes: ScriptedNodes | None = None
        self._committed: CommittedNews | None = None

    def begin_nodes(self, brokers: int, controllers: int, settings: Mapping[str, object]) -> None:
        """Create the cluster, and start it."""
        if self._nodes is not None:
            raise ScriptError("the nodes exist already; begin another script")
        nodes = self._nodes = ScriptedNodes(brokers, controllers, settings)
        self._cluster = nodes  # type: ignore[assignment]  # it has no scripted controller
        if self._check is not None:
            self._check(nodes)
        news = self._committed = CommittedNews(nodes)
        checks = nodes.scheduler.after_event

        def after(event: SimEvent) -> None:
            if checks is not None:
                checks(event)
            news.look()

        nodes.scheduler.after_event = after
        nodes.boot()
        # The topic of the last response of the start-up is published a moment later.
        nodes.scheduler.run_due()
        news.take()

    @property
    def nodes(self) -> ScriptedNodes:
        if self._nodes is None:
            raise ScriptError("a script begins with its nodes")
        return self._nodes

    def _own_news(self) -> Iterator[str]:
        if self._committed is not None:
            yield from self._committed.take()
        if self._nodes is not None:
            while self._nodes.fatal:
                node_id, error = self._nodes.fatal.pop(0)
                yield f"{node_id} cannot go on: {error_name(error)}"

    # ---- what commands need -------------------------------------------------------------------------------

    def node_of(self, text: str) -> int:
        if text != "controller":
            return super().node_of(text)
        active = self.nodes.controller
        if active is None:
            raise ScriptError("there is no active controller")
        return active

    def name_of(self, node_id: int) -> str:
        if self.nodes.controllers == [node_id] and node_id not in self.nodes.broker_ids:
            return "controller"
        return super().name_of(node_id)

    def topic_name(self, topic_id: Uuid) -> str:
        if topic_id == Uuid.METADATA_TOPIC:
            return "metadata"
        found = self.nodes.metadata().topic_by_id(topic_id)
        return str(topic_id) if found is None else found.name

    def decided(self, topic_partition: TopicPartition) -> LeaderAndIsr:
        metadata = self.nodes.metadata()
        registration = metadata.partition(topic_partition)
        if registration is None:
            raise ScriptError(f"there is no partition {topic_partition}")
        return registration.leader_and_isr(topic_partition, metadata.topics[topic_partition.topic].topic_id)

    def leader_of(self, topic_partition: TopicPartition) -> int:
        leader = super().leader_of(topic_partition)
        if leader == NO_LEADER:
            raise ScriptError(f"{topic_partition} has no leader")
        return leader

    def ask(self, future: Future[Any]) -> Iterator[str]:
        """Wait for the response, and print an error."""
        try:
            self.nodes.result(future)
        except KreplicaError as error:
            yield refused(error)


def _no_brokers(_: Mapping[str, str]) -> Any:
    raise ScriptError("this is a script of nodes: use nodes, not brokers")


# ---- commands --------------------------------------------------------------------------------------------


@command("nodes BROKERS [controllers=N] [SETTING=VALUE...]", NODE_COMMANDS)
def nodes(script: NodesTranscript, arguments: Arguments) -> None:
    """Start a number of brokers, and dedicated controllers (default 1) with ids from 1001 on."""
    brokers = arguments.number("how many brokers")
    controllers = number_of(arguments.option("controllers", "1"), "how many controllers")
    settings, arguments.options = dict(arguments.options), {}
    arguments.end()
    script.begin_nodes(brokers, controllers, settings)


@command("topic NAME REPLICAS [partitions=N] [SETTING=VALUE...]", NODE_COMMANDS)
def topic(script: NodesTranscript, arguments: Arguments) -> Iterator[str]:
    """Create a topic. The first of the replicas is the preferred leader."""
    cluster = script.nodes
    name = arguments.word("a name")
    replicas = brokers_of(arguments.word("the replicas"))
    count = number_of(arguments.option("partitions", "1"), "the number of partitions")
    settings = {**SCRIPT_LOG, **arguments.options}
    asked = cluster.client.admin.create_topic(
        name, assignment=dict.fromkeys(range(count), replicas), config=settings
    )
    script.partition = script.partition or TopicPartition(name, 0)
    yield from script.ask(asked)


@command("config TOPIC SETTING=VALUE...", NODE_COMMANDS)
def config(script: NodesTranscript, arguments: Arguments) -> Iterator[str]:
    """Change a topic's settings."""
    name = arguments.word("a topic")
    cluster = script.nodes
    yield from script.ask(cluster.client.admin.alter_config(name, arguments.options))


@command("stop NODE", NODE_COMMANDS)
def stop(script: NodesTranscript, arguments: Arguments) -> Iterator[str]:
    """Shut a node down cleanly."""
    cluster = script.nodes
    yield from script.ask(cluster.shut_down(script.broker(arguments.word("a node"), runs=True)))


@command("reassign [PARTITION] IDS", NODE_COMMANDS)
def reassign(script: NodesTranscript, arguments: Arguments) -> Iterator[str]:
    """Start moving a partition to these brokers."""
    at = script.the_partition(arguments)
    replicas = brokers_of(arguments.word("the replicas"))
    arguments.end()
    yield from script.ask(script.nodes.client.admin.reassign(at, replicas))


@command("elect [PARTITION] [unclean=yes]", NODE_COMMANDS)
def elect(script: NodesTranscript, arguments: Arguments) -> Iterator[str]:
    """Elect the preferred replica; with unclean, any live replica."""
    at = script.the_partition(arguments)
    unclean = arguments.option("unclean", "no") == "yes"
    arguments.end()
    admin = script.nodes.client.admin
    yield from script.ask(admin.elect_leader(at, "unclean" if unclean else "preferred"))


@command("partition [PARTITION]", NODE_COMMANDS)
def partition(script: NodesTranscript, arguments: Arguments) -> Iterator[str]:
    """Print the controller's state of a partition."""
    at = script.the_partition(arguments)
    arguments.end()
    registration = script.nodes.partition(*at)
    yield f"{at} is no more" if registration is None else f"{at}: {stands(registration)}"


@command("quorum", NODE_COMMANDS)
def quorum(script: NodesTranscript, arguments: Arguments) -> Iterator[str]:
    """Print the controllers: state in the quorum, epoch, and the leader that each knows."""
    arguments.end()
    cluster = script.nodes
    rows = [("node", "state", "epoch", "leader")]
    for voter in cluster.controllers:
        node = cluster.node(voter)
        if node is None:
            rows.append((str(voter), "down", "", ""))
            continue
        state = node.raft.quorum.state
        leader = "none" if state.leader_id is None else str(state.leader_id)
        rows.append((str(voter), state.NAME, str(state.epoch), leader))
    yield from table(rows)
