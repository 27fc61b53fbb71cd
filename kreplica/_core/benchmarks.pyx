"""Native loops for bench/: the cost of the core without Python around each call, and the limits to compare it with.

Nothing else imports this module. Each function does its work once per element; the caller measures the time.
Thread rule: that of the objects passed in.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kreplica._core.crc32c cimport crc32c
from kreplica._core.log_segment cimport (
    AS_LEADER, CHECK_RECORDS, MAY_ROLL, ONLY_PLAIN, Append, LogSegment, Walk,
)
from kreplica._core.log_state cimport LogState
from kreplica._core.purgatory cimport Purgatory, finished_t, part_t
from kreplica._core.region cimport Region
from kreplica._core.status cimport OK
from kreplica._core.timing_wheel cimport TimingWheel

cdef enum:
    AT_ONCE = 256


def touch_slots(int64_t[:, ::1] slots not None, const int64_t[::1] order not None):
    """Add 1 to the first word of each named slot: the limit for any structure with a record per element."""
    cdef int64_t i
    with nogil:
        for i in range(order.shape[0]):
            slots[order[i], 0] += 1


def lock_and_unlock(int64_t count):
    """Lock and unlock an uncontended mutex: the limit for any structure with its own lock."""
    cdef cython.pymutex mutex
    with nogil:
        for _ in range(count):
            with mutex:
                pass


def add_timers(TimingWheel wheel not None, const int64_t[::1] deadlines_ms not None,
               int64_t[::1] handles not None):
    """Add a timer for each deadline; its payload is its index, its handle is stored in `handles`."""
    cdef int64_t i
    assert handles.shape[0] >= deadlines_ms.shape[0]
    with nogil:
        for i in range(deadlines_ms.shape[0]):
            handles[i] = wheel.add_timer(deadlines_ms[i], i)


def cancel_timers(TimingWheel wheel not None, const int64_t[::1] handles not None):
    """Cancel each handle; return how many were pending."""
    cdef int64_t i
    cdef int64_t cancelled = 0
    with nogil:
        for i in range(handles.shape[0]):
            cancelled += wheel.cancel_timer(handles[i])
    return cancelled


def watch_offsets(Purgatory purgatory not None, const int64_t[::1] partitions not None,
                  const int64_t[::1] required_offsets not None, int64_t deadline_ms, object token):
    """Watch each required offset in the partition of the same index."""
    cdef part_t part
    cdef int64_t i
    assert partitions.shape[0] == required_offsets.shape[0]
    for i in range(partitions.shape[0]):
        part = part_t(partitions[i], required_offsets[i], NULL)
        purgatory.watch_parts(&part, 1, deadline_ms, <PyObject *> token, i)


def complete_partitions(Purgatory purgatory not None, const int64_t[::1] partitions not None,
                        int64_t watermark):
    """Complete each partition up to the watermark and drop the tokens; return the number of finished operations."""
    cdef finished_t finished[AT_ONCE]
    cdef int64_t done = 0
    cdef int64_t i, j, count
    for i in range(partitions.shape[0]):
        count = AT_ONCE
        while count == AT_ONCE:
            count = purgatory.complete_into(partitions[i], watermark, finished, AT_ONCE)
            done += count
            for j in range(count):
                Py_XDECREF(finished[j].token)
    return done


def append_batches(LogSegment segment not None, LogState state not None, const uint8_t[::1] batch not None,
                   int64_t count):
    """Append one encoded batch `count` times as a leader does, and publish each log end."""
    cdef Append a
    cdef int64_t _i
    cdef int status = 0
    a.data = &batch[0]
    a.size = batch.shape[0]
    a.leader_epoch = 0
    a.append_time = -1
    a.latest = 0x7FFFFFFFFFFFFFFF
    a.max_size = 0x7FFFFFFF
    a.flags = AS_LEADER | ONLY_PLAIN | CHECK_RECORDS | MAY_ROLL
    with nogil:
        for _i in range(count):
            a.base_offset = state.now.log_end_offset
            status = segment.append_native(&a, state)
            if status != OK:
                break
    return status


def copy_batches(Region region not None, const uint8_t[::1] batch not None, int64_t count):
    """Checksum the batch and copy it `count` times into consecutive faulted-in memory: the limit for an append."""
    cdef int64_t _i, size = batch.shape[0]
    cdef uint8_t *target = region.r.base
    cdef uint32_t checksum = 0
    with nogil:
        for _i in range(count):
            checksum += crc32c(&batch[21], size - 21)
            memcpy(target, &batch[0], size)
            target += size
    return checksum


def locate_offsets(LogSegment segment not None, const int64_t[::1] offsets not None):
    """Look up each offset's batch; return the sum of their positions."""
    cdef Walk walk
    cdef int64_t i, total = 0
    with nogil:
        for i in range(offsets.shape[0]):
            if segment.locate(offsets[i], 0, &walk) == OK:
                total += walk.position
    return total
