"""Transcript: runs a script's command lines on a cluster and tells what came of them.

After each line the cluster settles, which takes a moment of its time. What happened of itself meanwhile is
told under the line: produces that were answered, and what the controller has decided. Commands are functions
that modules beside this one register; `COMMANDS` is the language of scripts of brokers, and those of whole
nodes and of quorums have tables of their own. Thread rule: one thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition, Uuid
from kreplica.sim import client
from kreplica.sim.cluster import CLIENT_ID
from kreplica.sim.controller import CONTROLLER_ID
from kreplica.sim.transcript.backend import Backend
from kreplica.sim.transcript.script import ScriptError

_OPTION = re.compile(r"([a-z][a-z.]*)=(.*)", re.ASCII)

# Makes the cluster of a script, given the brokers' settings by Kafka's names.
MakeCluster = Callable[[Mapping[str, str]], Backend]


class Arguments:
    """The words of a command line after its first, options (name=value) apart. Raises ScriptError
    throughout."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words: list[str] = []
        self.options: dict[str, str] = {}
        for word in words:
            option = _OPTION.fullmatch(word)
            if option is None:
                self.words.append(word)
            else:
                self.options[option[1]] = option[2]

    def word(self, what: str) -> str:
        """The next word."""
        if not self.words:
            raise ScriptError(f"{what} is missing")
        return self.words.pop(0)

    def maybe_word(self, pattern: str) -> str | None:
        """The next word if it is like the pattern."""
        return self.words.pop(0) if self.words and re.fullmatch(pattern, self.words[0]) else None

    def number(self, what: str) -> int:
        return number_of(self.word(what), what)

    def option(self, name: str, default: str) -> str:
        return self.options.pop(name, default)

    def brokers_option(self, name: str, default: Sequence[int]) -> list[int]:
        """Broker ids with commas between them."""
        text = self.options.pop(name, None)
        return list(default) if text is None else brokers_of(text)

    def end(self) -> None:
        """Nothing may be left."""
        left = self.words + [f"{name}={value}" for name, value in self.options.items()]
        if left:
            raise ScriptError(f"not understood: {' '.join(left)}")


def number_of(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ScriptError(f"{what} is a number, not {text!r}") from None


def brokers_of(text: str) -> list[int]:
    return [number_of(each, "a broker") for each in text.split(",") if each]


Run = Callable[["Transcript", Arguments], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the language: what may follow it, what it does, and the function that does it."""

    usage: str
    help: str
    run: Run


COMMANDS: dict[str, Command] = {}


def command(usage: str, table: dict[str, Command] = COMMANDS) -> Callable[[Run], Run]:
    """Register a function as the command of the usage's first word; its docstring's first paragraph helps."""

    def register(run: Run) -> Run:
        name = usage.split()[0]
        assert name not in table, f"{name} is there twice"
        help_text = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        table[name] = Command(usage, help_text, run)
        return run

    return register


class Transcript:
    """One run of a script, on the cluster that `make_cluster` makes at its command `brokers`."""

    # What the nodes are called that have no number in a script.
    NAMES: Mapping[str, int] = {"controller": CONTROLLER_ID, "client": CLIENT_ID}

    def __init__(self, make_cluster: MakeCluster, commands: Mapping[str, Command] = COMMANDS) -> None:
        self.make_cluster = make_cluster
        self.commands = commands
        self.partition: TopicPartition | None = None  # what commands that name none speak of
        self.holds: dict[str, Callable[[], None]] = {}  # by the words of the hold: what ends it
        self.disk_faults: dict[int, object] = {}
        self._cluster: Backend | None = None
        self._produces: list[tuple[str, Future[Any]]] = []
        self._decided: list[LeaderAndIsr] = []

    # ---- running ------------------------------------------------------------------------------------------

    def run(self, line: str) -> list[str]:
        """Run one command line; the lines it prints. Raises ScriptError."""
        name, *words = line.split()
        if name not in self.commands:
            raise ScriptError(f"there is no command {name!r}")
        printed = list(self.commands[name].run(self, Arguments(words)))
        if self._cluster is not None:
            self._cluster.settle()
        return printed + list(self._news())

    def begin(self, settings: Mapping[str, str]) -> Backend:
        """Make the cluster."""
        if self._cluster is not None:
            raise ScriptError("the brokers are there already")
        self._cluster = self.make_cluster(settings)
        self._cluster.controller.on_change = self._decided.append
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    @property
    def cluster(self) -> Backend:
        if self._cluster is None:
            raise ScriptError("a script begins with its brokers, its nodes or its voters")
        return self._cluster

    def _news(self) -> Iterator[str]:
        yield from self._told_of_itself()
        waiting = []
        for label, future in self._produces:
            if not future.done():
                waiting.append((label, future))
                continue
            outcome = client.produced(future)
            if outcome.error is not None:
                yield f"{label}: {error_name(outcome.error)}"
            elif outcome.base_offset >= 0:
                yield f"{label}: acknowledged at offset {outcome.base_offset}"
            else:
                yield f"{label}: sent"
        self._produces = waiting

    def _told_of_itself(self) -> Iterator[str]:
        """What the controller has decided, and what was asked of it, since the last line."""
        decided, self._decided[:] = list(self._decided), []
        for state in decided:
            isr, epoch = listed(state.isr), state.partition_epoch
            yield f"controller: {state.topic_partition} has ISR {isr} (partition epoch {epoch})"
        controller = self._cluster.controller if self._cluster is not None else None
        while controller is not None and controller.handovers:
            broker_id, topic_partition = controller.handovers.pop(0)
            yield f"{broker_id}: another one should lead {topic_partition}"

    # ---- what commands need -------------------------------------------------------------------------------

    def node_of(self, text: str) -> int:
        """The id of a node as a script names it."""
        return self.NAMES[text] if text in self.NAMES else number_of(text, "a broker")

    def name_of(self, node_id: int) -> str:
        """A node as a script names it."""
        return next((name for name, named in self.NAMES.items() if named == node_id), str(node_id))

    def topic_name(self, topic_id: Uuid) -> str:
        return str(self.cluster.controller.topic_name(topic_id))

    def add_produce(self, label: str, answer: Future[Any]) -> None:
        """Tell when the produce is answered."""
        self._produces.append((label, answer))

    def is_waiting(self, label: str) -> bool:
        return any(waiting == label and not future.done() for waiting, future in self._produces)

    def broker(self, word: str, *, runs: bool | None = None) -> int:
        """The id of a broker, which must run, or must not."""
        broker_id = self.node_of(word)
        if broker_id not in self.cluster.brokers:
            raise ScriptError(f"there is no broker {broker_id}")
        if runs is not None and runs != (self.cluster.program(broker_id) is not None):
            raise ScriptError(f"broker {broker_id} does not run" if runs else f"broker {broker_id} runs")
        return broker_id

    def the_partition(self, arguments: Arguments) -> TopicPartition:
        """The partition that the arguments name first, or the script's first one."""
        name = arguments.maybe_word(r"[a-z]\w*-\d+")
        if name is not None:
            topic, _, index = name.rpartition("-")
            return TopicPartition(topic, int(index))
        if self.partition is None:
            raise ScriptError("there is no topic yet")
        return self.partition

    def decided(self, topic_partition: TopicPartition) -> LeaderAndIsr:
        """The controller's word about the partition."""
        try:
            return self.cluster.controller.partitions[topic_partition]
        except KeyError:
            raise ScriptError(f"there is no partition {topic_partition}") from None

    def replica(self, broker_id: int, topic_partition: TopicPartition) -> Any:
        """The Partition on that broker; None where it does not run or has none."""
        program = self.cluster.program(broker_id)
        return None if program is None else program.replica_manager.partitions.get(topic_partition)

    def leader_of(self, topic_partition: TopicPartition) -> int:
        return self.decided(topic_partition).leader


def listed(brokers: Sequence[int]) -> str:
    """Broker ids as a script writes them."""
    return ",".join(str(broker) for broker in sorted(brokers)) or "none"


def error_name(error: BaseException) -> str:
    """An error as a script tells it: the kind; the words are for people and may change."""
    return type(error).__name__


def refused(error: KreplicaError) -> str:
    """What a command prints whose action was refused."""
    return f"refused: {error_name(error)}"
