# DiskThread: a native thread that does the work of a disk for an event loop; the queue is native/disk_queue.h.
#
# Ownership: a DiskJob's native part, and all that its `perform` touches, is the thread's from `submit` until it was
# performed; until then the queue keeps the job, and the job what it works on, alive. A Lane is a sequence of jobs of
# which each builds on the one before it. Thread rule: `perform` runs in the native thread and never takes the
# GIL; everything else is called under it, by any thread, but `take` by one.

from libc.stdint cimport int64_t

from kreplica._core.region cimport Region

cdef extern from "disk_queue.h" nogil:
    enum:
        KR_HELD
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
    void kr_disk_submit(kr_disk_queue *queue, kr_job *job, int lazily)
    kr_job *kr_disk_take(kr_disk_queue *queue)
    void kr_disk_settle(kr_disk_queue *queue, kr_lane *lane)
    int64_t kr_disk_in_flight(kr_disk_queue *queue, kr_lane *lane)
    void kr_disk_free_lane(kr_disk_queue *queue, kr_lane *lane)
    int kr_disk_is_finished(kr_disk_queue *queue, kr_job *job)
    int64_t kr_disk_waiting_ns(kr_disk_queue *queue)

cdef struct JobCell:
    kr_job job                    # first, so that the thread's pointer is the cell's
    void *owner                   # the DiskJob, which holds the cell


cdef class Lane:
    cdef kr_lane lane


cdef class DiskJob:
    cdef JobCell cell
    cdef Lane lane                # kept as long as the job
    cdef bint submitted
    cdef public object done       # for whoever takes it

    # The work, in the thread: a Status. All that it may touch belongs to the job.
    cdef int perform(self) noexcept nogil


cdef class FlushJob(DiskJob):
    cdef Region region


cdef class DiskThread:
    cdef kr_disk_queue queue
    cdef int generation           # of the process that started it
    cdef bint started

    cdef int require_own(self) except -1
