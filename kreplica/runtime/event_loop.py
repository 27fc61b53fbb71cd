"""A node's loops and scheduler on one asyncio event loop, which is uvloop's if that is installed.

`EventLoopThread` is the thread; tasks posted to it run there in order, between socket events. `NodeLoops` is
one life of a node on it: it creates the Loops and implements the Scheduler; after `leave` none of its tasks
runs. A task must not block, because that would delay the sockets of the whole process.

Ownership: the thread owns its event loop, from `start` to `stop`. Thread rule: any thread may call anything;
`leave` and `stop` wait for the running task, so a task must not call them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from kreplica._core.frame_reader import ReceiveBuffer
from kreplica._core.task_queue import LifeOfTasks, PostingLoop, TaskQueue
from kreplica.runtime.scheduler import OnError, log_error

T = TypeVar("T")
Task = Callable[[], object]

TURNS_TO_END = 8


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop loop, or asyncio's if the extra "server" is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EventLoopThread(TaskQueue):
    """A thread that runs an event loop and posted tasks.

    A task's error is reported to `on_error` (name, error), by default to the log.
    """

    def __init__(self, name: str = "kreplica-loop", on_error: OnError = log_error) -> None:
        self.on_error = on_error
        # Into which the sockets of this loop receive, one after the other.
        self.received = ReceiveBuffer()
        # For what comes encrypted, before it is decrypted into the other one.
        self.encrypted = ReceiveBuffer()
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        # Errors outside of any node's task: reported, so that tests fail and logs show them.
        self.loop.set_exception_handler(self._failed)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current task, and close the loop; queued tasks are dropped."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and return its result; must not be called from the loop's thread."""
        assert not self.is_current(), "run() would wait for itself: call it from another thread"
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def report(self, name: str, error: BaseException) -> None:
        """Report a task's error to `on_error`; re-raise what must end the thread, as asyncio does."""
        # BaseException, because asyncio's CancelledError is not an Exception.
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error
        self.on_error(name, error)

    def wake_soon(self) -> None:
        """Let the loop run posted tasks in its next turn."""
        if self.is_current():
            self.loop.call_soon(self.run_tasks)
            return
        try:
            self.loop.call_soon_threadsafe(self.run_tasks)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def look_soon(self) -> None:
        """Let the queue look what else came in this turn of the loop."""
        self.loop.call_soon(self.look)

    def _run(self) -> None:
        self.begin_here(time.monotonic)
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._finish())
        finally:
            asyncio.set_event_loop(None)

    async def _finish(self) -> None:
        """Let aborted connections close their sockets, and cancel connection attempts."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        # A closing connection posts to the next turn, and may do so repeatedly.
        for _ in range(TURNS_TO_END):
            await asyncio.sleep(0)

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        self.on_error("event loop", error)


class NodeLoops(LifeOfTasks):
    """One life of a node: implements the Scheduler port and creates the node's Loops."""

    thread: EventLoopThread

    def loop(self, name: str) -> EventLoop:
        """Return a Loop for an object of this life of the node."""
        return EventLoop(self, name)

    def schedule(self, name: str, task: Task, delay_ms: int, period_ms: int | None = None) -> LoopTimer:
        """Run `task` after `delay_ms`, then, if given, every `period_ms` counted from the end of a run."""
        timer = LoopTimer(self, name, task, period_ms)
        timer.arm(delay_ms)
        return timer

    def leave(self) -> None:
        """End this life: once this returns, none of its tasks runs."""
        self.is_alive = False
        self.thread.run(_nothing())

    def report(self, name: str, error: BaseException) -> None:
        """Report the error of a task of this life."""
        self.thread.report(name, error)


class EventLoop(PostingLoop):
    """Implements `kreplica.common.ports.Loop`; all loops of a thread share one queue."""

    __slots__ = ("_life",)

    def __init__(self, life: NodeLoops, name: str) -> None:
        super().__init__(life, name)
        self._life = life

    def post_later(self, task: Task, delay_ms: int) -> LoopTimer:
        """Run `task` in this loop after `delay_ms`."""
        return self._life.schedule(self.name, task, delay_ms)

    def about_to_wait(self) -> None:
        """Do nothing: all loops share one thread, so no other thread could run them."""


class LoopTimer:
    """A task that runs at its time; `cancel` prevents further runs."""

    __slots__ = ("_handle", "_life", "_name", "_period_ms", "_task", "is_cancelled")

    def __init__(self, life: NodeLoops, name: str, task: Task, period_ms: int | None) -> None:
        self._life = life
        self._name = name
        self._task = task
        self._period_ms = period_ms
        self.is_cancelled = False
        # Used only in the loop:
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, delay_ms: int) -> None:
        """Start waiting for `delay_ms`."""
        if self._life.thread.is_current():
            self._arm(delay_ms)
        else:
            self._life.thread.post(partial(self._arm, delay_ms))

    def cancel(self) -> None:
        """Prevent further runs; a current run continues."""
        self.is_cancelled = True
        if self._life.thread.is_current():
            self._drop()
        else:
            self._life.thread.post(self._drop)

    def _arm(self, delay_ms: int) -> None:
        if not self.is_cancelled and self._life.is_alive:
            # One ms more, because part of the current millisecond has passed: a timer must not fire early.
            self._handle = self._life.thread.loop.call_later((max(delay_ms, 0) + 1) / 1000, self._fire)

    def _drop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        if self.is_cancelled:
            return
        self._life.run_task(self._name, self._task)
        if self._period_ms is not None:
            self._arm(self._period_ms)


async def _nothing() -> None:
    pass
