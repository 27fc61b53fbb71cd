# DiskThread: a native thread that does disk work for an event loop; its queue is native/disk_queue.h.
#
# Ownership: from `submit` until it has been performed, a DiskJob's native part, and all that its `perform` touches,
# belongs to the thread; until then the queue keeps the job alive, and the job what it works on. A Lane is a sequence
# of jobs that build on each other. Thread rule: `perform` runs in the native thread and never takes the GIL; everything
# else is called under the GIL, by any thread, except `take`, which only one thread calls.

from libc.stdint cimport int64_t

from kreplica._core.region cimport Region
from kreplica._core.task_queue cimport TaskQueue

cdef extern from "disk_queue.h" nogil:
    enum:
        KR_HELD
        KR_NOW
        KR_LAZILY
        KR_QUIETLY
    ctypedef struct kr_lane:
        pass
    ctypedef struct kr_job:
        int (*run)(kr_job *job) noexcept nogil
        kr_job *next
        kr_lane *lane
        int brief
        int status
    ctypedef struct kr_disk_queue:
        int64_t length
        int running
        int processor
        int wakes[2]
    int kr_disk_start(kr_disk_queue *queue)
    void kr_disk_stop(kr_disk_queue *queue, int at_once)
    void kr_disk_destroy(kr_disk_queue *queue)
    void kr_disk_submit(kr_disk_queue *queue, kr_job *job, int how)
    void kr_disk_wake(kr_disk_queue *queue)
    kr_job *kr_disk_take(kr_disk_queue *queue)
    void kr_disk_settle(kr_disk_queue *queue, kr_lane *lane)
    int64_t kr_disk_in_flight(kr_disk_queue *queue, kr_lane *lane)
    void kr_disk_free_lane(kr_disk_queue *queue, kr_lane *lane)
    int kr_disk_is_finished(kr_disk_queue *queue, kr_job *job)
    int64_t kr_disk_waiting_ns(kr_disk_queue *queue)

cdef struct JobCell:
    kr_job job                    # first, so that the job's address is the cell's
    void *owner                   # the DiskJob that contains the cell


cdef class Lane:
    cdef kr_lane lane


cdef class DiskJob:
    cdef JobCell cell
    cdef Lane lane                # kept alive as long as the job
    cdef bint submitted
    cdef public object done       # for the use of the caller that takes it

    # Do the work, in the thread; return a Status. It may touch only what belongs to the job.
    cdef int perform(self) noexcept nogil


cdef class FlushJob(DiskJob):
    cdef Region region


cdef class DiskThread:
    cdef kr_disk_queue queue
    cdef int generation           # of the process that started it
    cdef bint started

    cdef int require_own(self) except -1
    cdef int put(self, DiskJob job, Lane lane, int how) except -1
    cdef list take_all(self)


# The thread of a log directory in a process with one event loop: the loop submits jobs, and gets their ends reported.
cdef class LoopDisk:
    cdef readonly DiskThread thread
    cdef object life
    cdef TaskQueue tasks          # of the loop
    cdef bint is_waking           # a task that wakes the thread is posted
    # Finished jobs to report. Each turn of the loop reports only some, so that heartbeats are not delayed.
    cdef object finished
