# Region: memory with a base that never moves, a capacity, a valid length and pins.
#
# A Region represents one file (or, in the simulator, memory in its place). Its address range is reserved once
# (`capacity`) and backed in steps (`allocated`): every byte below `allocated` can be written without a SIGBUS on a
# full disk. `length` is the number of valid bytes. The only writer publishes it with a release store after it has
# written the bytes; readers load it with acquire semantics and never read beyond it.
#
# Ownership: the Region owns the mapping, and a Slice keeps it alive by its pin. So close() ends writes, and the last
# pin's release unmaps.
#
# Thread rule: one writer at a time (the log's lock); any number of readers. The writer's calls are ready(True),
# reserve, advanced, write, publish, trim, idle, truncate, renamed, close. Readers use pin and copy_out. A reader that
# accesses bytes directly pins them with acquire and release, or holds the GIL from ready on: unmapping and cutting
# happen under the GIL, and without either `r.base` may become invalid at any moment.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplica._core.backing cimport (
    kr_fetch_add, kr_file, kr_growth, kr_growth_flushed, kr_guarded, kr_load_acquire, kr_mapping, kr_set_fault,
    kr_store_release, pthread_mutex_t,
)
from kreplica._core.status cimport IO_FAILED, OK

cdef struct region_t:
    uint8_t *base           # NULL while unmapped (cold); stable while mapped
    int64_t capacity        # bytes of address space reserved: length never exceeds it
    int64_t allocated       # bytes that are backed and may be written; 0 until the first reserve
    int64_t length          # valid bytes; use load_length / publish_length
    int64_t pins            # slices and acquired mappings in use; atomic
    int32_t fault           # Status of the first failure that took the region out of use, else 0; atomic
    int32_t generation      # process generation at open: another one means that the process has forked since
    const int32_t *process  # address of the process's current generation
    int64_t watermark       # advanced() measures the writer's pace once the length reaches this; atomic
    int32_t error           # errno of the last system call that failed

# Run fn(argument) so that a SIGBUS in it returns PAGE_FAULT instead of killing the process. fn must hold nothing that
# would leak if it ends abruptly.
cdef int kr_guard_call(kr_guarded fn, void *argument) noexcept nogil
# The number of forks that led to this process.
cdef int kr_generation() noexcept nogil

# Plain memory as a mapping, for regions without a file; references to it are counted.
cdef kr_mapping *new_memory(int64_t size) noexcept nogil
cdef void keep_mapping(kr_mapping *mapping) noexcept nogil
cdef void drop_mapping(kr_mapping *mapping) noexcept nogil

cdef inline int64_t load_length(const region_t *r) noexcept nogil:
    return kr_load_acquire(&r.length)

cdef inline void publish_length(region_t *r, int64_t length) noexcept nogil:
    kr_store_release(&r.length, length)


cdef class Region:
    cdef region_t r
    cdef readonly str path
    cdef readonly bint writable
    cdef readonly bint foreign       # another program's file, which may shrink: never mapped
    cdef public bint is_disk_full    # a fault for tests: the file does not grow, as on a full disk
    cdef object __weakref__
    cdef pthread_mutex_t lock        # guards mapping, r.base, pinned_to, lent_to, closed
    cdef kr_mapping *mapping         # NULL while cold; its base is r.base
    cdef int64_t pinned_to           # no present pin reaches beyond this
    cdef int64_t lent_to             # another region of the same file may have pins up to here
    cdef bint closed
    cdef bytes name                  # the path as bytes for system calls; `file` points into it
    cdef kr_file file
    cdef kr_growth growth            # the file's end, and the work done ahead of the writer

    # Return OK if this process may use the region for reading (writing): it is not closed, forked or failed, and it is
    # mapped. Maps a cold region again if the map budget allows it (else OUT_OF_MAPS).
    cdef int ready(self, bint for_write) noexcept nogil
    # Make [0, need) writable, after ready(True). Returns OK, STORAGE_FULL, OUT_OF_RANGE (need > capacity) or
    # IO_FAILED.
    cdef int reserve(self, int64_t need) noexcept nogil
    # Report the writer's position to the prefaulter after an append; cheap, called on every append. It may give bytes
    # beyond the length back to the disk, so nothing that must last is written ahead of the length.
    cdef void advanced(self) noexcept nogil
    # Return the bytes [position, position + size) as a pinned slice of the mapping. If the region may not be mapped,
    # they are read with pread into the slice's own memory. `aside` always reads them so, and leaves no lasting trace
    # in the page cache; it is for bytes that no other reader wants.
    cdef Slice pin(self, int64_t position, int64_t size, bint aside=*)
    # Copy bytes to `target` under the guard, mapped or not: OK or an error.
    cdef int copy_out(self, int64_t position, int64_t size, uint8_t *target) noexcept nogil
    # Pin [0, stop) for a reader without the GIL: after OK, those bytes at (*mapping).base are stable until release.
    # Returns OUT_OF_MAPS if no mapping is available and copy_out must be used instead.
    cdef int acquire(self, int64_t stop, kr_mapping **mapping) noexcept nogil
    cdef void release(self, kr_mapping *mapping) noexcept nogil

    # A region without a file overrides these; each returns 0 or an errno.
    cdef int make_mapping(self, int64_t size, kr_mapping **mapping) noexcept nogil  # locked
    cdef int grow(self, int64_t need) noexcept nogil
    cdef int resize(self, int64_t size) noexcept nogil
    # Keep what is needed to read the file after it has lost its name.
    cdef int keep_open(self) noexcept nogil
    # Like resize, for bytes that a reader may have seen. Returns EBUSY if a reader has them and the file must be
    # replaced.
    cdef int cut_file(self, int64_t size) noexcept nogil
    cdef int measure(self, int64_t *size) noexcept nogil
    cdef int sync(self, int64_t start, int64_t stop) noexcept nogil
    # Make the next sync of this region also flush what was written to `along`.
    cdef int sync_along(self, Region along) noexcept nogil
    # Write bytes in the writable range without the mapping; returns ENOSYS if that is not possible.
    cdef int write_aside(self, int64_t position, int64_t size, const uint8_t *source) noexcept nogil
    # Continue in a new file that consists of the first `keep` bytes and a tail, and map `size` bytes of it.
    cdef int replace(self, int64_t keep, const uint8_t *tail, int64_t tail_size, int64_t size,
                     kr_mapping **mapping) noexcept nogil

    cdef int begin(self, path, int64_t capacity, bint writable, int64_t prefault_bytes) except -1
    cdef int fail(self, int number) noexcept nogil
    cdef int usable(self, bint for_write) noexcept nogil
    cdef int64_t map_size(self) noexcept nogil
    cdef int wake(self) noexcept nogil
    cdef void let_go(self, bint although_pinned) noexcept nogil
    cdef int read_file(self, int64_t position, int64_t size, uint8_t *target, bint aside) noexcept nogil
    cdef bint cut(self, int64_t length) noexcept nogil
    cdef int give_back(self) noexcept nogil
    cdef int shorten(self) except? -128
    cdef int renew(self, int64_t keep, const uint8_t *tail, int64_t tail_size) except? -128
    cdef int raise_for(self, int status, str what, int64_t where=*) except? -128


# Return whether [0, need) may be written now with no further preparation.
cdef inline bint is_writable(Region region, int64_t need) noexcept nogil:
    return (need <= kr_load_acquire(&region.r.allocated) and region.r.fault == 0 and region.r.base != NULL
            and region.r.generation == region.r.process[0])


# Return OK once [0, need) may be written: in a few nanoseconds if it already may, else after ready and reserve.
cdef inline int ensure_writable(Region region, int64_t need) noexcept nogil:
    return 0 if is_writable(region, need) else region.reserve(need)


# Flush the bytes [start, stop) like Region.flush, without the GIL; returns a Status.
cdef inline int flush_now(Region region, int64_t start, int64_t stop) noexcept nogil:
    cdef int64_t length = load_length(&region.r)
    cdef int error, status = region.usable(True)
    if status != OK:
        return status
    error = region.sync(start, stop)
    kr_growth_flushed(&region.growth, length)
    if region.growth.huge:
        kr_store_release(&region.r.watermark, 0)
    if error:
        kr_set_fault(&region.r.fault, IO_FAILED)
        region.r.error = error
    return IO_FAILED if error else OK


# Flush both like Region.flush with `along`, without the GIL.
cdef inline int flush_both(Region region, Region along, int64_t start, int64_t stop) noexcept nogil:
    cdef int error, status = region.usable(True)
    if status == OK:
        status = along.usable(True)
    if status != OK:
        return status
    error = region.sync_along(along)
    if error:
        kr_set_fault(&along.r.fault, IO_FAILED)
        region.r.error = error
        return IO_FAILED
    return flush_now(region, start, stop)


cdef class Slice:
    # A pinned, read-only range with the buffer protocol. A pinned byte never changes and never disappears.
    cdef readonly Region region
    cdef const uint8_t *data
    cdef readonly int64_t position
    cdef readonly int64_t size
    cdef readonly bint mapped       # False: a private copy (cold or foreign file)
    cdef kr_mapping *mapping        # the mapping that the pin keeps; NULL for a private copy
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
