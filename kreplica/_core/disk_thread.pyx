"""A native thread that does disk work for an event loop, and never takes the GIL.

A Python thread would be too slow: returning a result costs up to the switch interval, 5 ms, while another thread is
busy. Contract, ownership and thread rule: disk_thread.pxd and native/disk_queue.h.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memset, strerror

from collections import deque

from kreplica._core.region cimport Region, flush_now, kr_generation, load_length
from kreplica._core.status cimport FORKED, HELD, OK, check
from kreplica._core.task_queue cimport TaskQueue

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef enum:
    AT_ONCE = 64

# Finished jobs to report before the sockets get their turn.
JOBS_A_TURN = AT_ONCE

if KR_HELD != HELD:
    raise ImportError("native/disk_queue.h and status.pxd disagree on HELD")


cdef int _perform(kr_job *job) noexcept nogil:
    return (<DiskJob> (<JobCell *> job).owner).perform()


cdef class Lane:
    """Jobs that build on each other: after one that is not done, no later one is done."""

    def __cinit__(self):
        memset(&self.lane, 0, sizeof(kr_lane))


cdef class DiskJob:
    """A piece of work for the thread, done once. `done`: an attribute for its owner's use."""

    def __cinit__(self, *_arguments, **_options):
        memset(&self.cell, 0, sizeof(JobCell))
        self.cell.job.run = _perform
        self.cell.owner = <void *> self

    cdef int perform(self) noexcept nogil:
        return OK

    def run(self):
        """Do the job at once, in the caller's thread."""
        if self.submitted:
            raise ValueError("a job can be run only once: create another one")
        self.submitted = True
        if self.cell.job.brief:
            # Releasing the GIL costs more than the job.
            self.cell.job.status = self.perform()
            return
        with nogil:
            self.cell.job.status = self.perform()

    def hold(self):
        """Mark the job as held, because an earlier one was not done."""
        if self.submitted:
            raise ValueError("a job can be run only once: create another one")
        self.submitted = True
        self.cell.job.status = HELD

    @property
    def status(self):
        """The result, a Status, 0 for success; valid once the job was taken back."""
        return self.cell.job.status

    @property
    def is_brief(self):
        """Whether the job takes a few microseconds."""
        return bool(self.cell.job.brief)

    @property
    def is_held(self):
        """Whether it was not started, because of an earlier job in its lane or the end of the thread."""
        return self.cell.job.status == HELD

    def require_done(self, str what):
        """Raise the error that belongs to the status, if it is one."""
        check(self.cell.job.status, what)


cdef class FlushJob(DiskJob):
    """Flushes the valid bytes that `region` has when the job runs; see Region.flush."""

    def __init__(self, Region region not None):
        self.region = region

    cdef int perform(self) noexcept nogil:
        return flush_now(self.region, 0, load_length(&self.region.r))

    def require_done(self, str what="flushing"):
        self.region.raise_for(self.cell.job.status, what)


cdef class DiskThread:
    """A native thread and its queue, until `stop`. Raises OSError if no thread or descriptor is available."""

    def __cinit__(self):
        cdef int error = kr_disk_start(&self.queue)
        if error:
            raise OSError(error, strerror(error).decode())
        self.generation = kr_generation()
        self.started = True

    def __dealloc__(self):
        # In a forked child the thread does not exist, nor the thread that may have held its lock.
        if self.started and self.generation == kr_generation():
            with nogil:
                kr_disk_stop(&self.queue, True)
            self.take_all()
            kr_disk_destroy(&self.queue)

    cdef int require_own(self) except -1:
        if self.generation != kr_generation():
            check(FORKED, "a disk thread")
        return 0

    def fileno(self):
        """Return the descriptor that becomes readable when there are jobs to `take`."""
        return self.queue.wakes[0]

    def submit(self, DiskJob job not None, Lane lane=None, *, bint lazily=False, bint quietly=False):
        """Queue `job` behind earlier ones. `lazily`: it may be delayed by some ms and overtaken.

        `quietly`: it may be delayed until `wake`, so that the thread wakes once for several brief jobs.
        """
        self.put(job, lane, KR_LAZILY if lazily else KR_QUIETLY if quietly else KR_NOW)

    cdef int put(self, DiskJob job, Lane lane, int how) except -1:
        self.require_own()
        if job.submitted:
            raise ValueError("a job can be submitted only once: create another one")
        job.submitted = True
        job.lane = lane
        job.cell.job.lane = NULL if lane is None else &lane.lane
        Py_INCREF(job)
        kr_disk_submit(&self.queue, &job.cell.job, how)
        return 0

    def wake(self):
        """Let the thread do the jobs that were submitted quietly."""
        self.require_own()
        kr_disk_wake(&self.queue)

    def take(self):
        """Return the jobs done or held since the last call, in the order of their submission."""
        self.require_own()
        return self.take_all()

    cdef list take_all(self):
        cdef kr_job *next = kr_disk_take(&self.queue)
        cdef DiskJob job
        cdef list taken = []
        while next != NULL:
            job = <DiskJob> (<JobCell *> next).owner
            next = next.next
            taken.append(job)
            Py_DECREF(job)
        return taken

    def settle(self, Lane lane not None):
        """Wait until no job of the lane is in progress; they need not have been taken."""
        self.require_own()
        if kr_disk_in_flight(&self.queue, &lane.lane):
            with nogil:
                kr_disk_settle(&self.queue, &lane.lane)

    def in_flight(self, Lane lane not None):
        """Return the number of unfinished jobs of the lane."""
        self.require_own()
        return kr_disk_in_flight(&self.queue, &lane.lane)

    def is_finished(self, DiskJob job not None):
        """Whether the job is done or held, and only has to be taken."""
        self.require_own()
        return bool(kr_disk_is_finished(&self.queue, &job.cell.job))

    def free(self, Lane lane not None):
        """Accept jobs of a held lane again; its owner has taken back all held jobs."""
        self.require_own()
        kr_disk_free_lane(&self.queue, &lane.lane)

    @property
    def processor(self):
        """The processor on which the thread is kept, because brief jobs come one at a time; -1: any."""
        return self.queue.processor

    @property
    def waiting_ms(self):
        """How long the oldest unfinished job has been waiting, in ms; 0 if there is no such job."""
        self.require_own()
        return kr_disk_waiting_ns(&self.queue) / 1e6

    def stop(self, *, bint at_once=False):
        """End the thread when all submitted jobs are done; with `at_once` those not started come back held."""
        self.require_own()
        with nogil:
            kr_disk_stop(&self.queue, at_once)


cdef class LoopDisk:
    """Gives a DiskThread the jobs of an event loop, and reports their ends in the loop.

    `life`: has `is_alive`, without which no end is reported, and `report(name, error)`, for the errors of those that
    are notified. `tasks`: the loop's. `take` is to be called in the loop when the thread's descriptor becomes readable.
    """

    def __init__(self, DiskThread thread not None, life, TaskQueue tasks not None):
        self.thread = thread
        self.life = life
        self.tasks = tasks
        self.finished = deque()

    def submit(self, DiskJob job not None, done, Lane lane=None, *, bint lazily=False):
        """Queue a job; `done(job)` is called in the loop when it has ended. Return False: that is always later."""
        # The brief jobs of one turn of the loop wake the thread once.
        cdef bint quietly = not lazily and job.cell.job.brief and PyThread_get_thread_ident() == self.tasks.thread
        job.done = done
        self.thread.put(job, lane, KR_LAZILY if lazily else KR_QUIETLY if quietly else KR_NOW)
        if quietly and not self.is_waking:
            self.is_waking = True
            self.tasks.post(self.wake)
        return False

    def wake(self):
        """Let the thread do the jobs of this turn."""
        self.is_waking = False
        self.thread.wake()

    def take(self):
        """Report the jobs that have ended."""
        cdef bint is_reporting = bool(self.finished)
        self.finished.extend(self.thread.take())
        if is_reporting:
            return
        # What the reports post, such as answers to send, shares one turn.
        is_turn = self.tasks.begin_turn()
        try:
            self.report()
        finally:
            if is_turn:
                self.tasks.end_turn()

    def report(self):
        """Report the ends of some jobs; leave the rest to the next turn of the loop."""
        cdef DiskJob job
        cdef int _
        for _ in range(min(<Py_ssize_t> len(self.finished), AT_ONCE)):
            job = self.finished.popleft()
            done, job.done = job.done, None
            # The owner may have seen the end already.
            if done is not None and self.life.is_alive:
                try:
                    done(job)
                except Exception as error:
                    self.life.report("disk", error)
        if self.finished:
            self.tasks.post(self.report)
