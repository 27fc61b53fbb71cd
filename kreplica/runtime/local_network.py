"""LocalNetwork: connects the nodes of one process with real threads and time; runs their messages and loops.

A node gets an endpoint for each of its lives, from a start to a kill: its Transport, its Scheduler and the
source of its Loops. Tasks and arriving requests wait in queues, one per loop and one per direction between
two nodes. Any free thread runs them. A caller's own thread does so when it leaves `with network.draining()`,
so that a produce that waits for its followers needs no other thread. The network's thread continues when a
caller has done its share, and runs timers. While callers run tasks it leaves the rest to them: two threads
that take turns pass the GIL to and fro, which costs more than the tasks. A caller that finds nothing to run
waits for the end of that thread's turn, and takes what it leaves. `post` and `send` never run anything
themselves, so they may be called under locks. A `draining` block must be left without holding locks, and must
not wait for a future.

An EncodedRequest travels as the frame that a socket would carry, and takes the native lanes of the node that
gets it. Its answer's buffers are read without joining them. Other requests are objects.

A task that is about to wait for the disk announces it, and helper threads run other queues meanwhile. So the
voters of a process flush the same batch at the same time instead of one after the other. Tasks that take long
without waiting (checking the batches of foreign producers) have separate loops and a dedicated thread.

Ownership: the network owns its threads, from `start` to `shutdown`. Thread rule: any thread may call
anything. `_lock` guards queues, timers, lives and calls; nothing is called under it. A queue is run by one
thread at a time, different queues by several.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from kreplica._core.held_exceptions import HeldExceptions
from kreplica._core.timing_wheel import TimingWheel
from kreplica.common.encoded_request import SIZE_BYTES, EncodedRequest, message_of
from kreplica.common.errors import KreplicaError, NetworkException, NodeUnreachable
from kreplica.common.future import Future, failed
from kreplica.common.locks import Condition, RLock
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.interrupts import HeldSignals
from kreplica.runtime.scheduler import LONGEST_WAIT_MS, OnError, log_error

if TYPE_CHECKING:
    from kreplica.broker.request_channel import Answered

Task = Callable[[], object]
Handler = Callable[[Any], Future[Any]]
# Answers a frame: serve_frame(frame, client_host, answered, connection), as RequestChannel.serve.
ServeFrame = Callable[[memoryview, str, "Answered", object], object]
# Intercepts messages before they travel: gate(sender, receiver, body, is_request=..., deliver=...) returns
# True to keep one, and may call `deliver` later.
Gate = Callable[..., bool]


# In the timing wheel, the timer for all calls.
CALLS_TICKET = 0
NEVER_MS = 1 << 62
NO_CLIENT = b""
# Turns that a caller's thread runs before the network's own thread takes over.
TURNS_OF_A_CALLER = 256
# Tasks of one queue to run before the next queue gets its turn.
TASKS_OF_A_TURN = 16
# How long the network's thread leaves queued tasks to callers before it checks that they get on.
LEFT_TO_CALLERS_MS = 20
# How long a caller that finds nothing to run waits for the end of the turn of the network's thread.
WAIT_FOR_TURN_SECONDS = 0.001
# With the thread that waits for the disk, enough for the three nodes of a usual quorum to wait at once.
HELPERS = 2


class LocalLoop:
    """Implements `kreplica.common.ports.Loop`: a queue of tasks, run in order by one thread at a time.

    `is_apart`: its tasks may take long, and run in a dedicated thread.
    """

    __slots__ = ("_network", "endpoint", "is_apart", "is_queued", "name", "tasks")

    def __init__(
        self, network: LocalNetwork, endpoint: LocalEndpoint, name: str, *, is_apart: bool = False
    ) -> None:
        self._network = network
        self.is_apart = is_apart
        self.endpoint = endpoint
        self.name = name
        # Guarded by the network's _lock; the thread that runs the queue takes from it.
        self.tasks: deque[Task] = deque()
        self.is_queued = False  # waits for a thread, or is being run by one

    def post(self, task: Task) -> None:
        """Run `task` soon."""
        self._network.post(self, task)

    def post_later(self, task: Task, delay_ms: int) -> LocalTimer:
        """Run `task` in this loop after `delay_ms`."""
        return self._network.arm(LocalTimer(self._network, self, task, None), delay_ms)

    def about_to_wait(self) -> None:
        """Let the helper threads run other loops that have tasks."""
        self._network.call_helpers()


class LocalTimer:
    """A task that runs at its time; `cancel` prevents further runs."""

    __slots__ = ("deadline_ms", "handle", "is_cancelled", "loop", "network", "period_ms", "task", "ticket")

    def __init__(self, network: LocalNetwork, loop: LocalLoop, task: Task, period_ms: int | None) -> None:
        self.network = network
        self.loop = loop
        self.task = task
        self.period_ms = period_ms
        # Guarded by the network's _lock. A ticket of 0 means that it is not waiting.
        self.is_cancelled = False
        self.deadline_ms = self.ticket = self.handle = 0

    def cancel(self) -> None:
        """Prevent further runs; a current run continues."""
        self.network.cancel(self)

    def run(self) -> None:
        """Run the task; its loop calls this at the timer's time."""
        if self.is_cancelled:
            return
        try:
            self.task()
        finally:
            if self.period_ms is not None:
                self.network.arm(self, self.period_ms)


class LocalEndpoint:
    """One life of a node: implements the Transport and Scheduler ports, and creates the node's Loops.

    Its state belongs to the network, which reads and changes it under its lock; calls are passed on to the
    network.
    """

    def __init__(self, network: LocalNetwork, node_id: int) -> None:
        self._network = network
        self.node_id = node_id
        # Guarded by the network's _lock:
        self.is_alive = True
        self.is_paused = False
        self.stalled: list[LocalLoop] = []  # loops with tasks, while the node is paused
        self.listeners: list[Callable[[int], object]] = []
        self.handle: Handler | None = None
        self.serve_frame: ServeFrame | None = None
        self.timeouts = LocalLoop(network, self, "timeout")
        self.links: dict[int, LocalLoop] = {}  # incoming requests, by sender
        self.runners: list[int] = []  # the threads that are running its queues

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request` to the node; see the port."""
        return self._network.send(self, node_id, request, timeout_ms)

    def watch_connections(self, listener: Callable[[int], object]) -> None:
        """Call `listener(node_id)` when a connection from or to that node closes; see the port."""
        self.listeners.append(listener)

    def loop(self, name: str) -> LocalLoop:
        """Return a Loop for an object of this life of the node."""
        return LocalLoop(self._network, self, name)

    def loop_apart(self, name: str) -> LocalLoop:
        """Return a Loop for tasks that take long; no other loop waits for its thread."""
        return LocalLoop(self._network, self, name, is_apart=True)

    def schedule(self, name: str, task: Task, delay_ms: int, period_ms: int | None = None) -> LocalTimer:
        """Run `task` after `delay_ms`, then, if given, every `period_ms` counted from the end of a run."""
        return self._network.arm(LocalTimer(self._network, self.loop(name), task, period_ms), delay_ms)


class _Call:
    """A pending request and its future.

    An EncodedRequest goes as a frame to a receiver that takes frames, unless a gate wants to see messages.
    """

    __slots__ = ("deadline_ms", "future", "network", "number", "receiver", "request", "sender", "timeout_ms")

    deadline_ms: int
    number: int

    def __init__(
        self,
        network: LocalNetwork,
        sender: LocalEndpoint,
        receiver: LocalEndpoint,
        request: Any,
        timeout_ms: int,
    ) -> None:
        self.network = network
        self.sender = sender
        self.receiver = receiver
        self.request = request
        self.timeout_ms = timeout_ms
        self.future: Future[Any] = Future()

    def take(self) -> None:
        """Have the request handled; the receiver's loop calls this."""
        receiver, request = self.receiver, self.request
        if isinstance(request, EncodedRequest):
            if receiver.serve_frame is not None and self.network.gate is None:
                frame = memoryview(request.frame(0, NO_CLIENT))[SIZE_BYTES:]
                receiver.serve_frame(frame, "", self.answered, self.sender)
                return
            request = request.message()
        assert receiver.handle is not None
        try:
            answer = receiver.handle(request)
        except Exception:
            self.fail(f"node {receiver.node_id} failed")
            raise
        answer.add_done_callback(self._answered_by_message)

    def answered(self, buffers: list[Any] | None, error: BaseException | None) -> None:
        """Take the buffers of the answer's frame, or the error that makes an answer impossible."""
        if not self.receiver.is_alive:
            return
        if error is not None:
            self.network.report(self, error)
            self._fail_to_answer(error)
        elif buffers is None:
            self.deliver(None)
        else:
            self.deliver(self.request.read_buffers(buffers))

    def _answered_by_message(self, answer: Future[Any]) -> None:
        if not self.receiver.is_alive:
            return
        if answer.cancelled() or answer.exception() is not None:
            self._fail_to_answer(answer)
            return
        body, gate = answer.result(), self.network.gate
        sender, receiver = self.receiver.node_id, self.sender.node_id
        deliver = partial(self.deliver, body)
        if gate is None or not gate(sender, receiver, body, is_request=False, deliver=deliver):
            deliver()

    def _fail_to_answer(self, why: object) -> None:
        # A failing handler closes the connection, because it has no response.
        self.fail(f"node {self.receiver.node_id} failed: {why!r}")

    def deliver(self, body: Any) -> None:
        """Resolve the future with the answer, unless the way back is cut."""
        if self.network.ends(self, is_answered=True):
            self.future.set_result(body)

    def fail(self, why: str) -> None:
        """Fail the future with NetworkException."""
        if self.network.ends(self):
            self.future.set_exception(NetworkException(why))

    def time_out(self) -> None:
        """Fail the call, because no response arrived in time; the sender's loop calls this."""
        self.fail(f"no answer from node {self.receiver.node_id} within {self.timeout_ms} ms")


class _Draining:
    """The context of LocalNetwork.draining. Stateless: the nesting depth belongs to the thread."""

    __slots__ = ("_network",)

    def __init__(self, network: LocalNetwork) -> None:
        self._network = network

    def __enter__(self) -> None:
        local = self._network._thread_local
        try:
            if local.depth == 0:
                local.exceptions.hold()
                local.signals.hold()
                self._network._begin_share()
            local.depth += 1
        except BaseException:
            # The exception came before both were held.
            local.signals.release()
            local.exceptions.release()
            raise

    def __exit__(self, *_: object) -> None:
        local = self._network._thread_local
        try:
            if local.depth == 1:
                self._network._drain(TURNS_OF_A_CALLER, ends_share=True)
        finally:
            local.depth -= 1
            if local.depth == 0:
                try:
                    local.signals.release()
                finally:
                    local.exceptions.release()


class _ThreadLocal(threading.local):
    def __init__(self) -> None:
        self.depth = 0  # number of `draining` blocks that the thread is in
        self.signals = HeldSignals()
        self.exceptions = HeldExceptions()


class LocalNetwork:
    """The network, loops and timers of the nodes of this process.

    A task's error is reported to `on_error` (loop name, error), by default to the log. Signal handlers, and
    exceptions that other threads raise in a caller's thread, wait until that thread has done its share.
    `gate`, if set, may intercept each message; only tests set it.
    """

    def __init__(self, clock: Clock | None = None, on_error: OnError = log_error) -> None:
        self.gate: Gate | None = None
        self._clock = clock or SystemClock()
        self._on_error = on_error
        self._draining = _Draining(self)
        self._thread_local = _ThreadLocal()
        self._lock = RLock()  # a thread that was interrupted in a wait knows whether it holds it
        # Separate conditions, so that no waiter takes a wake-up meant for another kind of thread.
        self._work = Condition(self._lock)
        self._changed = Condition(self._lock)
        self._help = Condition(self._lock)
        self._turn_ended = Condition(self._lock)
        self._work_apart = Condition(self._lock)
        # Guarded by _lock:
        self._ready: deque[LocalLoop] = deque()
        self._ready_apart: deque[LocalLoop] = deque()
        self._lives: dict[int, LocalEndpoint] = {}
        self._cut: set[tuple[int, int]] = set()  # (sender, receiver) pairs whose messages are dropped
        self._calls: dict[int, _Call] = {}
        self._calls_end_ms = NEVER_MS  # no call ends before this; the time of the timer for them all
        self._calls_timer = 0
        self._numbers = 0
        self._wheel = TimingWheel(start_ms=monotonic_ms(self._clock))
        self._timers: dict[int, LocalTimer] = {}  # waiting timers, by ticket
        self._tickets = 0
        self._wakes_at_ms = 0  # when the network's thread next checks for due timers
        self._running = 0  # threads that are running a queue
        self._callers = 0  # callers' threads that post tasks and run their share
        self._is_in_turn = False  # the network's thread runs tasks
        self._turns = 0  # turns begun so far
        self._calls_for_help = 0  # helpers asked to run a ready queue
        self._idlers = 0  # threads in `wait_until_idle`
        self._is_stopping = False
        self._threads: list[threading.Thread] = []

    # ---- nodes --------------------------------------------------------------------------------------------

    def join(self, node_id: int) -> LocalEndpoint:
        """Start a new life of the node; requests to it go to this endpoint from now on."""
        with self._lock:
            assert node_id not in self._lives, f"node {node_id} lives already"
            endpoint = self._lives[node_id] = LocalEndpoint(self, node_id)
            return endpoint

    def register(
        self, endpoint: LocalEndpoint, handle: Handler, serve_frame: ServeFrame | None = None
    ) -> None:
        """Let `handle` answer the endpoint's requests, while it lives; `serve_frame` those that are bytes."""
        with self._lock:
            endpoint.handle, endpoint.serve_frame = handle, serve_frame

    def leave(self, endpoint: LocalEndpoint) -> None:
        """End the endpoint's life: once this returns, none of its tasks runs, except the caller's.

        Pending calls to it fail with NetworkException.
        """
        own = threading.get_ident()
        with self._lock:
            endpoint.is_alive = False
            if self._lives.get(endpoint.node_id) is endpoint:
                del self._lives[endpoint.node_id]
            broken = [call for call in self._calls.values() if call.receiver is endpoint]
            for call in [call for call in self._calls.values() if call.sender is endpoint]:
                del self._calls[call.number]
            # Waiting timers would keep all of the life's objects alive, some for days.
            for timer in [timer for timer in self._timers.values() if timer.loop.endpoint is endpoint]:
                self._drop_timer(timer)
            self._changed.wait_for(lambda: all(thread == own for thread in endpoint.runners))
        for call in broken:
            call.fail(f"the connection to node {endpoint.node_id} broke")
        self._notify_of_closed(endpoint.node_id)

    def silence(self, endpoint: LocalEndpoint) -> None:
        """Start no more tasks of the endpoint, and report no more errors of its running ones.

        Such errors are only due to the node's end. `leave` follows.
        """
        with self._lock:
            endpoint.is_alive = False

    def disconnect(self, node_id: int) -> None:
        """Fail every call from and to the node with NetworkException; new calls may follow."""
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            if node_id in (call.sender.node_id, call.receiver.node_id):
                call.fail(f"the connection to node {call.receiver.node_id} broke")
        self._notify_of_closed(node_id)

    def _notify_of_closed(self, node_id: int) -> None:
        with self._lock:
            for endpoint in self._lives.values():
                if endpoint.node_id != node_id and not self._is_cut(endpoint.node_id, node_id):
                    for listener in endpoint.listeners:
                        self._queue(endpoint.timeouts, partial(listener, node_id))

    def pause(self, endpoint: LocalEndpoint) -> None:
        """Stall the endpoint: once this returns, none of its tasks runs, except the caller's.

        Everything that arrives waits for `resume`.
        """
        own = threading.get_ident()
        with self._lock:
            endpoint.is_paused = True
            self._changed.wait_for(lambda: all(thread == own for thread in endpoint.runners))

    def resume(self, endpoint: LocalEndpoint) -> None:
        """Resume a paused endpoint."""
        with self._lock:
            endpoint.is_paused = False
            stalled, endpoint.stalled = endpoint.stalled, []
            for loop in stalled:
                self._make_ready(loop)
            self._work.notify()

    def cut(self, one: int, other: int, *, both_ways: bool = True) -> None:
        """Drop messages from `one` to `other`, and with `both_ways` also back; neither node is notified."""
        with self._lock:
            self._cut |= {(one, other), (other, one)} if both_ways else {(one, other)}

    def heal(self, one: int, other: int) -> None:
        """Reconnect two nodes in both directions."""
        with self._lock:
            self._cut -= {(one, other), (other, one)}

    def heal_all(self) -> None:
        with self._lock:
            self._cut.clear()

    def _is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self._cut or (other, one) in self._cut

    # ---- threads ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the network's thread, its dedicated thread for long tasks, and its helpers."""
        assert not self._threads, "started already"
        self._threads = [threading.Thread(target=self._run, name="kreplica-network", daemon=True)]
        self._threads.append(
            threading.Thread(target=self._run_apart, name="kreplica-network-apart", daemon=True)
        )
        for number in range(HELPERS):
            name = f"kreplica-network-helper-{number}"
            self._threads.append(threading.Thread(target=self._run_helper, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def shutdown(self) -> None:
        """Stop the threads after their current tasks; queued tasks are dropped."""
        with self._lock:
            self._is_stopping = True
            self._work.notify()
            self._help.notify_all()
            self._work_apart.notify()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def draining(self) -> _Draining:
        """Return a context in which this thread may post and send; on exit it runs queued tasks.

        It runs a limited share, so that a caller is not delayed by other callers' work. In nested contexts
        the outermost one runs the tasks.
        """
        return self._draining

    def run_due(self) -> None:
        """Run queued tasks in this thread, as at the end of `draining`."""
        with self._draining:
            pass

    def wait_until_idle(self, timeout: float) -> bool:
        """Return True when no task is left or running, and no timer is due; False after `timeout` seconds."""
        with self._lock:
            self._idlers += 1
            try:
                return self._changed.wait_for(self._is_idle, timeout)
            finally:
                self._idlers -= 1

    def clock_moved(self) -> None:
        """Check for due timers, because the clock was set forward."""
        with self._lock:
            self._work.notify()

    def _is_idle(self) -> bool:
        following = self._wheel.next_deadline()
        is_ready = bool(self._ready or self._ready_apart)
        return not (is_ready or self._running) and (
            following is None or following > monotonic_ms(self._clock)
        )

    def _run(self) -> None:
        """Run due timers and queues until `shutdown`; the network's own thread."""
        self._thread_local.depth = 1
        while True:
            with self._lock:
                due = self._take_due()
                is_held_up = False  # callers run their share, but have begun no turn for a while
                while not (due or (self._ready and not self._callers) or is_held_up or self._is_stopping):
                    turns, is_left = self._turns, bool(self._ready)
                    following = self._wheel.next_deadline()
                    now_ms = monotonic_ms(self._clock)
                    self._wakes_at_ms = now_ms + (LEFT_TO_CALLERS_MS if is_left else LONGEST_WAIT_MS)
                    if following is not None:
                        self._wakes_at_ms = min(self._wakes_at_ms, following)
                    if self._idlers:
                        # The due timers may have belonged to ended lives, and have left nothing to run.
                        self._changed.notify_all()
                    self._work.wait(max(self._wakes_at_ms - now_ms, 0) / 1000)
                    due = self._take_due()
                    is_held_up = is_left and self._turns == turns
                # While it is working, it need not be woken.
                self._wakes_at_ms = 0
                if self._is_stopping:
                    return
                for timer in due:
                    self._queue(timer.loop, timer.run)
                self._is_in_turn = True
            try:
                self._drain(TASKS_OF_A_TURN if is_held_up else TURNS_OF_A_CALLER, gives_way=not is_held_up)
            finally:
                with self._lock:
                    self._is_in_turn = False
                    self._turn_ended.notify_all()

    def _run_helper(self) -> None:
        """Run ready queues whenever a task is about to wait for the disk; a helper thread."""
        self._thread_local.depth = 1
        while True:
            with self._lock:
                while not (self._calls_for_help and self._ready) and not self._is_stopping:
                    self._calls_for_help = 0
                    self._help.wait()
                if self._is_stopping:
                    return
                self._calls_for_help -= 1
            self._drain(TURNS_OF_A_CALLER)

    def _run_apart(self) -> None:
        """Run the queues of long tasks; the dedicated thread."""
        self._thread_local.depth = 1
        own = threading.get_ident()
        while True:
            with self._lock:
                while not self._ready_apart and not self._is_stopping:
                    self._work_apart.wait()
                if self._is_stopping:
                    return
                loop = self._begin_turn(own, self._ready_apart)
            if loop is None:
                continue
            try:
                self._run_turn(loop)
            finally:
                with self._lock:
                    self._end_turn(loop, own)
            # Like a caller's thread, it runs a share of the tasks that its task has posted.
            self._drain(TURNS_OF_A_CALLER)

    def call_helpers(self) -> None:
        """Let the helper threads run other loops that have tasks."""
        with self._lock:
            self._calls_for_help = min(len(self._ready), HELPERS)
            if self._calls_for_help:
                self._help.notify(self._calls_for_help)

    def _begin_share(self) -> None:
        with self._lock:
            self._callers += 1

    def _drain(self, turns: int, *, ends_share: bool = False, gives_way: bool = False) -> None:
        """Run up to `turns` turns of ready queues; leave the rest to the network's thread.

        `ends_share`: the caller's share that `_begin_share` began ends with this. `gives_way`: leave them to
        callers as long as any of these runs its share.
        """
        lock, own = self._lock, threading.get_ident()
        loop: LocalLoop | None = None
        may_wait = ends_share
        try:
            for _ in range(turns):
                with lock:
                    if loop is not None:
                        self._end_turn(loop, own)
                        loop = None
                    if not (gives_way and self._callers):
                        loop = self._begin_turn(own, self._ready)
                        if loop is None and may_wait and self._is_in_turn:
                            # The caller's work continues in that thread's turn. If the caller left, that
                            # thread would end the work, and be in a turn again when the next work comes.
                            self._turn_ended.wait(WAIT_FOR_TURN_SECONDS)
                            may_wait = False
                            loop = self._begin_turn(own, self._ready)
                if loop is None:
                    return
                # What ends it is not an error, but the end of a thread or test, such as SystemExit.
                self._run_turn(loop)
        finally:
            with lock:
                self._callers -= ends_share
                if loop is not None:
                    self._end_turn(loop, own)
                if self._ready and not self._callers:
                    self._work.notify()

    def _begin_turn(self, thread: int, ready: deque[LocalLoop]) -> LocalLoop | None:
        """Return the next loop whose node is not paused, marked as running; None without one. Under _lock."""
        while ready and not self._is_stopping:
            loop = ready.popleft()
            if loop.endpoint.is_paused:
                loop.endpoint.stalled.append(loop)
                continue
            loop.endpoint.runners.append(thread)
            self._running += 1
            self._turns += 1
            return loop
        return None

    def _end_turn(self, loop: LocalLoop, thread: int) -> None:
        """Mark the loop as no longer running, and queue it again if it has tasks. Under _lock."""
        endpoint = loop.endpoint
        endpoint.runners.remove(thread)
        self._running -= 1
        if loop.tasks and endpoint.is_alive:
            self._make_ready(loop)
        else:
            loop.is_queued = False
        if not endpoint.is_alive or endpoint.is_paused or (self._idlers and not self._ready):
            self._changed.notify_all()

    def _run_turn(self, loop: LocalLoop) -> None:
        """Run up to TASKS_OF_A_TURN tasks of the loop, and report their errors."""
        tasks, endpoint = loop.tasks, loop.endpoint
        # Tasks posted to their own queue run after other queues that are waiting for this thread by then.
        for _ in range(min(len(tasks), TASKS_OF_A_TURN)):
            if not endpoint.is_alive or endpoint.is_paused:
                return
            try:
                tasks.popleft()()
            except BaseException as error:
                if endpoint.is_alive or not isinstance(error, Exception):
                    self._on_error(loop.name, error)
                if not isinstance(error, Exception) and threading.current_thread() not in self._threads:
                    raise

    def post(self, loop: LocalLoop, task: Task) -> None:
        """Run `task` soon in the loop."""
        with self._lock:
            self._queue(loop, task)

    def _queue(self, loop: LocalLoop, task: Task) -> None:
        # Under _lock. A draining thread will see the task; without one the network's thread is woken.
        if not loop.endpoint.is_alive:
            return
        loop.tasks.append(task)
        if not loop.is_queued:
            loop.is_queued = True
            try:
                self._make_ready(loop)
            except BaseException:
                # Of a signal handler, such as Ctrl-C.
                loop.is_queued = loop in self._ready or loop in self._ready_apart
                raise
            if not self._thread_local.depth:
                self._work.notify()

    def _make_ready(self, loop: LocalLoop) -> None:
        # Under _lock.
        if loop.is_apart:
            self._ready_apart.append(loop)
            self._work_apart.notify()
        else:
            self._ready.append(loop)

    # ---- timers -------------------------------------------------------------------------------------------

    def arm(self, timer: LocalTimer, delay_ms: int) -> LocalTimer:
        """Run the timer in its loop after `delay_ms`."""
        with self._lock:
            self._add_timer(timer, delay_ms)
        return timer

    def _add_timer(self, timer: LocalTimer, delay_ms: int) -> None:
        # Under _lock.
        if timer.is_cancelled or not timer.loop.endpoint.is_alive:
            return
        self._tickets += 1
        # One ms more, because part of the current millisecond has passed: a timer must not fire early.
        timer.deadline_ms = monotonic_ms(self._clock) + max(delay_ms, 0) + 1
        timer.ticket = self._tickets
        timer.handle = self._wheel.add(timer.deadline_ms, timer.ticket)
        self._timers[timer.ticket] = timer
        if timer.deadline_ms < self._wakes_at_ms:
            self._work.notify()

    def cancel(self, timer: LocalTimer) -> None:
        """Prevent further runs of the timer."""
        with self._lock:
            self._drop_timer(timer)

    def _drop_timer(self, timer: LocalTimer) -> None:
        # Under _lock.
        timer.is_cancelled = True
        if self._timers.pop(timer.ticket, None) is not None:
            self._wheel.cancel(timer.handle)

    def _take_due(self) -> list[LocalTimer]:
        # Under _lock.
        now_ms = monotonic_ms(self._clock)
        tickets = self._wheel.advance(now_ms)
        if CALLS_TICKET in tickets:
            tickets.remove(CALLS_TICKET)
            self._time_out_calls(now_ms)
        due = [self._timers.pop(ticket) for ticket in tickets]
        return sorted(due, key=lambda timer: (timer.deadline_ms, timer.ticket))

    # ---- messages -----------------------------------------------------------------------------------------

    def send(self, sender: LocalEndpoint, node_id: int, request: Any, timeout_ms: int) -> Future[Any]:
        """Send a request; see the Transport port."""
        with self._lock:
            if not sender.is_alive:
                return Future()
            receiver = self._lives.get(node_id)
            if receiver is None or receiver.handle is None:
                return failed(NodeUnreachable(f"node {node_id} is not running"))
            link = receiver.links.get(sender.node_id)
            if link is None:
                link = receiver.links[sender.node_id] = receiver.loop(f"requests of node {sender.node_id}")
            call = _Call(self, sender, receiver, request, timeout_ms)
            self._add_call(call)
            if self._cut and (sender.node_id, node_id) in self._cut:
                return call.future
            gate = self.gate
            if gate is None:
                self._queue(link, call.take)
                return call.future
        deliver = partial(link.post, call.take)
        if not gate(sender.node_id, node_id, message_of(request), is_request=True, deliver=deliver):
            deliver()
        return call.future

    def _add_call(self, call: _Call) -> None:
        # Under _lock. One timer, for the earliest deadline, serves all calls: few of them ever time out.
        self._numbers += 1
        call.number = self._numbers
        self._calls[call.number] = call
        call.deadline_ms = monotonic_ms(self._clock) + max(call.timeout_ms, 0) + 1
        if call.deadline_ms < self._calls_end_ms:
            if self._calls_end_ms != NEVER_MS:
                self._wheel.cancel(self._calls_timer)
            self._calls_end_ms = call.deadline_ms
            self._calls_timer = self._wheel.add(call.deadline_ms, CALLS_TICKET)
            if call.deadline_ms < self._wakes_at_ms:
                self._work.notify()

    def _time_out_calls(self, now_ms: int) -> None:
        # Under _lock.
        self._calls_end_ms = NEVER_MS
        for call in self._calls.values():
            if call.deadline_ms <= now_ms:
                self._queue(call.sender.timeouts, call.time_out)
            else:
                self._calls_end_ms = min(self._calls_end_ms, call.deadline_ms)
        if self._calls_end_ms != NEVER_MS:
            self._calls_timer = self._wheel.add(self._calls_end_ms, CALLS_TICKET)

    def ends(self, call: _Call, *, is_answered: bool = False) -> bool:
        """Forget the call. Return whether to resolve its future.

        The thread that removes the call from the table resolves it; calls of a dead sender stay unresolved.
        """
        with self._lock:
            if is_answered and self._cut and (call.receiver.node_id, call.sender.node_id) in self._cut:
                return False
            return self._calls.pop(call.number, None) is not None and call.sender.is_alive

    def report(self, call: _Call, error: BaseException) -> None:
        """Report the error of the node that failed to answer the call."""
        if not isinstance(error, (KreplicaError, CancelledError)):
            self._on_error(f"requests of node {call.sender.node_id}", error)
