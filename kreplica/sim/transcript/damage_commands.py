"""Commands about rotting bytes on a disk, and about the damage that brokers know of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from kreplica.log.scrubber import Scrubber
from kreplica.sim.rot import flip_a_bit
from kreplica.sim.transcript.client_commands import log_of
from kreplica.sim.transcript.runner import Arguments, Transcript, brokers_of, command, listed
from kreplica.sim.transcript.script import ScriptError


@command("rot [PARTITION] BROKER OFFSET")
def rot(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Flip a bit of the batch with that offset in a broker's file. The broker may be down."""
    topic_partition = script.the_partition(arguments)
    broker_id = script.broker(arguments.word("a broker"))
    offset = arguments.number("an offset")
    arguments.end()
    storage, root = script.cluster.disk(broker_id)
    if not script.cluster.do(partial(flip_a_bit, storage, root, topic_partition, offset)):
        raise ScriptError(f"offset {offset} is in no file of {topic_partition}")
    yield from ()


@command("scrub BROKER...")
def scrub(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Make the brokers' scrubbers read all closed segments now."""
    for word in arguments.words:
        program = script.cluster.program(script.broker(word, runs=True))
        script.cluster.do(partial(_scrub, program.log_manager))
    yield from ()


def _scrub(manager: Any) -> None:
    # A new scrubber: the broker's own is in the middle of a round, which takes a week.
    own = manager.scrubber
    scrubber = Scrubber(manager.logs, own.clock, own.on_error, manager.settings)
    while scrubber.status.rounds == 0:
        scrubber.do_work()


@command("damage [PARTITION] [BROKER...]")
def damage(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the damaged ranges that brokers know of."""
    topic_partition = script.the_partition(arguments)
    asked = [script.broker(word) for word in arguments.words]
    for broker_id in asked or brokers_of(listed(script.decided(topic_partition).replicas)):
        yield f"{broker_id}  {_damages(log_of(script, broker_id, topic_partition))}"


def _damages(log: Any) -> str:
    if log is None:
        return "down"
    ranges = [_range(each) for each in log.damages]
    if log.stopped_at is not None:
        return f"offsets {', '.join(ranges)}: recovery stopped there"
    return f"offsets {', '.join(ranges)}" if ranges else "none"


def _range(known: Any) -> str:
    return f"{known.first_offset}-" + ("" if known.next_offset is None else f"{known.next_offset - 1}")
