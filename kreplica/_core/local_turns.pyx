"""The queues, turns and calls of the nodes of one process; ownership and thread rule: local_turns.pxd."""

from collections import deque

from libc.stdint cimport INT64_MAX, int64_t

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident()

cdef enum:
    TASKS_IN_TURN = 16            # of one queue, before the next queue gets its turn
    SIZE_BYTES = 4                # the size field before a frame
    NS_PER_MS = 1000000

# Tasks of one queue to run before the next queue gets its turn.
TASKS_OF_A_TURN = TASKS_IN_TURN
# The time at which no call ends.
NEVER_MS = INT64_MAX


cdef class TaskQueue:
    """Tasks that are run in order. `is_apart`: they may take long, and run in a dedicated thread."""

    def __init__(self, network, Endpoint endpoint not None, str name not None, *, bint is_apart=False):
        self.network = network
        self.endpoint = endpoint
        self.name = name
        self.is_apart = is_apart
        self.tasks = deque()

    def post(self, task):
        """Run `task` soon."""
        self.network.post(self, task)


cdef class Endpoint:
    """One life of a node. `timeouts` is set by the subclass."""

    def __init__(self, int node_id):
        self.node_id = node_id
        self.is_alive = True
        self.stalled = []
        self.runners = []
        self.links = {}


cdef class Call:
    """A pending request and its future; the receiver's queue calls it to have the request handled.

    An encoded request goes as a frame to a receiver that takes frames, unless a gate wants to see messages.
    """

    def __call__(self):
        self.take()

    cdef int take(self) except -1:
        cdef object request = self.request
        if isinstance(request, self.network.encoded):
            if self.receiver.serve_frame is not None and self.network.gate is None:
                frame = memoryview(request.frame(self.number & 0x7FFFFFFF, b""))[SIZE_BYTES:]
                self.receiver.serve_frame(frame, self.network.peer, self.answered, self.sender)
                return 0
            request = request.message()
        try:
            answer = self.receiver.handle(request)
        except Exception:
            self.fail(f"node {self.receiver.node_id} failed")
            raise
        answer.add_done_callback(self.answered_by_message)
        return 0

    def answered(self, buffers, error):
        """Take the buffers of the answer's frame, or the error that makes an answer impossible."""
        if not self.receiver.is_alive:
            return
        if error is not None:
            self.network.report(self, error)
            self.fail_to_answer(error)
        else:
            self.deliver(None if buffers is None else self.request.read_buffers(buffers))

    def answered_by_message(self, answer):
        """Take the future of the answer, which is done."""
        if not self.receiver.is_alive:
            return
        if answer.cancelled() or answer.exception() is not None:
            self.fail_to_answer(answer)
            return
        body = answer.result()
        if self.network.gate is None or not self.network.gate(
                self.receiver.node_id, self.sender.node_id, body, is_request=False,
                deliver=lambda: self.deliver(body)):
            self.deliver(body)

    def deliver(self, body):
        """Resolve the future with the answer, unless the way back is cut."""
        if self.network.cut_links and (self.receiver.node_id, self.sender.node_id) in self.network.cut_links:
            return
        if self.ends():
            self.future.set_result(body)

    def fail_to_answer(self, why):
        # A failing handler closes the connection, because it has no response.
        self.fail(f"node {self.receiver.node_id} failed: {why!r}")

    def fail(self, str why):
        """Fail the future with NetworkException."""
        if self.ends():
            self.future.set_exception(self.network.broken(why))

    def time_out(self):
        """Fail the call, because no response arrived in time; the sender's loop calls this."""
        self.fail(f"no answer from node {self.receiver.node_id} within {self.timeout_ms} ms")

    cdef bint ends(self) noexcept:
        # The thread that removes the call resolves its future; calls of a dead sender stay unresolved.
        return self.network.calls.pop(self.number, None) is not None and self.sender.is_alive


cdef class Turns:
    """See local_turns.pxd. `new_future()` makes the future of a call; `encoded` is the type of encoded requests.

    `peer`: who sends them.

    A subclass has these methods, which may take its lock: `wake(is_apart)` when no draining thread will see a queue
    that got ready; `turn_ended()`; `wait_for_turn()`; `task_failed(queue, error)`; `arm_calls(deadline_ms)`;
    `report(call, error)`; `broken(why)`, which returns a NetworkException; `new_link(receiver, sender)`;
    `unreachable(node_id)`, which returns a failed future; `pass_gate(link, call)`.
    """

    def __init__(self, clock, new_future, encoded, peer, thread_local):
        self.clock = clock
        self.new_future = new_future
        self.encoded = encoded
        self.peer = peer
        self.thread_local = thread_local
        self.lives = {}
        self.cut_links = set()
        self.calls = {}
        self.calls_end_ms = NEVER_MS
        self.ready = deque()
        self.ready_apart = deque()

    # ---- turns ---------------------------------------------------------------------------------------------------

    cpdef post(self, TaskQueue queue, task):
        """Run `task` soon in the queue. A draining thread will see it; without one a thread is woken."""
        if not queue.endpoint.is_alive:
            return
        queue.tasks.append(task)
        if not queue.is_queued:
            queue.is_queued = True
            self.make_ready(queue)
            if queue.is_apart or not self.thread_local.depth:
                self.wake(queue.is_apart)

    cpdef int make_ready(self, TaskQueue queue) except -1:
        """Put the queue, which is marked as queued, behind those that wait for a thread."""
        (self.ready_apart if queue.is_apart else self.ready).append(queue)
        return 0

    cdef TaskQueue begin_turn(self, object ready, object thread):
        # Return the next queue whose node is not paused, marked as running; None without one.
        cdef TaskQueue queue
        while ready and not self.is_stopping:
            queue = ready.popleft()
            if queue.endpoint.is_paused:
                queue.endpoint.stalled.append(queue)
                continue
            queue.endpoint.runners.append(thread)
            self.running += 1
            self.turns += 1
            return queue
        return None

    cdef int end_turn(self, TaskQueue queue, object thread) except -1:
        # Mark the queue as no longer running, and make it ready again if it has tasks.
        cdef Endpoint endpoint = queue.endpoint
        endpoint.runners.remove(thread)
        self.running -= 1
        if queue.tasks and endpoint.is_alive:
            self.make_ready(queue)
            if queue.is_apart:
                self.wake(True)
        else:
            queue.is_queued = False
        if not endpoint.is_alive or endpoint.is_paused or (self.idlers and not self.ready):
            self.turn_ended()
        return 0

    cdef int run_turn(self, TaskQueue queue) except -1:
        # Tasks posted to their own queue run after other queues that are waiting for this thread by then.
        cdef Endpoint endpoint = queue.endpoint
        cdef object tasks = queue.tasks
        cdef object task
        cdef Py_ssize_t left = min(len(tasks), TASKS_IN_TURN)
        while left > 0 and endpoint.is_alive and not endpoint.is_paused:
            left -= 1
            task = tasks.popleft()
            try:
                if type(task) is Call:
                    (<Call> task).take()
                else:
                    task()
            except BaseException as error:
                self.task_failed(queue, error)
        return 0

    def run_apart(self):
        """Run one queue of long tasks; the dedicated thread calls this."""
        cdef object thread = PyThread_get_thread_ident()
        cdef TaskQueue queue = self.begin_turn(self.ready_apart, thread)
        if queue is None:
            return
        try:
            self.run_turn(queue)
        finally:
            self.end_turn(queue, thread)

    def drain(self, int turns, *, bint ends_share=False, bint gives_way=False):
        """Run up to `turns` turns of ready queues; leave the rest to the network's thread.

        `ends_share`: the caller's share, counted in `callers`, ends with this. `gives_way`: leave them to callers as
        long as any of these runs its share.
        """
        cdef object thread = PyThread_get_thread_ident()
        cdef TaskQueue queue = None
        cdef bint may_wait = ends_share
        try:
            while turns > 0:
                turns -= 1
                if queue is not None:
                    self.end_turn(queue, thread)
                    queue = None
                if not (gives_way and self.callers):
                    queue = self.begin_turn(self.ready, thread)
                    if queue is None and may_wait and self.is_in_turn:
                        # The caller's work continues in that thread's turn. If the caller left, that thread would end
                        # the work, and be in a turn again when the next work comes.
                        may_wait = False
                        self.wait_for_turn()
                        queue = self.begin_turn(self.ready, thread)
                if queue is None:
                    return
                # What ends it is not an error, but the end of a thread or test, such as SystemExit.
                self.run_turn(queue)
        finally:
            self.callers -= ends_share
            if queue is not None:
                self.end_turn(queue, thread)
            if self.ready and not self.callers:
                self.wake(False)

    # ---- calls ---------------------------------------------------------------------------------------------------

    def send(self, Endpoint sender not None, int node_id, request, int64_t timeout_ms):
        """Send a request; see the Transport port."""
        cdef Call call = Call.__new__(Call)
        cdef Endpoint receiver = self.lives.get(node_id)
        cdef TaskQueue link
        call.future = self.new_future()
        if not sender.is_alive:
            return call.future
        if receiver is None or receiver.handle is None:
            return self.unreachable(node_id)
        link = receiver.links.get(sender.node_id)
        if link is None:
            link = self.new_link(receiver, sender)
        # One ms more, because part of the current one has passed.
        call.deadline_ms = <int64_t> (self.clock.monotonic_ns()) // NS_PER_MS + max(timeout_ms, 0) + 1
        call.network = self
        call.sender = sender
        call.receiver = receiver
        call.request = request
        call.timeout_ms = timeout_ms
        if not receiver.is_alive:
            return self.unreachable(node_id)
        self.numbers += 1
        call.number = self.numbers
        self.calls[call.number] = call
        if call.deadline_ms < self.calls_end_ms:
            self.arm_calls(call.deadline_ms)
        if self.cut_links and (sender.node_id, node_id) in self.cut_links:
            return call.future
        if self.gate is None:
            self.post(link, call)
        else:
            self.pass_gate(link, call)
        return call.future
