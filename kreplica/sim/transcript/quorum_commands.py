"""Scripts of a metadata quorum alone: voters and observers, their appends, and their elections.

A script begins with `voters` instead of `brokers`. Elections, commits and fatal errors are printed under the
line that caused them; the quorum's invariants are checked after every event. Timeouts are Kafka's defaults.
Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from kreplica.common.config import MetadataLogConfig
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.messages.quorum import AddRaftVoterRequest, RemoveRaftVoterRequest
from kreplica.common.wire import error_of, uuid_of
from kreplica.metadata.image_format import OffsetAndEpoch
from kreplica.raft.epoch_state import LeaderState
from kreplica.raft.raft_config import RaftConfig
from kreplica.raft.raft_listener import LeaderAndEpoch
from kreplica.raft.raft_messages import make_vote_request
from kreplica.raft.snapshots import parse_snapshot_name
from kreplica.raft.voter_set import ReplicaKey
from kreplica.sim.invariants.violation import InvariantViolated
from kreplica.sim.quorum.quorum_checker import QuorumChecker
from kreplica.sim.quorum.sim_quorum import CLIENT_ID, CLUSTER_ID, LOG_DIRECTORY, QuorumNode, SimQuorum
from kreplica.sim.transcript.broker_commands import table
from kreplica.sim.transcript.runner import (
    COMMANDS,
    Arguments,
    Command,
    ScriptError,
    Transcript,
    command,
    error_name,
    number_of,
    refused,
)

_SHARED = (
    *("kill", "power-cut", "pause", "resume", "disk", "hold", "release", "deliver", "drop"),
    *("cut", "heal", "disconnect", "clock", "date"),
)
QUORUM_COMMANDS: dict[str, Command] = {name: COMMANDS[name] for name in _SHARED}
# Kafka's defaults, except that an append does not wait to share its flush with others.
CONFIG = RaftConfig(quorum_append_linger_ms=0)
# Logs are cleaned or started anew only after a script lets enough time pass.
LOG_CONFIG = MetadataLogConfig(log_segment_bytes=1_024, max_retention_bytes=1, max_retention_ms=-1)
ANSWER_MS = 60_000
# Beyond the end of every log.
FAR = 1 << 40


class QuorumNews(QuorumChecker):
    """The checker, which also prints notifications. Without `checks` it only prints them."""

    def __init__(self, quorum: SimQuorum, *, checks: bool) -> None:
        super().__init__(quorum)
        self.news: list[str] = []
        self._told: set[int] = set()
        self._leaders_told: dict[int, int] = {}
        self._checks = checks
        if not checks:
            quorum.network.tap = None

    def check(self, node_ids: Iterable[int] | None = None) -> None:
        if self._checks:
            super().check(node_ids)

    def committed(self, node: QuorumNode, offset: int, epoch: int, value: str) -> None:
        if self._checks:
            super().committed(node, offset, epoch, value)
        if offset not in self._told:
            self._told.add(offset)
            self.news.append(f"{value} is committed at offset {offset}")

    def loaded(self, node: QuorumNode, snapshot_id: OffsetAndEpoch, values: list[str]) -> None:
        if self._checks:
            super().loaded(node, snapshot_id, values)
        self.news.append(f"{node.node_id} begins anew with the snapshot up to {snapshot_id.offset}")

    def leader_told(self, node: QuorumNode, leader: LeaderAndEpoch) -> None:
        if self._checks:
            super().leader_told(node, leader)
        if leader.leader_id == node.node_id and self._leaders_told.get(leader.epoch) != node.node_id:
            self._leaders_told[leader.epoch] = node.node_id
            self.news.append(f"{node.node_id} leads epoch {leader.epoch}")


class QuorumTranscript(Transcript):
    """A run of a script of a quorum."""

    NAMES: Mapping[str, int] = {"client": CLIENT_ID}

    def __init__(self) -> None:
        super().__init__(_no_brokers, QUORUM_COMMANDS)
        self._quorum: SimQuorum | None = None
        self._checker: QuorumNews | None = None
        self._answers: list[tuple[str, Future[Any]]] = []

    def begin_quorum(self, voters: int, observers: int, *, dynamic: bool, checks: bool) -> None:
        """Create the quorum, and start it."""
        if self._quorum is not None:
            raise ScriptError("the voters exist already; begin another script")
        quorum = self._quorum = SimQuorum(
            voters, observers, shuffle=False, dynamic=dynamic, config=CONFIG, log_config=LOG_CONFIG
        )
        quorum.setup.on_fatal = self._cannot_go_on
        self._cluster = quorum  # type: ignore[assignment]  # it has no scripted controller
        self._checker = QuorumNews(quorum, checks=checks)
        quorum.start()

    @property
    def quorum(self) -> SimQuorum:
        if self._quorum is None:
            raise ScriptError("a script begins with its voters")
        return self._quorum

    @property
    def checker(self) -> QuorumNews:
        assert self._checker is not None
        return self._checker

    def node_of(self, text: str) -> int:
        if text != "leader":
            return super().node_of(text)
        leader = self.quorum.leader
        if leader is None:
            raise ScriptError("there is no leader")
        return leader

    def await_answer(self, what: str, answer: Future[Any]) -> None:
        """Print the response when it arrives."""
        self._answers.append((what, answer))

    def _cannot_go_on(self, node_id: int, error: BaseException) -> None:
        if isinstance(error, InvariantViolated):
            raise error
        self.checker.news.append(f"{node_id} cannot go on: {error_name(error)}")
        life = self.quorum.machines[node_id].life
        kill = partial(self.quorum.kill, node_id)
        self.quorum.scheduler.add("fault", f"node {node_id} dies", kill, incarnation=life)

    def _own_news(self) -> Iterator[str]:
        if self._checker is not None:
            news, self._checker.news = self._checker.news, []
            yield from news
        waiting = []
        for what, answer in self._answers:
            if not answer.done():
                waiting.append((what, answer))
                continue
            error = answer.exception() or error_of(answer.result().error_code)
            yield f"{what}: {'done' if error is None else error_name(error)}"
        self._answers = waiting


def _no_brokers(_: Mapping[str, str]) -> Any:
    raise ScriptError("this is a script of a quorum: use voters, not brokers")


# ---- commands --------------------------------------------------------------------------------------------


@command("voters N [observers=N] [static=yes] [checks=no]", QUORUM_COMMANDS)
def voters(script: QuorumTranscript, arguments: Arguments) -> None:
    """Start a number of voters, with ids from 1 on, and observers. Static voters never change. `checks=no`
    turns invariants off, for scripts that lose more disks than a quorum survives."""
    count = arguments.number("how many voters")
    observers = number_of(arguments.option("observers", "0"), "how many observers")
    dynamic = arguments.option("static", "no") != "yes"
    checks = arguments.option("checks", "yes") != "no"
    arguments.end()
    script.begin_quorum(count, observers, dynamic=dynamic, checks=checks)


@command("start NODE...", QUORUM_COMMANDS)
def start(script: QuorumTranscript, arguments: Arguments) -> Iterator[str]:
    """Start nodes on their disks as they are."""
    for word in arguments.words:
        node_id = script.broker(word, runs=False)
        try:
            script.quorum.start(node_id)
        except KreplicaError as error:
            yield f"{node_id}: {error_name(error)}"


@command("append VALUE... [at=NODE]", QUORUM_COMMANDS)
def append(script: QuorumTranscript, arguments: Arguments) -> Iterator[str]:
    """Append values in one batch at the leader, or at a node that believes to lead."""
    node_id = script.node_of(arguments.option("at", "leader"))
    try:
        script.quorum.append(node_id, *arguments.words)
    except KreplicaError as error:
        yield refused(error)


@command("isolate NODE", QUORUM_COMMANDS)
def isolate(script: QuorumTranscript, arguments: Arguments) -> None:
    """Disconnect a node from all others."""
    script.quorum.isolate(script.broker(arguments.word("a node")))


@command("wipe NODE", QUORUM_COMMANDS)
def wipe(script: QuorumTranscript, arguments: Arguments) -> None:
    """Replace the disk of a stopped node with an empty one."""
    node_id = script.broker(arguments.word("a node"), runs=False)
    script.quorum.machines[node_id].wipe()
    script.checker.forget_disk(node_id)


@command("lose-snapshots NODE", QUORUM_COMMANDS)
def lose_snapshots(script: QuorumTranscript, arguments: Arguments) -> Iterator[str]:
    """Remove all snapshots from the disk of a stopped node."""
    node_id = script.broker(arguments.word("a node"), runs=False)
    storage = script.quorum.machines[node_id].storage
    for name in sorted(storage.list_directory(LOG_DIRECTORY)):
        if parse_snapshot_name(name) is not None:
            storage.remove(f"{LOG_DIRECTORY}/{name}")
            yield f"lost: {name}"
    storage.sync_directory(LOG_DIRECTORY)


@command("snapshot NODE [at=OFFSET]", QUORUM_COMMANDS)
def snapshot(script: QuorumTranscript, arguments: Arguments) -> Iterator[str]:
    """Make a node write a snapshot of what it has applied, or of what is below an offset."""
    node = script.quorum.node(script.broker(arguments.word("a node"), runs=True))
    end = number_of(arguments.option("at", str(node.applied.offset)), "an offset")
    arguments.end()
    try:
        node.snapshot(OffsetAndEpoch(end, node.applied.epoch))
    except KreplicaError as error:
        yield refused(error)
    else:
        yield f"a snapshot up to {end}"


@command("ask-vote VOTER for=CANDIDATE epoch=N [pre=yes]", QUORUM_COMMANDS)
def ask_vote(script: QuorumTranscript, arguments: Arguments) -> Iterator[str]:
    """Ask a voter for its vote, as a candidate with the longest log would."""
    quorum = script.quorum
    voter = script.broker(arguments.word("a voter"), runs=True)
    candidate = script.node_of(arguments.option("for", ""))
    epoch = number_of(arguments.option("epoch", ""), "an epoch")
    pre_vote = arguments.option("pre", "no") == "yes"
    arguments.end()
    keys = quorum.setup.directory_ids
    request = make_vote_request(
        CLUSTER_ID,
        ReplicaKey(voter, keys[voter]),
        ReplicaKey(candidate, keys[candidate]),
        epoch,
        OffsetAndEpoch(FAR, epoch - 1),
        pre_vote=pre_vote,
    )
    answer = quorum.send(voter, request)
    quorum.settle()
    error = answer.exception() if answer.done() else None
    if error is not None or not answer.done():
        yield "no answer" if error is None else error_name(error)
        return
    is_granted = answer.result().topics[0].partitions[0].vote_granted
    yield f"{voter}: {'granted' if is_granted else 'refused'}"


@command("add-voter NODE", QUORUM_COMMANDS)
def add_voter(script: QuorumTranscript, arguments: Arguments) -> None:
    """Ask the leader to make an observer a voter. Prints the answer when it comes."""
    quorum = script.quorum
    node_id = script.broker(arguments.word("a node"))
    request = AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout=timedelta(milliseconds=ANSWER_MS),
        voter_id=node_id,
        voter_directory_id=uuid_of(quorum.setup.directory_ids[node_id]),
        listeners=(),
    )
    leader = script.node_of("leader")
    script.await_answer(f"add {node_id}", quorum.send(leader, request, timeout_ms=ANSWER_MS))


@command("remove-voter NODE", QUORUM_COMMANDS)
def remove_voter(script: QuorumTranscript, arguments: Arguments) -> None:
    """Ask the leader to remove a voter. Prints the answer when it comes."""
    quorum = script.quorum
    node_id = script.broker(arguments.word("a node"))
    request = RemoveRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        voter_id=node_id,
        voter_directory_id=uuid_of(quorum.setup.directory_ids[node_id]),
    )
    leader = script.node_of("leader")
    script.await_answer(f"remove {node_id}", quorum.send(leader, request, timeout_ms=ANSWER_MS))


@command("status", QUORUM_COMMANDS)
def status(script: QuorumTranscript, arguments: Arguments) -> Iterator[str]:
    """Print the nodes: state, epoch, known leader, log start, HW, LEO; of leaders also the voters."""
    arguments.end()
    quorum = script.quorum
    rows: list[tuple[str, ...]] = [("node", "state", "epoch", "leader", "start", "HW", "LEO", "voters")]
    for node_id in quorum.machines:
        if node_id not in quorum.alive:
            rows.append((str(node_id), "down"))
            continue
        client = quorum.client(node_id)
        state, log = client.quorum.state, quorum.node(node_id).log
        leader = "none" if state.leader_id is None else str(state.leader_id)
        mark = "unknown" if client.high_watermark is None else str(client.high_watermark)
        known = ",".join(map(str, sorted(client.voters.voters))) if isinstance(state, LeaderState) else ""
        offsets = (str(log.start_offset), mark, str(log.end_offset))
        rows.append((str(node_id), state.NAME, str(state.epoch), leader, *offsets, known))
    yield from table(rows)


@command("values [NODE...]", QUORUM_COMMANDS)
def values(script: QuorumTranscript, arguments: Arguments) -> Iterator[str]:
    """Print the values that each node considers committed."""
    quorum = script.quorum
    for node_id in [script.broker(word) for word in arguments.words] or quorum.machines:
        runs = node_id in quorum.alive
        yield f"{node_id}  {' '.join(quorum.node(node_id).values) or 'nothing' if runs else 'down'}"
