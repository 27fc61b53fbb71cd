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
anything. Queues, turns and calls are native and need no lock (`_core/local_turns`). `_lock` guards timers and
the sleep of threads; nothing is called under it. A queue is run by one thread at a time, different queues by
several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from kreplica._core.held_exceptions import HeldExceptions
from kreplica._core.local_turns import NEVER_MS, TASKS_OF_A_TURN, Call, Endpoint, TaskQueue, Turns
from kreplica._core.timing_wheel import TimingWheel
from kreplica.common.encoded_request import EncodedRequest, message_of
from kreplica.common.errors import KreplicaError, NetworkException, NodeUnreachable, WouldDeadlock
from kreplica.common.future import Future, failed
from kreplica.common.locks import Condition, RLock
from kreplica.common.ports import Clock, monotonic_ms
from kreplica.runtime.clock import SystemClock
from kreplica.runtime.interrupts import HeldSignals
from kreplica.runtime.scheduler import LONGEST_WAIT_MS, OnError, log_error
from kreplica.security.peer import THIS_PROCESS

if TYPE_CHECKING:
    from kreplica.broker.request_channel import Answered
    from kreplica.security.peer import Peer

Task = Callable[[], object]
Handler = Callable[[Any], Future[Any]]
# Answers a frame: serve_frame(frame, peer, answered, connection), as RequestChannel.serve.
ServeFrame = Callable[[memoryview, "Peer", "Answered", object], object]
# Intercepts messages before they travel: gate(sender, receiver, body, is_request=..., deliver=...) returns
# True to keep one, and may call `deliver` later.
Gate = Callable[..., bool]


# In the timing wheel, the timer for all calls.
CALLS_TICKET = 0
# Turns that a caller's thread runs before the network's own thread takes over.
TURNS_OF_A_CALLER = 256
# How long the network's thread leaves queued tasks to callers before it checks that they get on.
LEFT_TO_CALLERS_MS = 20
# How long a caller that finds nothing to run waits for the end of the turn of the network's thread.
WAIT_FOR_TURN_SECONDS = 0.001
# With the thread that waits for the disk, enough for the three nodes of a usual quorum to wait at once.
HELPERS = 2


class LocalLoop(TaskQueue):
    """Implements `kreplica.common.ports.Loop`: a queue of tasks, run in order by one thread at a time.

    `is_apart`: its tasks may take long, and run in a dedicated thread.
    """

    def post_later(self, task: Task, delay_ms: int) -> LocalTimer:
        """Run `task` in this loop after `delay_ms`."""
        timer: LocalTimer = self.network.arm(LocalTimer(self.network, self, task, None), delay_ms)
        return timer

    def about_to_wait(self) -> None:
        """Let the helper threads run other loops that have tasks."""
        self.network.call_helpers()


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


class LocalEndpoint(Endpoint):
    """One life of a node: implements the Transport and Scheduler ports, and creates the node's Loops.

    Its state belongs to the network; calls are passed on to it.
    """

    def __init__(self, network: LocalNetwork, node_id: int) -> None:
        super().__init__(node_id)
        self._network = network
        self.listeners: list[Callable[[int], object]] = []  # guarded by the network's _lock
        self.timeouts = LocalLoop(network, self, "timeout")

    def send(self, node_id: int, request: Any, *, timeout_ms: int) -> Future[Any]:
        """Send `request` to the node; see the port."""
        future: Future[Any] = self._network.send(self, node_id, request, timeout_ms)
        return future

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
                self._network.callers += 1
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
                self._network.drain(TURNS_OF_A_CALLER, ends_share=True)
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


class LocalNetwork(Turns):
    """The network, loops and timers of the nodes of this process.

    A task's error is reported to `on_error` (loop name, error), by default to the log. Signal handlers, and
    exceptions that other threads raise in a caller's thread, wait until that thread has done its share.
    `gate`, if set, may intercept each message; only tests set it.
    """

    def __init__(self, clock: Clock | None = None, on_error: OnError = log_error) -> None:
        self._thread_local = _ThreadLocal()
        super().__init__(clock or SystemClock(), Future, EncodedRequest, THIS_PROCESS, self._thread_local)
        self._on_error = on_error
        self._draining = _Draining(self)
        self._lock = RLock()  # a thread that was interrupted in a wait knows whether it holds it
        # Separate conditions, so that no waiter takes a wake-up meant for another kind of thread.
        self._work = Condition(self._lock)
        self._changed = Condition(self._lock)
        self._help = Condition(self._lock)
        self._turn_ended = Condition(self._lock)
        self._work_apart = Condition(self._lock)
        # Guarded by _lock:
        self._calls_timer = 0  # of calls_end_ms, in the wheel
        self._wheel = TimingWheel(start_ms=monotonic_ms(self.clock))
        self._timers: dict[int, LocalTimer] = {}  # waiting timers, by ticket
        self._tickets = 0
        self._wakes_at_ms = 0  # when the network's thread next checks for due timers
        self._calls_for_help = 0  # helpers asked to run a ready queue
        self._threads: list[threading.Thread] = []

    # ---- nodes --------------------------------------------------------------------------------------------

    def join(self, node_id: int) -> LocalEndpoint:
        """Start a new life of the node; requests to it go to this endpoint from now on."""
        with self._lock:
            assert node_id not in self.lives, f"node {node_id} lives already"
            endpoint = self.lives[node_id] = LocalEndpoint(self, node_id)
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
            if self.lives.get(endpoint.node_id) is endpoint:
                del self.lives[endpoint.node_id]
            calls = list(self.calls.values())
            broken = [call for call in calls if call.receiver is endpoint]
            for call in calls:
                if call.sender is endpoint:
                    self.calls.pop(call.number, None)
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
            calls = list(self.calls.values())
        for call in calls:
            if node_id in (call.sender.node_id, call.receiver.node_id):
                call.fail(f"the connection to node {call.receiver.node_id} broke")
        self._notify_of_closed(node_id)

    def _notify_of_closed(self, node_id: int) -> None:
        with self._lock:
            for endpoint in self.lives.values():
                if endpoint.node_id != node_id and not self._is_cut(endpoint.node_id, node_id):
                    for listener in endpoint.listeners:
                        self.post(endpoint.timeouts, partial(listener, node_id))

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
                self.make_ready(loop)
            self._work.notify()
            self._work_apart.notify()

    def cut(self, one: int, other: int, *, both_ways: bool = True) -> None:
        """Drop messages from `one` to `other`, and with `both_ways` also back; neither node is notified."""
        with self._lock:
            self.cut_links |= {(one, other), (other, one)} if both_ways else {(one, other)}

    def heal(self, one: int, other: int, *, both_ways: bool = True) -> None:
        """Let messages from `one` to `other` arrive again, and with `both_ways` also back."""
        with self._lock:
            self.cut_links -= {(one, other), (other, one)} if both_ways else {(one, other)}

    def heal_all(self) -> None:
        with self._lock:
            self.cut_links.clear()

    def _is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cut_links or (other, one) in self.cut_links

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
            self.is_stopping = True
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
        """Run queued tasks in this thread, which is about to wait, as at the end of `draining`.

        Raises WouldDeadlock as `require_free` does.
        """
        self.require_free()
        with self._draining:
            pass

    def require_free(self) -> None:
        """Raises WouldDeadlock in a callback of a task: what it would wait for may be behind this task."""
        if self.is_in_task:
            raise WouldDeadlock(
                "a callback of a future must not wait for its cluster, whose work its thread does:"
                " wait after the callback, or in another thread"
            )

    @property
    def is_in_task(self) -> bool:
        """Whether this thread is running tasks, or is about to."""
        return self._thread_local.depth > 0

    def wait_until_idle(self, timeout: float) -> bool:
        """Return True when no task is left or running, and no timer is due; False after `timeout` seconds."""
        with self._lock:
            self.idlers += 1
            try:
                return self._changed.wait_for(self._is_idle, timeout)
            finally:
                self.idlers -= 1

    def clock_moved(self) -> None:
        """Check for due timers, because the clock was set forward."""
        with self._lock:
            self._work.notify()

    def _is_idle(self) -> bool:
        following = self._wheel.next_deadline()
        is_ready = bool(self.ready or self.ready_apart)
        return not (is_ready or self.running) and (following is None or following > monotonic_ms(self.clock))

    def _run(self) -> None:
        """Run due timers and queues until `shutdown`; the network's own thread."""
        self._thread_local.depth = 1
        while True:
            with self._lock:
                due = self._take_due()
                is_held_up = False  # callers run their share, but have begun no turn for a while
                while not (due or (self.ready and not self.callers) or is_held_up or self.is_stopping):
                    turns, is_left = self.turns, bool(self.ready)
                    following = self._wheel.next_deadline()
                    now_ms = monotonic_ms(self.clock)
                    self._wakes_at_ms = now_ms + (LEFT_TO_CALLERS_MS if is_left else LONGEST_WAIT_MS)
                    if following is not None:
                        self._wakes_at_ms = min(self._wakes_at_ms, following)
                    if self.idlers:
                        # The due timers may have belonged to ended lives, and have left nothing to run.
                        self._changed.notify_all()
                    self._work.wait(max(self._wakes_at_ms - now_ms, 0) / 1000)
                    due = self._take_due()
                    is_held_up = is_left and self.turns == turns
                # While it is working, it need not be woken.
                self._wakes_at_ms = 0
                if self.is_stopping:
                    return
                for timer in due:
                    self.post(timer.loop, timer.run)
                self.is_in_turn = True
            try:
                self.drain(TASKS_OF_A_TURN if is_held_up else TURNS_OF_A_CALLER, gives_way=not is_held_up)
            finally:
                with self._lock:
                    self.is_in_turn = False
                    self._turn_ended.notify_all()

    def _run_helper(self) -> None:
        """Run ready queues whenever a task is about to wait for the disk; a helper thread."""
        self._thread_local.depth = 1
        while True:
            with self._lock:
                while not (self._calls_for_help and self.ready) and not self.is_stopping:
                    self._calls_for_help = 0
                    self._help.wait()
                if self.is_stopping:
                    return
                self._calls_for_help -= 1
            self.drain(TURNS_OF_A_CALLER)

    def _run_apart(self) -> None:
        """Run the queues of long tasks; the dedicated thread."""
        self._thread_local.depth = 1
        while True:
            with self._lock:
                while not self.ready_apart and not self.is_stopping:
                    self._work_apart.wait()
                if self.is_stopping:
                    return
            self.run_apart()
            # Like a caller's thread, it runs a share of the tasks that its task has posted.
            self.drain(TURNS_OF_A_CALLER)

    def call_helpers(self) -> None:
        """Let the helper threads run other loops that have tasks."""
        with self._lock:
            self._calls_for_help = min(len(self.ready), HELPERS)
            if self._calls_for_help:
                self._help.notify(self._calls_for_help)

    # ---- what the turns need ------------------------------------------------------------------------------

    def wake(self, is_apart: bool) -> None:
        """Wake the network's thread, or the one for long tasks, since a queue is ready."""
        with self._lock:
            (self._work_apart if is_apart else self._work).notify()

    def turn_ended(self) -> None:
        """Wake the threads that wait for the end of a node's last turn, or for rest."""
        with self._lock:
            self._changed.notify_all()

    def wait_for_turn(self) -> None:
        """Wait until the network's thread has done its share."""
        with self._lock:
            if self.is_in_turn:
                self._turn_ended.wait(WAIT_FOR_TURN_SECONDS)

    def task_failed(self, loop: LocalLoop, error: BaseException) -> None:
        """Report the error of a task. Raises it if it ends the caller's thread."""
        if loop.endpoint.is_alive or not isinstance(error, Exception):
            self._on_error(loop.name, error)
        if not isinstance(error, Exception) and threading.current_thread() not in self._threads:
            raise error

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
        timer.deadline_ms = monotonic_ms(self.clock) + max(delay_ms, 0) + 1
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
        now_ms = monotonic_ms(self.clock)
        tickets = self._wheel.advance(now_ms)
        if CALLS_TICKET in tickets:
            tickets.remove(CALLS_TICKET)
            self._time_out_calls(now_ms)
        due = [self._timers.pop(ticket) for ticket in tickets]
        return sorted(due, key=lambda timer: (timer.deadline_ms, timer.ticket))

    # ---- what calls need ----------------------------------------------------------------------------------

    def new_link(self, receiver: LocalEndpoint, sender: LocalEndpoint) -> LocalLoop:
        """Return the queue of the sender's requests to the receiver."""
        link: LocalLoop = receiver.links.setdefault(
            sender.node_id, receiver.loop(f"requests of node {sender.node_id}")
        )
        return link

    def unreachable(self, node_id: int) -> Future[Any]:
        """Return the future of a call to a node that is not there."""
        return failed(NodeUnreachable(f"node {node_id} is not running"))

    def broken(self, why: str) -> NetworkException:
        """Return the error of a call that failed."""
        return NetworkException(why)

    def report(self, call: Call, error: BaseException) -> None:
        """Report the error of the node that failed to answer the call."""
        if not isinstance(error, (KreplicaError, CancelledError)):
            self._on_error(f"requests of node {call.sender.node_id}", error)

    def pass_gate(self, link: LocalLoop, call: Call) -> None:
        """Let the gate see the request's message, and deliver it unless the gate keeps it."""
        gate: Gate = self.gate
        deliver = partial(link.post, call)
        body = message_of(call.request)
        if not gate(call.sender.node_id, call.receiver.node_id, body, is_request=True, deliver=deliver):
            deliver()

    def arm_calls(self, deadline_ms: int) -> None:
        """Check the calls for timeouts at this time. One timer serves all: few calls ever time out."""
        with self._lock:
            if deadline_ms >= self.calls_end_ms:
                return
            if self.calls_end_ms != NEVER_MS:
                self._wheel.cancel(self._calls_timer)
            self.calls_end_ms = deadline_ms
            self._calls_timer = self._wheel.add(deadline_ms, CALLS_TICKET)
            if deadline_ms < self._wakes_at_ms:
                self._work.notify()

    def _time_out_calls(self, now_ms: int) -> None:
        # Under _lock.
        self.calls_end_ms = NEVER_MS
        for call in list(self.calls.values()):
            if call.deadline_ms <= now_ms:
                self.post(call.sender.timeouts, call.time_out)
            else:
                self.arm_calls(call.deadline_ms)
