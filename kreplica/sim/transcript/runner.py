"""Transcript: replays a script, which has blocks of command lines, and under `----` what they print.

    # A comment, which is kept.
    produce m1
    status
    ----
    m1: pending
    broker  role    ...

A block ends at an empty line or at the end of the text; a block that prints nothing has no `----`. A replay
produces the text anew with the current output. The script passes if the text is the same. So checking a
script is a comparison, and updating it means keeping the new text.

After each line the cluster settles, which takes a moment of its time. Events of that time are printed under
the line: completed produce requests, and the controller's decisions. Commands are functions that the modules
beside this one register. `COMMANDS` is the language of scripts of brokers; scripts of whole nodes and of
quorums have their own tables. Thread rule: one thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.leader_and_isr import LeaderAndIsr
from kreplica.common.types import TopicPartition, Uuid
from kreplica.controller.manual_controller import CONTROLLER_ID
from kreplica.sim import client
from kreplica.sim.cluster import CLIENT_ID, SimCluster

DIVIDER = "----"
COMMENT = "#"

# Runs a command line and returns the lines that it prints.
RunCommand = Callable[[str], Sequence[str]]


class ScriptError(ValueError):
    """The script cannot be run: an unknown command, a missing argument. The message has the line's number."""


def first_command(text: str) -> str:
    """Return the first word of the first command line, which is the kind of script, else ""."""
    lines = (line.strip() for line in text.splitlines())
    return next((line.split()[0] for line in lines if line and not line.startswith(COMMENT)), "")


def replay(text: str, run: RunCommand) -> str:
    """Return the text with the output that `run` returns for its commands. Raises ScriptError."""
    made: list[str] = []
    commands: list[tuple[int, str]] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].rstrip()
        at += 1
        if line == DIVIDER:
            # Skip the previous output, which is produced anew.
            while at < len(lines) and lines[at].strip():
                at += 1
        elif line:
            if not line.startswith(COMMENT):
                commands.append((at, line))
            made.append(line)
            continue
        if commands:
            made += _output(commands, run)
            commands = []
        if line != DIVIDER:
            made.append(line)
    made += _output(commands, run)
    return "\n".join(made).rstrip("\n") + "\n"


def _output(commands: Sequence[tuple[int, str]], run: RunCommand) -> list[str]:
    printed: list[str] = []
    for number, command in commands:
        try:
            printed += run(command)
        except ScriptError as error:
            raise ScriptError(f"line {number}, {command!r}: {error}") from None
        except Exception as error:
            error.add_note(f"in line {number} of the script: {command}")
            raise
    assert all(line.strip() for line in printed), f"an empty line would end the output: {printed}"
    return [DIVIDER, *(line.rstrip() for line in printed)] if printed else []


_OPTION = re.compile(r"([a-z][a-z.]*)=(.*)", re.ASCII)

# Creates the cluster of a script, given the brokers' settings by Kafka's names. A script does not depend on
# whether that is a SimCluster, or offers the same methods on real threads and files.
MakeCluster = Callable[[Mapping[str, str]], SimCluster]


class Arguments:
    """The words of a command line after the first; options (name=value) are separate. Methods raise
    ScriptError."""

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
        """Return and remove the next word."""
        if not self.words:
            raise ScriptError(f"{what} is missing")
        return self.words.pop(0)

    def maybe_word(self, pattern: str) -> str | None:
        """Return and remove the next word if it matches the pattern, else None."""
        return self.words.pop(0) if self.words and re.fullmatch(pattern, self.words[0]) else None

    def number(self, what: str) -> int:
        return number_of(self.word(what), what)

    def option(self, name: str, default: str) -> str:
        return self.options.pop(name, default)

    def brokers_option(self, name: str, default: Sequence[int]) -> list[int]:
        """Return the broker ids, separated by commas."""
        text = self.options.pop(name, None)
        return list(default) if text is None else brokers_of(text)

    def end(self) -> None:
        """Check that no words and options are left."""
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


T = TypeVar("T", bound="Run")
# Runs a command of a Transcript; returns the lines that it prints, if any.
Run = Callable[[Any, Arguments], Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its usage, its help, and its function."""

    usage: str
    help: str
    run: Run


COMMANDS: dict[str, Command] = {}


def command(usage: str, table: dict[str, Command] = COMMANDS) -> Callable[[T], T]:
    """Register a function under the usage's first word; its docstring's first paragraph is the help text."""

    def register(run: T) -> T:
        name = usage.split()[0]
        assert name not in table, f"command {name} is registered twice"
        help_text = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        table[name] = Command(usage, help_text, run)
        return run

    return register


class Transcript:
    """A run of a script; the command `brokers` creates the cluster with `make_cluster`."""

    # The names in scripts of nodes that have no broker id.
    NAMES: Mapping[str, int] = {"controller": CONTROLLER_ID, "client": CLIENT_ID}

    def __init__(self, make_cluster: MakeCluster, commands: Mapping[str, Command] = COMMANDS) -> None:
        self.make_cluster = make_cluster
        self.commands = commands
        self.partition: TopicPartition | None = None  # the default partition of commands
        self.holds: dict[str, Callable[[], None]] = {}  # by the words of the hold: the function that ends it
        self._cluster: SimCluster | None = None
        self._produces: list[tuple[str, Future[Any]]] = []
        self._decided: list[LeaderAndIsr] = []

    # ---- running ------------------------------------------------------------------------------------------

    def run(self, line: str) -> list[str]:
        """Run a command line; return the lines it prints. Raises ScriptError."""
        name, *words = line.split()
        if name not in self.commands:
            raise ScriptError(f"there is no command {name!r}")
        printed = list(self.commands[name].run(self, Arguments(words)) or ())
        if self._cluster is not None:
            self._cluster.settle()
        return printed + list(self._news())

    def begin(self, settings: Mapping[str, str]) -> SimCluster:
        """Create the cluster."""
        if self._cluster is not None:
            raise ScriptError("the brokers exist already; begin another script")
        self._cluster = self.make_cluster(settings)
        self._cluster.controller.on_change = self._decided.append
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    @property
    def cluster(self) -> SimCluster:
        if self._cluster is None:
            raise ScriptError("a script begins with its brokers, its nodes or its voters")
        return self._cluster

    def _news(self) -> Iterator[str]:
        yield from self._own_news()
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

    def _own_news(self) -> Iterator[str]:
        """Yield the controller's decisions, and the requests it got, since the last line."""
        decided, self._decided[:] = list(self._decided), []
        for state in decided:
            isr, epoch = listed(state.isr), state.partition_epoch
            yield f"controller: {state.topic_partition} has ISR {isr} (partition epoch {epoch})"
        controller = self._cluster.controller if self._cluster is not None else None
        while controller is not None and controller.handovers:
            broker_id, topic_partition = controller.handovers.pop(0)
            yield f"{broker_id}: another one should lead {topic_partition}"

    # ---- for commands -------------------------------------------------------------------------------------

    def node_of(self, text: str) -> int:
        """Return the id of a node, given by its name in a script."""
        return self.NAMES[text] if text in self.NAMES else number_of(text, "a broker")

    def name_of(self, node_id: int) -> str:
        """Return a node's name in a script."""
        return next((name for name, named in self.NAMES.items() if named == node_id), str(node_id))

    def topic_name(self, topic_id: Uuid) -> str:
        return str(self.cluster.controller.topic_name(topic_id))

    def add_produce(self, label: str, answer: Future[Any]) -> None:
        """Print the produce request's result when it completes."""
        self._produces.append((label, answer))

    def is_waiting(self, label: str) -> bool:
        return any(waiting == label and not future.done() for waiting, future in self._produces)

    def broker(self, word: str, *, runs: bool | None = None) -> int:
        """Return the id of a broker, after checking that it runs, or does not."""
        broker_id = self.node_of(word)
        if broker_id not in self.cluster.brokers:
            raise ScriptError(f"there is no broker {broker_id}")
        if runs is not None and runs != (self.cluster.program(broker_id) is not None):
            raise ScriptError(f"broker {broker_id} does not run" if runs else f"broker {broker_id} runs")
        return broker_id

    def the_partition(self, arguments: Arguments) -> TopicPartition:
        """Return the partition that the first argument names, else the script's first one."""
        name = arguments.maybe_word(r"[a-z]\w*-\d+")
        if name is not None:
            topic, _, index = name.rpartition("-")
            return TopicPartition(topic, int(index))
        if self.partition is None:
            raise ScriptError("there is no topic yet")
        return self.partition

    def decided(self, topic_partition: TopicPartition) -> LeaderAndIsr:
        """Return the controller's state of the partition."""
        try:
            return self.cluster.controller.partitions[topic_partition]
        except KeyError:
            raise ScriptError(f"there is no partition {topic_partition}") from None

    def replica(self, broker_id: int, topic_partition: TopicPartition) -> Any:
        """Return the broker's Partition, None if the broker is down or has none."""
        program = self.cluster.program(broker_id)
        return None if program is None else program.replica_manager.partitions.get(topic_partition)

    def leader_of(self, topic_partition: TopicPartition) -> int:
        return self.decided(topic_partition).leader


def listed(brokers: Sequence[int]) -> str:
    """Return broker ids as a script writes them."""
    return ",".join(str(broker) for broker in sorted(brokers)) or "none"


def error_name(error: BaseException) -> str:
    """Return an error as a script prints it: the class only, because messages may change."""
    return type(error).__name__


def refused(error: KreplicaError) -> str:
    """Return what a command prints if its action was refused."""
    return f"refused: {error_name(error)}"
