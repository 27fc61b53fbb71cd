"""SimNetwork: the Transport port between simulated nodes, with everything that a network may do to a message.

A node joins with each of its lives and gets an endpoint, which is its Transport; it registers the function
that answers requests. Each pair (sender, receiver) has a link with its own conditions: the latency of
messages, the chances of loss and duplication, whether the link is cut. Requests of a link arrive in order
unless its conditions say otherwise; responses arrive when they are ready.

A lost message costs the sender its timeout. A message to a process that does not run is refused, and a
`disconnect` ends what is in flight; senders are notified of both soon. Messages to or from a dead incarnation
vanish. A `hold` keeps matching messages until they are released one by one, so that a script can choose the
interleaving. All randomness comes from the given Random. Thread rule: one thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kreplica.common.dataclass import dataclass, replace
from kreplica.common.encoded_request import SIZE_BYTES, EncodedRequest, as_answered, message_in
from kreplica.common.errors import NetworkException
from kreplica.common.future import Future
from kreplica.common.message import RESPONSES, at
from kreplica.common.message_reader import read_response
from kreplica.common.ports import NANOSECONDS_PER_MS, Random
from kreplica.sim.scheduler import Incarnation, SimEvent, SimScheduler

Handler = Callable[[Any], Future[Any]]
# Answers a request's frame with the response's, both without their size.
FrameHandler = Callable[[memoryview], Future[memoryview | None]]
CLIENT = b"simulated"


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """The conditions of one direction between two nodes.

    `delay_us`: the minimum and maximum latency in microseconds. `loss`, `duplication`, `straggling`: the
    chances that a message is lost, that a request arrives twice, and that a message takes as long as
    `straggler_us` says, while later ones overtake it. `is_cut`: nothing arrives.
    """

    delay_us: tuple[int, int] = (0, 0)
    loss: float = 0.0
    duplication: float = 0.0
    straggling: float = 0.0
    straggler_us: tuple[int, int] = (20_000, 140_000)
    in_order: bool = True
    is_cut: bool = False


class Message:
    """A request or response in flight.

    `name`: its type without "Request" or "Response" ("Fetch"). `target`: the life of the receiver that it
    was sent to. `encoded`: the EncodedRequest that this message is or answers; it travels as `frame`, the
    bytes without their size.
    """

    __slots__ = (
        *("_body", "encoded", "frame", "is_request", "name", "number", "receiver"),
        *("sender", "target"),
    )

    def __init__(
        self,
        number: int,
        sender: Incarnation,
        receiver: int,
        body: Any,
        name: str,
        *,
        is_request: bool,
        encoded: EncodedRequest | None = None,
        frame: memoryview | None = None,
    ) -> None:
        self.number = number
        self.sender = sender
        self.receiver = receiver
        self._body = body
        self.name = name
        self.is_request = is_request
        self.encoded = encoded
        self.frame = frame
        self.target: Incarnation | None = None

    @property
    def body(self) -> Any:
        """The message; that of a frame is read when it is asked for."""
        if self._body is None and self.frame is not None and self.encoded is not None:
            kind = self.encoded.kind
            if self.is_request:
                self._body = message_in(kind, self.frame)
            else:
                answer = at(RESPONSES[kind.__api_key__], kind.__version__)
                self._body = read_response(answer, self.frame)
        return self._body

    @property
    def sender_id(self) -> int:
        return self.sender.node_id

    @property
    def is_alive(self) -> bool:
        """Whether both its sender and the life it was sent to still exist."""
        return self.sender.is_alive and (self.target is None or self.target.is_alive)

    def __str__(self) -> str:
        kind = "request" if self.is_request else "response"
        return f"{self.sender.node_id}->{self.receiver} {self.name} {kind}"


class Call:
    """A request whose sender waits for the response."""

    __slots__ = ("future", "receiver", "sender", "timeout")

    def __init__(self, sender: Incarnation, receiver: int) -> None:
        self.sender = sender
        self.receiver = receiver
        self.future: Future[Any] = Future()
        self.timeout: SimEvent | None = None


class SimEndpoint:
    """Implements `kreplica.common.ports.Transport` for one life of a node."""

    def __init__(self, network: SimNetwork, incarnation: Incarnation) -> None:
        self._network = network
        self.incarnation = incarnation

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request` to the node; see the port."""
        return self._network._send(self.incarnation, node_id, request, timeout_ms)

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when a connection from or to that node closes; see the port."""
        self._network._watch(self.incarnation, listener)


class SimNetwork:
    """The network of one simulation."""

    def __init__(
        self, scheduler: SimScheduler, random: Random, conditions: LinkConditions | None = None
    ) -> None:
        # How much longer each message takes than the conditions of its link say.
        self.added_us = 0
        self.counts: Counter[str] = Counter()  # sent, lost, duplicated, refused, cut, timed out
        self.held: list[Message] = []
        # Called with ("sent", message), and with ("taken", message) when the receiver handles it.
        self.tap: Callable[[str, Message], object] | None = None
        # Converts the body of a message in flight, e.g. to bytes and back; None keeps the object.
        self.carry: Callable[[Any], Any] | None = None
        self._scheduler = scheduler
        self._random = random
        self._conditions = conditions or LinkConditions()
        self._links: dict[tuple[int, int], LinkConditions] = {}
        # Requests in flight that must arrive in order; the event that fires first takes the oldest.
        self._ordered: dict[tuple[Incarnation, int], deque[Message]] = {}
        self._lives: dict[int, Incarnation] = {}
        # Messages that have arrived and were not taken yet, by sender and receiver.
        self._inboxes: dict[tuple[Incarnation, Incarnation], deque[Message]] = {}
        self._handlers: dict[int, tuple[Incarnation, Handler, FrameHandler | None]] = {}
        self._silent: set[int] = set()
        self._calls: dict[int, Call] = {}
        self._holds: list[Callable[[Message], bool]] = []
        self._watchers: dict[Incarnation, list[Callable[[int], object]]] = {}
        self._numbers = 0

    # ---- nodes --------------------------------------------------------------------------------------------

    def join(self, incarnation: Incarnation) -> SimEndpoint:
        """Return the Transport of one life of a node; messages to the node go to it from now on."""
        self._lives[incarnation.node_id] = incarnation
        self._silent.discard(incarnation.node_id)
        return SimEndpoint(self, incarnation)

    def register(
        self, incarnation: Incarnation, handle: Handler, handle_frame: FrameHandler | None = None
    ) -> None:
        """Let `handle` answer the requests that reach the incarnation's node, while it lives.

        `handle_frame`: answers those that came as frames.
        """
        self._handlers[incarnation.node_id] = incarnation, handle, handle_frame

    def leave(self, incarnation: Incarnation, *, silently: bool = False) -> None:
        """Remove an incarnation, which is dead.

        Its callers are notified that the connection broke, and later requests are refused. With `silently`,
        as after a power cut, there are no notifications.
        """
        if silently:
            self._silent.add(incarnation.node_id)
        else:
            self.disconnect(incarnation.node_id)

    def disconnect(self, node_id: int) -> None:
        """End every call from and to the node, as broken connections do; new calls may follow."""
        for number, call in list(self._calls.items()):
            if node_id in (call.sender.node_id, call.receiver):
                self._fail(number, f"the connection to node {call.receiver} broke")
        for life, listeners in self._watchers.items():
            if life.is_alive and life.node_id != node_id and not self._is_cut(life.node_id, node_id):
                for listener in listeners:
                    notify = partial(listener, node_id)
                    self._scheduler.add("connection", f"of node {node_id} closes", notify, incarnation=life)

    # ---- links --------------------------------------------------------------------------------------------

    def conditions(self, sender: int, receiver: int) -> LinkConditions:
        """Return the current conditions of the direction from `sender` to `receiver`."""
        return self._links.get((sender, receiver), self._conditions)

    def set_conditions(self, conditions: LinkConditions) -> None:
        """Set the conditions of every link, and forget those of single links."""
        self._conditions = conditions
        self._links.clear()

    def change_link(self, sender: int, receiver: int, **changes: Any) -> None:
        """Change fields of the conditions of one direction."""
        self._links[sender, receiver] = replace(self.conditions(sender, receiver), **changes)

    def cut(self, sender: int, receiver: int, *, both_ways: bool = True) -> None:
        """Cut the link, also for messages in flight."""
        self.change_link(sender, receiver, is_cut=True)
        if both_ways:
            self.change_link(receiver, sender, is_cut=True)

    def heal(self, sender: int, receiver: int, *, both_ways: bool = True) -> None:
        """Restore a cut link, and with `both_ways` also that back."""
        self.change_link(sender, receiver, is_cut=False)
        if both_ways:
            self.change_link(receiver, sender, is_cut=False)

    def heal_all(self) -> None:
        for sender, receiver in list(self._links):
            self.change_link(sender, receiver, is_cut=False)

    # ---- holding messages ---------------------------------------------------------------------------------

    def hold(self, which: Callable[[Message], bool]) -> Callable[[], None]:
        """Put each message for which `which` is true into `held`; returns a function that ends this."""
        self._holds.append(which)
        return partial(self._holds.remove, which)

    def release(self, message: Message) -> None:
        """Deliver a held message now."""
        self.held.remove(message)
        self._travel(message, 0, in_order=False)

    def drop(self, message: Message) -> None:
        """Drop a held message."""
        self.held.remove(message)
        self.counts["lost"] += 1

    # ---- the path of a message ----------------------------------------------------------------------------

    def _watch(self, incarnation: Incarnation, listener: Callable[[int], object]) -> None:
        self._watchers = {life: found for life, found in self._watchers.items() if life.is_alive}
        self._watchers.setdefault(incarnation, []).append(listener)

    def _is_cut(self, one: int, other: int) -> bool:
        return self.conditions(one, other).is_cut or self.conditions(other, one).is_cut

    def _send(self, sender: Incarnation, receiver: int, request: Any, timeout_ms: int) -> Future[Any]:
        call = Call(sender, receiver)
        if not sender.is_alive:
            return call.future
        self._numbers += 1
        number, message = self._numbers, self._request(sender, receiver, request)
        name = message.name
        self._calls[number] = call
        call.timeout = self._scheduler.add(
            "timer",
            f"timeout of {name}",
            partial(self._time_out, number, timeout_ms),
            delay_ns=timeout_ms * NANOSECONDS_PER_MS,
            incarnation=sender,
        )
        self._dispatch(message)
        duplication = self.conditions(sender.node_id, receiver).duplication
        if duplication and self._random.random() < duplication:
            self.counts["duplicated"] += 1
            self._dispatch(message)
        return call.future

    def _request(self, sender: Incarnation, receiver: int, request: Any) -> Message:
        if isinstance(request, EncodedRequest):
            frame = memoryview(request.frame(0, CLIENT))[SIZE_BYTES:]
            name = _name_of(request.kind)
            return Message(
                *(self._numbers, sender, receiver, None, name), is_request=True, encoded=request, frame=frame
            )
        body = request if self.carry is None else self.carry(request)
        return Message(self._numbers, sender, receiver, body, _name_of(type(request)), is_request=True)

    def _dispatch(self, message: Message) -> None:
        self.counts["sent"] += 1
        if self.tap is not None:
            self.tap("sent", message)
        message.target = self._life_of(message.receiver)
        if self._holds and any(holds(message) for holds in self._holds):
            self.held.append(message)
            return
        conditions = self._links.get((message.sender.node_id, message.receiver), self._conditions)
        if conditions.loss and self._random.random() < conditions.loss:
            self.counts["lost"] += 1
            return
        straggles = bool(conditions.straggling) and self._random.random() < conditions.straggling
        least, most = conditions.straggler_us if straggles else conditions.delay_us
        delay_us = least if least == most else least + self._random.randrange(most - least + 1)
        in_order = message.is_request and conditions.in_order and not straggles
        self._travel(message, (delay_us + self.added_us) * 1000, in_order=in_order)

    def _travel(self, message: Message, delay_ns: int, *, in_order: bool) -> None:
        if in_order:
            link = message.sender, message.receiver
            self._ordered.setdefault(link, deque()).append(message)
            arrive = partial(self._arrive_next, link)
        else:
            arrive = partial(self._arrive, message)
        # It leaves once the sender's disk allows it.
        delay_ns += max(message.sender.busy_until_ns - self._scheduler.time.now_ns, 0)
        self._scheduler.add("message", str(message), arrive, delay_ns=delay_ns, node_id=message.receiver)

    def _arrive_next(self, link: tuple[Incarnation, int]) -> None:
        self._arrive(self._ordered[link].popleft())

    def _arrive(self, message: Message) -> None:
        if self.conditions(message.sender.node_id, message.receiver).is_cut:
            self.counts["cut"] += 1
            return
        target = message.target
        if not message.sender.is_alive or (target is not None and not target.is_alive):
            return
        target = target or self._life_of(message.receiver)
        if target is None:
            self._refuse(message)
            return
        inbox = self._inboxes.setdefault((message.sender, target), deque())
        inbox.append(message)
        is_stalled = target.is_paused or target.busy_until_ns > self._scheduler.time.now_ns
        if is_stalled or len(inbox) > 1:
            # It queues until the node takes it, after the messages that already wait.
            self._scheduler.add("message", str(message), partial(self._take, inbox), incarnation=target)
        else:
            self._take(inbox)

    def _refuse(self, message: Message) -> None:
        if message.is_request and message.receiver not in self._silent:
            self.counts["refused"] += 1
            self._fail(message.number, f"node {message.receiver} is not there")

    def _take(self, inbox: deque[Message]) -> None:
        message = inbox.popleft()
        if self.tap is not None:
            self.tap("taken", message)
        if not message.is_request:
            call = self._end(message.number)
            if call is not None:
                call.future.set_result(_as_answered(message))
            return
        target, handle, handle_frame = self._handlers.get(message.receiver, (None, None, None))
        if handle is None or target is None or not target.is_alive:
            self._refuse(message)
            return
        if message.frame is None or handle_frame is None:
            answer = handle(message.body)
        else:
            answer = handle_frame(message.frame)
        answer.add_done_callback(partial(self._answer, message, target))

    def _answer(self, request: Message, target: Incarnation, answer: Future[Any]) -> None:
        if not target.is_alive or request.number not in self._calls:
            return
        if answer.cancelled() or answer.exception() is not None:
            # A failing handler closes the connection, because it has no response to send.
            self._fail(request.number, f"node {request.receiver} failed: {answer!r}")
            return
        body = answer.result()
        frame = body if isinstance(body, memoryview) else None
        if frame is None and self.carry is not None:
            body = self.carry(body)
        back = Message(
            *(request.number, target, request.sender.node_id, None if frame else body, request.name),
            is_request=False,
            encoded=request.encoded,
            frame=frame,
        )
        self._dispatch(back)

    # ---- calls --------------------------------------------------------------------------------------------

    def _time_out(self, number: int, timeout_ms: int) -> None:
        self.counts["timed out"] += 1
        call = self._calls[number]
        self._fail(number, f"no answer from node {call.receiver} within {timeout_ms} ms")

    def _fail(self, number: int, why: str) -> None:
        call = self._end(number)
        if call is not None and call.sender.is_alive:
            call.future.set_exception(NetworkException(why))

    def _end(self, number: int) -> Call | None:
        call = self._calls.pop(number, None)
        if call is not None and call.timeout is not None:
            call.timeout.cancel()
        return call

    def _life_of(self, node_id: int) -> Incarnation | None:
        life = self._lives.get(node_id)
        return life if life is not None and life.is_alive else None


def _as_answered(response: Message) -> Any:
    """Return what the sender of the request makes of the response."""
    encoded = response.encoded
    if encoded is None:
        return response.body
    if response.frame is not None:
        return encoded.read(response.frame)
    return as_answered(encoded, response.body)


def _name_of(kind: type[Any]) -> str:
    return kind.__name__.removesuffix("Request")
