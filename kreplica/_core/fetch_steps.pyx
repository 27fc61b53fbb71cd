"""The steps of a fetcher; purpose, ownership and thread rule: fetch_steps.pxd."""

from libc.stdint cimport int64_t

cimport cython

from kreplica._core.duration cimport Duration
from kreplica._core.fetch_frames cimport FetchAnswer
from kreplica._core.follower cimport Follower

from functools import partial

# The most partitions of an answer that one step applies. Heartbeats wait for the step, and an answer may have
# thousands.
ANSWERS_A_STEP = 64

cdef enum:
    NANOSECONDS_A_MS = 1_000_000


cdef class FetchSteps:
    """The steps of a ReplicaFetcher, its subclass. `follower`: the class Follower; `hosted`, `inline`: see there.

    A subclass overrides `_send_first()`, which sends a request that has to come before the next fetch and returns
    whether there was one; `_wait()`, called when there is nothing to fetch; `_back_off()`, called when the leader has
    not answered; `_recover_from_error()`; `_message_fetched(response)`; and `_notify()`, which reports what has moved
    or failed.
    """

    def __init__(self, leader not None, quota not None, metrics not None, *, follower not None, lock not None,
                 hosted not None, inline not None, clock not None, loop not None):
        self.leader = leader
        self.quota = quota
        self.metrics = metrics
        self._lock = lock
        self._clock = clock
        self._loop = loop
        self._broken = []
        self._follower = follower(self, lock, hosted, inline)

    def do_work(self):
        """Send the request that is due, if none is in flight and the last answer is applied."""
        cdef Follower follower = self._follower
        if self.in_flight or self.has_more_answers or follower.appending or self._closed:
            return
        if self._waits_until_ms:
            if <int64_t> self._clock.monotonic_ns() // NANOSECONDS_A_MS < self._waits_until_ms:
                return
            self._waits_until_ms = 0
        self._lock.acquire()
        try:
            if (follower.delayed or follower.truncating or follower.out_of_range) and self._send_first():
                return
            if not self._maybe_fetch():
                self._wait()
        finally:
            self._lock.release()

    def _maybe_fetch(self):
        """Fetch the partitions that are not truncating, delayed or held back. Return whether there are any."""
        cdef Follower follower = self._follower
        cdef object fetch
        if follower.held_back or self.quota.is_active:
            follower.hold_back(self.quota)
        fetch = follower.next_fetch()
        if fetch is None:
            return False
        self._send(self.leader.fetch(fetch), None)
        return True

    def _send(self, reply not None, answered):
        """Call `answered(response)`, by default `_fetched`, in the loop when the reply comes, and then take the next
        step."""
        cdef Reply taken = Reply.__new__(Reply)
        self.in_flight = True
        taken.steps, taken.answered, taken.started_ns = self, answered, self._clock.monotonic_ns()
        reply.add_done_callback(taken)

    cdef int take(self, Reply reply) except -1:
        cdef object done = reply.done
        cdef object metrics = self.metrics
        self.in_flight = False
        if self._closed:
            return 0
        metrics.request_rate.count += 1
        (<Duration?> metrics.request_time).update(self.ms_since(reply.started_ns))
        if done.exception() is None:
            try:
                if reply.answered is None:
                    self._fetched(done.result())
                else:
                    reply.answered(done.result())
            except Exception:
                self._recover_from_error()
                raise
        else:
            self._follower.failed(is_unknown=False)
            self._back_off()
        (<Duration?> metrics.total_time).update(self.ms_since(reply.started_ns))
        self.do_work()
        return 0

    cdef double ms_since(self, int64_t started_ns) except? -1:
        return <double> (<int64_t> self._clock.monotonic_ns() - started_ns) / NANOSECONDS_A_MS

    def _fetched(self, response):
        """Apply the answer to a fetch."""
        if isinstance(response, FetchAnswer):
            self._follower.answered((<FetchAnswer> response).session_id)
            self._take_answers((<FetchAnswer> response).partitions)
        else:
            self._message_fetched(response)

    def _take_answers(self, list answers not None, int64_t begin=0):
        """Apply the answers for the next ANSWERS_A_STEP partitions, and leave the others to later steps."""
        cdef int64_t end
        self.is_taking = True
        try:
            end = self._follower.take(answers, begin, ANSWERS_A_STEP)
        finally:
            self.is_taking = False
        if self._follower.moved or self._broken:
            self._notify()
        if end < len(answers):
            self.has_more_answers = True
            self._loop.post(partial(self._take_more_answers, answers, end))

    def _take_more_answers(self, list answers not None, int64_t begin):
        self.has_more_answers = False
        if self._closed:
            return
        try:
            self._take_answers(answers, begin)
        except Exception:
            self._recover_from_error()
            raise
        self.do_work()

    def resume(self):
        """Take the next step after the disk thread has made an append."""
        if not self.is_taking:
            if self._follower.moved or self._broken:
                self._notify()
            self.do_work()


@cython.final
@cython.freelist(8)
cdef class Reply:
    def __call__(self, done=None):
        if done is None:
            self.steps.take(self)
        else:
            self.done = done
            self.steps._loop.post(self)
