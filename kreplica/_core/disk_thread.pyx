"""A native thread that does the work of a disk for an event loop, and never takes the GIL.

A Python thread would not do: what it hands back costs up to the switch interval, 5 ms, where another one is busy.
Contract, ownership and thread rule: disk_thread.pxd and native/disk_queue.h.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memset, strerror

from kreplica._core.region cimport Region, flush_now, kr_generation, load_length
from kreplica._core.status cimport FORKED, HELD, OK, check

if KR_HELD != HELD:
    raise ImportError("native/disk_queue.h and status.pxd disagree on HELD")


cdef int _perform(kr_job *job) noexcept nogil:
    return (<DiskJob> (<JobCell *> job).owner).perform()


cdef class Lane:
    """Jobs of which each builds on the one before it: where one is not done, none behind it is."""

    def __cinit__(self):
        memset(&self.lane, 0, sizeof(kr_lane))


cdef class DiskJob:
    """Something for the thread to do once. `done`: whatever its owner wants to find with it."""

    def __cinit__(self, *_arguments, **_options):
        memset(&self.cell, 0, sizeof(JobCell))
        self.cell.job.run = _perform
        self.cell.owner = <void *> self

    cdef int perform(self) noexcept nogil:
        return OK

    def run(self):
        """Do it here and now, in the caller's thread."""
        if self.submitted:
            raise ValueError("a job is done once")
        self.submitted = True
        with nogil:
            self.cell.job.status = self.perform()

    def hold(self):
        """Let it be, as what it was to follow was not done."""
        if self.submitted:
            raise ValueError("a job is done once")
        self.submitted = True
        self.cell.job.status = HELD

    @property
    def status(self):
        """What came of it: a Status, 0 for success; to be asked once it was taken back."""
        return self.cell.job.status

    @property
    def is_held(self):
        """Whether it was not even begun, because of one before it in its lane or the end of the thread."""
        return self.cell.job.status == HELD

    def require_done(self, str what):
        """Raise what belongs to the status, if that is an error."""
        check(self.cell.job.status, what)


cdef class FlushJob(DiskJob):
    """Puts on disk what is valid in `region` when it is done; see Region.flush."""

    def __init__(self, Region region not None):
        self.region = region

    cdef int perform(self) noexcept nogil:
        return flush_now(self.region, 0, load_length(&self.region.r))

    def require_done(self, str what="flushing"):
        self.region.raise_for(self.cell.job.status, what)


cdef class DiskThread:
    """One native thread and its queue, until `stop`. Raises OSError where there are no more threads or descriptors."""

    def __cinit__(self):
        cdef int error = kr_disk_start(&self.queue)
        if error:
            raise OSError(error, strerror(error).decode())
        self.generation = kr_generation()
        self.started = True

    def __dealloc__(self):
        # In a forked child the thread is gone, and so is whoever held its lock.
        if self.started and self.generation == kr_generation():
            with nogil:
                kr_disk_stop(&self.queue, True)
            self.take()
            kr_disk_destroy(&self.queue)

    cdef int require_own(self) except -1:
        if self.generation != kr_generation():
            check(FORKED, "a disk thread")
        return 0

    def fileno(self):
        """The descriptor that becomes readable when there is something to `take`."""
        return self.queue.wakes[0]

    def submit(self, DiskJob job not None, Lane lane=None, *, bint lazily=False):
        """Have `job` done, after all that was submitted before. `lazily`: within some ms will do, after others."""
        self.require_own()
        if job.submitted:
            raise ValueError("a job is done once")
        job.submitted = True
        job.lane = lane
        job.cell.job.lane = NULL if lane is None else &lane.lane
        Py_INCREF(job)
        kr_disk_submit(&self.queue, &job.cell.job, lazily)

    def take(self):
        """The jobs that are done, or held, since the last call, in the order in which they were submitted."""
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
        """Wait until no job of the lane is under way; they need not be taken yet."""
        self.require_own()
        if kr_disk_in_flight(&self.queue, &lane.lane):
            with nogil:
                kr_disk_settle(&self.queue, &lane.lane)

    def in_flight(self, Lane lane not None):
        """How many jobs of the lane are not done yet."""
        self.require_own()
        return kr_disk_in_flight(&self.queue, &lane.lane)

    def is_finished(self, DiskJob job not None):
        """Whether the job is done, or held, and has only to be taken."""
        self.require_own()
        return bool(kr_disk_is_finished(&self.queue, &job.cell.job))

    def free(self, Lane lane not None):
        """Do jobs of a held lane again; its owner has all back that were held."""
        self.require_own()
        kr_disk_free_lane(&self.queue, &lane.lane)

    @property
    def processor(self):
        """The one on which the thread is held, since brief jobs come one at a time; -1: it runs on any."""
        return self.queue.processor

    @property
    def waiting_ms(self):
        """For how long the oldest job that is not done has been waiting; 0 where there is none."""
        self.require_own()
        return kr_disk_waiting_ns(&self.queue) / 1e6

    def stop(self, *, bint at_once=False):
        """End the thread when all is done that was submitted; `at_once`: what has not begun comes back held."""
        self.require_own()
        with nogil:
            kr_disk_stop(&self.queue, at_once)
