"""Commands about messages, links, time, and the controller's responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from kreplica.common.types import Uuid
from kreplica.sim import client
from kreplica.sim.transcript.backend import HeldMessage
from kreplica.sim.transcript.runner import Arguments, Transcript, command, listed
from kreplica.sim.transcript.script import ScriptError

NODE = r"\d+|controller|client"
ARROW = rf"({NODE})->({NODE})"
ANY = "any"


def pattern_of(script: Transcript, arguments: Arguments) -> tuple[str, Callable[[HeldMessage], bool]]:
    """Return the messages that the words match: `[FROM->TO] [API] [request|response]`.

    A client's messages match only if its arrow is given.
    """
    words = " ".join(arguments.words)
    arrow = arguments.maybe_word(ARROW)
    ends = None if arrow is None else tuple(script.node_of(end) for end in arrow.split("->"))
    kind = None
    if arguments.words and arguments.words[-1] in ("request", "response"):
        kind = arguments.words.pop() == "request"
    api = (arguments.maybe_word(r"[a-z-]+") or ANY).replace("-", "")
    arguments.end()

    def fits(message: HeldMessage) -> bool:
        return (
            _joins(script, message, ends)
            and (kind is None or kind == message.is_request)
            and (api == ANY or message.name.lower() == api)
        )

    return words or ANY, fits


def _joins(script: Transcript, message: HeldMessage, ends: tuple[int, ...] | None) -> bool:
    # Commands about followers' messages do not mean a client that reads in the script.
    if ends is None:
        return script.NAMES["client"] not in (message.sender_id, message.receiver)
    return ends == (message.sender_id, message.receiver)


def first_held(script: Transcript, fits: Callable[[HeldMessage], bool]) -> HeldMessage | None:
    return next((message for message in script.cluster.held() if fits(message)), None)


# ---- held messages ---------------------------------------------------------------------------------------


@command("hold [FROM->TO] [API] [request|response]")
def hold(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Hold such messages from now on, until deliver or release."""
    words, fits = pattern_of(script, arguments)
    if words in script.holds:
        raise ScriptError("they are held already")
    script.holds[words] = script.cluster.hold(fits)
    yield from ()


@command("release [FROM->TO] [API] [request|response]")
def release(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """End the hold with the same words, and deliver its messages."""
    words, fits = pattern_of(script, arguments)
    if words not in script.holds:
        raise ScriptError(f"no such hold; there are: {', '.join(script.holds) or 'none'}")
    script.holds.pop(words)()
    for message in script.cluster.held():
        if fits(message):
            script.cluster.release(message)
    yield from ()


@command("deliver [FROM->TO] [API] [request|response]")
def deliver(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Deliver the first such held message."""
    words, fits = pattern_of(script, arguments)
    message = first_held(script, fits)
    if message is None:
        raise ScriptError(f"no message is held like {words}")
    yield describe(script, message)
    script.cluster.release(message)


@command("drop [FROM->TO] [API] [request|response]")
def drop(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Drop the first such held message."""
    words, fits = pattern_of(script, arguments)
    message = first_held(script, fits)
    if message is None:
        raise ScriptError(f"no message is held like {words}")
    yield f"lost: {describe(script, message)}"
    script.cluster.drop(message)


@command("messages")
def messages(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the held messages."""
    arguments.end()
    yield from sorted(describe(script, message) for message in script.cluster.held())


@command("fetch BROKER...")
def fetch(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Let each follower fetch once while fetches are held: request, answer, append."""
    if not arguments.words:
        raise ScriptError("a broker is missing")
    while arguments.words:
        follower = arguments.number("a broker")
        yield f"{follower}: {_fetch_once(script, follower)}"


def _fetch_once(script: Transcript, follower: int) -> str:
    if not script.holds:
        raise ScriptError("hold fetch first")
    request = first_held(script, lambda m: m.is_request and m.name == "Fetch" and m.sender_id == follower)
    if request is not None:
        script.cluster.release(request)
        script.cluster.settle()
    answer = first_held(script, lambda m: not m.is_request and m.name == "Fetch" and m.receiver == follower)
    if answer is None:
        return "the leader keeps its fetch until there is news"
    text = describe(script, answer).partition(": ")[2]
    script.cluster.release(answer)
    script.cluster.settle()
    return text or "nothing new"


def describe(script: Transcript, message: HeldMessage) -> str:
    """Describe a message in a line: sender and receiver, type, and for fetches what they request or
    return."""
    way = f"{script.name_of(message.sender_id)}->{script.name_of(message.receiver)}"
    api = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", message.name).lower()
    kind = "request" if message.is_request else "response"
    said = "; ".join(_said(script, message))
    return f"{way} {api} {kind}" + (f": {said}" if said else "")


def _said(script: Transcript, message: HeldMessage) -> Iterator[str]:
    body = message.body
    if message.name == "Fetch":
        yield from (_fetch_asks if message.is_request else _fetch_brings)(script, body)
    elif message.name == "AlterPartition" and message.is_request:
        for topic in body.topics:
            for partition in topic.partitions:
                isr = listed([broker.broker_id for broker in partition.new_isr_with_epochs])
                yield f"{_name(script, topic, partition.partition_index)} ISR {isr}"
    elif message.name == "AlterPartition":
        for topic in body.topics:
            for partition in topic.partitions:
                error = partition.error_code.name if partition.error_code else ""
                yield error or f"ISR {listed(partition.isr)}"
    elif message.name == "OffsetForLeaderEpoch":
        for topic in body.topics:
            for partition in topic.partitions:
                epoch = f"epoch {partition.leader_epoch}"
                if message.is_request:
                    yield f"{epoch}, asked in {partition.current_leader_epoch}"
                elif partition.error_code:
                    yield partition.error_code.name
                else:
                    yield f"{epoch} ends at {partition.end_offset}"


def _fetch_asks(script: Transcript, request: Any) -> Iterator[str]:
    for topic in request.topics:
        for asked in topic.partitions:
            name = _name(script, topic, asked.partition)
            yield f"{name} from {asked.fetch_offset}, epoch {asked.current_leader_epoch}"
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            yield f"{_name(script, topic, index)} no more"


def _fetch_brings(script: Transcript, response: Any) -> Iterator[str]:
    if response.error_code:
        yield response.error_code.name
    for topic in response.responses:
        for got in topic.partitions:
            name = _name(script, topic, got.partition_index)
            if got.error_code:
                yield f"{name} {got.error_code.name}"
            elif got.diverging_epoch.epoch >= 0:
                diverging = got.diverging_epoch
                yield f"{name} diverges: epoch {diverging.epoch} ends at {diverging.end_offset}"
            else:
                yield f"{name} {_records(got.records)}, HW {got.high_watermark}"


def _records(data: Any) -> str:
    found, _ = client.records_in(data, 0)
    return " ".join(value_text(value) for _, _, value in found) or "no records"


def value_text(value: bytes | None) -> str:
    """Return a record's value as a script writes it."""
    return "null" if value is None else value.decode("utf-8", "backslashreplace")


def _name(script: Transcript, topic: Any, index: int) -> str:
    return f"{script.topic_name(Uuid(topic.topic_id.bytes))}-{index}"


# ---- links and time --------------------------------------------------------------------------------------


@command("cut A B | cut A->B")
def cut(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Drop all messages between two nodes; with an arrow in that direction only."""
    arrow = arguments.maybe_word(ARROW)
    if arrow is not None:
        sender, receiver = (script.node_of(end) for end in arrow.split("->"))
        script.cluster.cut(sender, receiver, both_ways=False)
    else:
        one, other = (script.node_of(arguments.word("a node")) for _ in range(2))
        script.cluster.cut(one, other)
    arguments.end()
    yield from ()


@command("heal [A B]")
def heal(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Reconnect two nodes, or all."""
    if arguments.words:
        one, other = (script.node_of(arguments.word("a node")) for _ in range(2))
        script.cluster.heal(one, other)
    else:
        script.cluster.heal_all()
    yield from ()


@command("disconnect NODE")
def disconnect(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Break a node's connections; new ones may follow."""
    script.cluster.disconnect(script.node_of(arguments.word("a node")))
    yield from ()


@command("clock +MS")
def clock(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Advance the clock by this number of milliseconds."""
    script.cluster.pass_time(arguments.number("milliseconds"))
    yield from ()


@command("date BROKER +MS|-MS")
def date(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Move a machine's date forward or back, but not its monotonic clock."""
    script.cluster.jump_date(arguments.number("a broker"), arguments.number("milliseconds"))
    yield from ()


@command("isr hold | isr accept | isr reject ERROR")
def isr(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Set how the controller answers AlterPartition: not yet, by its rules, or with an error."""
    controller = script.cluster.controller
    how = arguments.word("hold, accept or reject")
    if how == "hold":
        controller.holds = True
    elif how == "accept":
        controller.holds = False
        script.cluster.do(controller.answer)
    elif how == "reject":
        error = arguments.word("an error").lower()
        if error not in ErrorCode.__members__:
            raise ScriptError(f"there is no error {error!r}")
        if not script.cluster.do(lambda: controller.answer(ErrorCode[error])):
            raise ScriptError("no request waits")
    else:
        raise ScriptError(f"hold, accept or reject, not {how!r}")
    yield from ()


@command("asked")
def asked(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the requests that the controller has not answered."""
    arguments.end()
    for waiting in script.cluster.controller.waiting:
        for topic in waiting.request.topics:
            for partition in topic.partitions:
                name = _name(script, topic, partition.partition_index)
                brokers = listed([broker.broker_id for broker in partition.new_isr_with_epochs])
                epochs = f"epoch {partition.leader_epoch}, partition epoch {partition.partition_epoch}"
                yield f"{waiting.request.broker_id} asks for ISR {brokers} of {name} ({epochs})"
