"""A file as memory whose base never moves: reserved once, backed in steps, read through pinned slices.

See region.pxd for the contract, the ownership and the thread rule. Every failure is a typed error of
`kreplica.common.errors`: StorageFull for a full disk, MappedPageLost for a lost page, UseAfterFork after a fork.
"""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_WRITABLE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EBUSY, ENOMEM, ENOSPC, ENOSYS
from libc.stdint cimport int64_t, uint8_t

import os

from kreplica._core.backing cimport (
    KR_PAGE_FAULT, guard_call, guard_install, kr_descriptor_budget, kr_fetch_add, kr_file_destroy, kr_file_flush,
    kr_file_init, kr_file_let_go, kr_file_map, kr_file_open, kr_file_read, kr_file_read_aside, kr_file_renamed,
    kr_file_replace, kr_file_resize, kr_file_settle, kr_file_size, kr_file_write, kr_file_write_along,
    kr_file_cut, kr_file_forked, kr_file_hold, kr_generation_address, kr_grow, kr_set_descriptor_budget,
    kr_growth_advance, kr_growth_destroy, kr_growth_init, kr_growth_resized, kr_growth_stop, kr_growth_written_aside,
    kr_guarded, kr_guarded_copy, kr_load_acquire, kr_load_acquire32, kr_map_budget, kr_map_memory, kr_mapping,
    kr_mapping_disown, kr_mapping_release, kr_mapping_retain, kr_maps_held, kr_set_map_budget, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, status_of,
)
from kreplica._core.status cimport (
    CLOSED, FORKED, IO_FAILED, NO_MEMORY, OK, OUT_OF_DESCRIPTORS, OUT_OF_MAPS, OUT_OF_RANGE, PAGE_FAULT,
    READ_ONLY, STORAGE_FULL, check,
)

cdef enum:
    PAGE = 4096
    PREFAULT_BYTES = 16 << 20

if KR_PAGE_FAULT != PAGE_FAULT:
    raise ImportError("native/guard.h and status.pxd disagree on PAGE_FAULT")


cdef int kr_guard_call(kr_guarded fn, void *argument) noexcept nogil:
    return guard_call(fn, argument)


cdef int kr_generation() noexcept nogil:
    return kr_generation_address()[0]


cdef kr_mapping *new_memory(int64_t size) noexcept nogil:
    cdef kr_mapping *made = NULL
    return NULL if kr_map_memory(size, &made) else made


cdef void keep_mapping(kr_mapping *mapping) noexcept nogil:
    kr_mapping_retain(mapping)


cdef void drop_mapping(kr_mapping *mapping) noexcept nogil:
    kr_mapping_release(mapping)


def map_budget(maps=None):
    """Return how many file mappings this process may hold, and set it to `maps` if given.

    The default is four fifths of vm.max_map_count. Readers beyond the budget copy with pread.
    """
    cdef int64_t before = kr_map_budget()
    if maps is not None:
        kr_set_map_budget(maps)
    return before


def maps_held():
    """Return how many file mappings this process holds now."""
    return kr_maps_held()


def descriptor_budget(descriptors=None):
    """Return how many descriptors regions may keep, and set it to `descriptors` if given.

    The default is three quarters of RLIMIT_NOFILE. Beyond the budget a file is opened for each use.
    """
    cdef int64_t before = kr_descriptor_budget()
    if descriptors is not None:
        kr_set_descriptor_budget(descriptors)
    return before


cdef class Region:
    """One file as memory. `capacity` is the largest length it may ever have, in bytes.

    An existing file opens with its size as its length; the caller publishes the valid length once it is known. Raises
    StorageIOError if the file is missing, unless `create`. A region begins idle: it holds a mapping and a descriptor
    only from its first use on.

    `foreign`: a file of another program, which may truncate it at any time; it is read with pread and never mapped.
    `prefault_bytes`: the largest distance at which pages are allocated ahead of a fast writer. `zeros_ahead`: write
    zeros ahead of the writer instead of reserving blocks; this is the default on file systems where a reserved block
    may still turn out to be missing (copy-on-write: btrfs, zfs, bcachefs, nilfs2).
    """

    def __cinit__(self, *_arguments, **_options):
        pthread_mutex_init(&self.lock, NULL)
        kr_file_init(&self.file)
        kr_growth_init(&self.growth, &self.file, &self.r.allocated, &self.r.length)
        self.r.process = kr_generation_address()
        self.closed = True

    def __init__(self, path, int64_t capacity, *, bint writable=False, bint create=False, bint foreign=False,
                 int64_t prefault_bytes=PREFAULT_BYTES, zeros_ahead=None):
        cdef int64_t size = 0
        cdef int error
        if foreign and writable:
            raise ValueError("a foreign file cannot be writable: leave out one of foreign and writable")
        self.begin(path, capacity, writable, prefault_bytes if writable else 0)
        self.foreign = foreign
        error = guard_install()
        if error == 0:
            error = kr_file_open(&self.file, self.name, writable, create, &size)
        self.raise_for(self.fail(error), "opening")
        if zeros_ahead is not None:
            self.file.zeros = zeros_ahead
        self.growth.file_size = size
        self.r.length = min(size, capacity)
        self.closed = False

    cdef int begin(self, path, int64_t capacity, bint writable, int64_t prefault_bytes) except -1:
        """Do the part of the initialization that all regions share; the region is still closed."""
        if self.path is not None:
            raise ValueError("a region can be opened only once: create another one")
        if capacity < 0 or prefault_bytes < 0:
            raise ValueError(f"capacity={capacity} and prefault_bytes={prefault_bytes} must be at least 0")
        self.path = os.fspath(path)
        self.name = os.fsencode(path)
        self.writable = writable
        self.r.generation = self.r.process[0]
        self.r.capacity = self.growth.capacity = capacity
        self.growth.limit = prefault_bytes
        self.r.watermark = kr_growth_stop(&self.growth, 0)
        return 0

    def __dealloc__(self):
        # A slice keeps its region alive, so there are no pins. Only close() gives the slack back.
        if self.r.generation == self.r.process[0]:
            with nogil:
                kr_growth_stop(&self.growth, 0)
        else:
            kr_file_forked(&self.file)
        kr_mapping_disown(self.mapping)
        kr_mapping_release(self.mapping)
        kr_growth_destroy(&self.growth)
        kr_file_destroy(&self.file)
        pthread_mutex_destroy(&self.lock)

    # ---- use -----------------------------------------------------------------------------------------

    cdef int fail(self, int number) noexcept nogil:
        """Return the status of an errno, and keep the errno for the message."""
        if number:
            self.r.error = number
        return status_of(number)

    cdef int usable(self, bint for_write) noexcept nogil:
        cdef int fault = kr_load_acquire32(&self.r.fault)
        if self.r.generation != self.r.process[0]:
            return FORKED
        if self.closed:
            return CLOSED
        if for_write and not self.writable:
            return READ_ONLY
        # A failed flush ends writes only: what could be read before can still be read.
        if fault and (for_write or fault != IO_FAILED):
            return fault
        return OK

    cdef int ready(self, bint for_write) noexcept nogil:
        cdef int status = self.usable(for_write)
        if status != OK or self.r.base != NULL:
            return status
        pthread_mutex_lock(&self.lock)
        status = self.usable(for_write)
        if status == OK:
            status = self.wake()
        pthread_mutex_unlock(&self.lock)
        return status

    cdef int wake(self) noexcept nogil:
        """Map a cold region; called under the lock."""
        cdef kr_mapping *mapping = NULL
        cdef int error
        if self.mapping != NULL:
            return OK
        if self.foreign:
            return OUT_OF_MAPS
        error = self.make_mapping(self.map_size(), &mapping)
        if error:
            self.r.error = error
            return OUT_OF_MAPS if error == ENOMEM else status_of(error)
        self.mapping = mapping
        self.r.base = mapping.base
        return OK

    cdef int64_t map_size(self) noexcept nogil:
        return (max(self.r.capacity, 1) + PAGE - 1) // PAGE * PAGE

    cdef void let_go(self, bint although_pinned) noexcept nogil:
        """Release the mapping; the last pin unmaps it."""
        cdef kr_mapping *mapping = NULL
        pthread_mutex_lock(&self.lock)
        if although_pinned or kr_load_acquire(&self.r.pins) == 0:
            self.mapping, mapping = mapping, self.mapping
            self.r.base = NULL
        pthread_mutex_unlock(&self.lock)
        kr_mapping_release(mapping)

    # ---- the file ------------------------------------------------------------------------------------

    cdef int make_mapping(self, int64_t size, kr_mapping **mapping) noexcept nogil:
        return kr_file_map(&self.file, size, load_length(&self.r), &self.r.fault, mapping)

    cdef int grow(self, int64_t need) noexcept nogil:
        return ENOSPC if self.is_disk_full else kr_grow(&self.growth, self.r.base, load_length(&self.r), need)

    cdef int resize(self, int64_t size) noexcept nogil:
        return kr_file_resize(&self.file, size)

    cdef int keep_open(self) noexcept nogil:
        return kr_file_hold(&self.file)

    cdef int cut_file(self, int64_t size) noexcept nogil:
        return kr_file_cut(&self.file, size)

    cdef int measure(self, int64_t *size) noexcept nogil:
        cdef int error = kr_file_size(&self.file, size)
        if not self.writable and not self.foreign:
            kr_file_let_go(&self.file)
        return error

    cdef int sync(self, int64_t start, int64_t stop) noexcept nogil:
        cdef kr_mapping *mapping = NULL
        cdef int error
        if self.r.base == NULL or self.acquire(0, &mapping) != OK:
            return kr_file_flush(&self.file, NULL, 0)
        error = kr_file_flush(&self.file, mapping.base, load_length(&self.r))
        self.release(mapping)
        return error

    cdef int sync_along(self, Region along) noexcept nogil:
        cdef int error = kr_file_write_along(&self.file, &along.file)
        if error == ENOSYS:
            error = along.sync(0, load_length(&along.r))
            kr_file_settle(&along.file, &self.file, error)
        return error

    cdef int replace(self, int64_t keep, const uint8_t *tail, int64_t tail_size, int64_t size,
                     kr_mapping **mapping) noexcept nogil:
        return kr_file_replace(&self.file, keep, tail, tail_size, size, &self.r.fault, mapping)

    cdef int write_aside(self, int64_t position, int64_t size, const uint8_t *source) noexcept nogil:
        cdef int error = kr_file_write(&self.file, position, size, source)
        if error == 0:
            kr_growth_written_aside(&self.growth, size)
        return error

    # ---- writing -------------------------------------------------------------------------------------

    cdef int reserve(self, int64_t need) noexcept nogil:
        cdef int status = self.ready(True)
        if status != OK or need <= kr_load_acquire(&self.r.allocated):
            return status
        if need > self.r.capacity:
            return OUT_OF_RANGE
        return self.fail(self.grow(need))

    cdef void advanced(self) noexcept nogil:
        cdef int64_t length = self.r.length
        if length >= self.r.watermark:
            self.r.watermark = kr_growth_advance(&self.growth, length)

    cdef int give_back(self) noexcept nogil:
        """Release all space ahead of the writer, so that the file ends with its valid bytes; return a status."""
        cdef int64_t length = load_length(&self.r)
        cdef int error = 0
        self.r.watermark = kr_growth_stop(&self.growth, length)
        if self.growth.file_size > length:
            error = self.resize(length)
            if error == 0:
                kr_growth_resized(&self.growth, length)
        return self.fail(error)

    cdef int shorten(self) except? -128:
        """End the file at the length, in a new file if a reader has the bytes cut off; return a status."""
        cdef int64_t length = load_length(&self.r)
        cdef int error = 0
        with nogil:
            self.r.watermark = kr_growth_stop(&self.growth, length)
            if self.growth.file_size > length:
                error = self.cut_file(length)
        if error == EBUSY:
            return self.renew(length, NULL, 0)
        if error == 0 and self.growth.file_size > length:
            kr_growth_resized(&self.growth, length)
        return self.fail(error)

    cdef int renew(self, int64_t keep, const uint8_t *tail, int64_t tail_size) except? -128:
        """Continue in a new file that consists of the first `keep` bytes and the tail; return a status."""
        cdef kr_mapping *mapping = NULL
        cdef int64_t length = keep + tail_size
        cdef int error
        with nogil:
            self.r.watermark = kr_growth_stop(&self.growth, keep)
            error = self.replace(keep, tail, tail_size, self.map_size(), &mapping)
        if error:
            return self.fail(error)
        pthread_mutex_lock(&self.lock)
        self.mapping, mapping = mapping, self.mapping
        self.r.base = self.mapping.base
        self.lent_to = 0
        pthread_mutex_unlock(&self.lock)
        kr_mapping_disown(mapping)
        kr_mapping_release(mapping)
        kr_growth_resized(&self.growth, length)
        publish_length(&self.r, length)
        return OK

    cdef bint cut(self, int64_t length) noexcept nogil:
        """Publish the smaller length; return whether a pin reaches beyond it, as no later pin can."""
        cdef bint pinned
        pthread_mutex_lock(&self.lock)
        publish_length(&self.r, length)
        pinned = self.lent_to > length or (kr_load_acquire(&self.r.pins) > 0 and self.pinned_to > length)
        pthread_mutex_unlock(&self.lock)
        return pinned

    # ---- reading -------------------------------------------------------------------------------------

    cdef int acquire(self, int64_t stop, kr_mapping **mapping) noexcept nogil:
        cdef int status = self.usable(False)
        if status != OK:
            return status
        pthread_mutex_lock(&self.lock)
        status = self.usable(False)
        if status == OK and (stop < 0 or stop > load_length(&self.r)):
            status = OUT_OF_RANGE
        if status == OK:
            status = self.wake()
        if status == OK:
            kr_mapping_retain(self.mapping)
            mapping[0] = self.mapping
            if kr_fetch_add(&self.r.pins, 1) == 0 or stop > self.pinned_to:
                self.pinned_to = stop
        pthread_mutex_unlock(&self.lock)
        return status

    cdef void release(self, kr_mapping *mapping) noexcept nogil:
        kr_mapping_release(mapping)
        kr_fetch_add(&self.r.pins, -1)

    cdef int copy_out(self, int64_t position, int64_t size, uint8_t *target) noexcept nogil:
        cdef kr_mapping *mapping
        cdef int status
        if position < 0 or size < 0 or size > self.r.capacity - position:
            return OUT_OF_RANGE
        status = self.acquire(position + size, &mapping)
        if status == OK:
            status = kr_guarded_copy(target, mapping.base + position, size)
            self.release(mapping)
        elif status == OUT_OF_MAPS:
            status = self.read_file(position, size, target, False)
        return status

    cdef int read_file(self, int64_t position, int64_t size, uint8_t *target, bint aside) noexcept nogil:
        cdef int error
        if aside:
            error = kr_file_read_aside(&self.file, position, size, target)
        else:
            error = kr_file_read(&self.file, position, size, target)
        if error:
            return self.fail(error)
        # The writer may have cut off the range while it was read.
        return OK if position + size <= load_length(&self.r) else OUT_OF_RANGE

    cdef Slice pin(self, int64_t position, int64_t size, bint aside=False):
        cdef Slice made = Slice.__new__(Slice)
        cdef int status = OUT_OF_RANGE
        made.region = self
        made.position = position
        made.size = made.shape[0] = size
        made.strides[0] = 1
        if position >= 0 and 0 <= size <= self.r.capacity - position:
            if not aside:
                status = self.acquire(position + size, &made.mapping)
            elif position + size <= load_length(&self.r):
                status = self.usable(False) or OUT_OF_MAPS
        if status == OK:
            made.mapped = True
            made.data = made.mapping.base + position
        elif status == OUT_OF_MAPS:
            # The size lies within the length, so no more memory is requested than there are bytes.
            made.data = <uint8_t *>PyMem_RawMalloc(max(size, 1))
            if made.data == NULL:
                raise MemoryError
            with nogil:
                status = self.read_file(position, size, <uint8_t *>made.data, aside)
        if status != OK:
            self.raise_for(status, f"reading {size} bytes of", position)
        return made

    cdef int raise_for(self, int status, str what, int64_t where=-1) except? -128:
        """Raise the exception for a negative status, with the file and the system's reason."""
        if status >= 0:
            return status
        reason = ""
        if self.r.error and status in (STORAGE_FULL, IO_FAILED, OUT_OF_MAPS, OUT_OF_DESCRIPTORS, NO_MEMORY):
            reason = f" ({os.strerror(self.r.error)})"
        return check(status, f"{what} {self.path}{reason}", where)

    # ---- the Python side -----------------------------------------------------------------------------

    @property
    def length(self):
        """The number of valid bytes."""
        return load_length(&self.r)

    @property
    def capacity(self):
        """The largest possible length, in bytes."""
        return self.r.capacity

    @property
    def allocated(self):
        """The number of bytes that may be written without a request to the file system; 0 before the first write."""
        return kr_load_acquire(&self.r.allocated)

    @property
    def pins(self):
        """The number of slices and acquired mappings in use."""
        return kr_load_acquire(&self.r.pins)

    @property
    def is_mapped(self):
        """Whether the region holds a mapping now."""
        return self.r.base != NULL

    @property
    def holds_descriptor(self):
        """Whether the region holds a file descriptor now."""
        return self.file.descriptor != NULL

    @property
    def fault(self):
        """The status that took the region out of use, or 0."""
        return kr_load_acquire32(&self.r.fault)

    def contains_address(self, size_t address):
        """Return whether the address lies in the valid bytes of the present mapping."""
        cdef size_t base = <size_t>self.r.base
        return self.r.base != NULL and base <= address < base + <size_t>load_length(&self.r)

    def slice(self, int64_t position, int64_t size):
        """Return the bytes [position, position + size) as a pinned Slice, which has the buffer protocol.

        Raises OffsetOutOfRange if they are not all valid bytes.
        """
        return self.pin(position, size)

    def read(self, int64_t position, int64_t size):
        """Return a copy of the bytes [position, position + size).

        Raises OffsetOutOfRange if they are not all valid bytes, and MappedPageLost if the file lost them meanwhile.
        """
        cdef int64_t length = load_length(&self.r)
        if position < 0 or size < 0 or size > length - position:
            self.raise_for(OUT_OF_RANGE, f"reading {size} bytes of", position)
        cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *target = <uint8_t *>PyBytes_AS_STRING(made)
        cdef int status
        with nogil:
            status = self.copy_out(position, size, target)
        self.raise_for(status, f"reading {size} bytes of", position)
        return made

    def write(self, int64_t position, const uint8_t[::1] data not None):
        """Write bytes at `position`, after reserving the space; they become valid only with `publish`.

        Raises StorageFull if the disk has no space, and OffsetOutOfRange beyond the capacity.
        """
        cdef int64_t size = data.shape[0]
        cdef int status = OUT_OF_RANGE
        if position >= 0 and size <= self.r.capacity - position:
            status = ensure_writable(self, position + size)
        if status == OK and size:
            status = kr_guarded_copy(self.r.base + position, &data[0], size)
        self.raise_for(status, f"writing {size} bytes to", position)

    def ensure(self, int64_t need):
        """Make [0, need) writable; raise StorageFull if the disk has no space."""
        self.raise_for(ensure_writable(self, need), "growing", need)

    def publish(self, int64_t length):
        """Make [0, length) the valid bytes; raise OffsetOutOfRange if the file has fewer.

        A reader of a file that another process writes calls this with the length that the writer has published.
        """
        cdef int64_t size = self.growth.file_size
        self.raise_for(self.usable(False), "publishing in")
        if length > size and not self.writable:
            self.raise_for(self.fail(self.measure(&size)), "measuring")
            self.growth.file_size = size
        if length < 0 or length > min(size, self.r.capacity):
            self.raise_for(OUT_OF_RANGE, "publishing in", length)
        publish_length(&self.r, length)
        self.advanced()

    def flush(self, int64_t start=0, stop=None, Region along=None):
        """Flush the bytes written so far; a file is flushed as a whole, whatever the range.

        `along` is another file in the same directory, completely written. It is flushed by the same disk
        flush if possible. After a failure the region is never written again, because the system may have discarded
        what it could not write; reads continue.
        """
        cdef int64_t end = load_length(&self.r) if stop is None else stop
        cdef int status
        with nogil:
            status = flush_now(self, start, end) if along is None else flush_both(self, along, start, end)
        self.raise_for(status, "flushing")

    def trim(self):
        """Give the space between the length and the end of the file back to the disk."""
        cdef int status = self.usable(True)
        if status == OK:
            with nogil:
                status = self.give_back()
        self.raise_for(status, "trimming")

    def truncate(self, int64_t length, const uint8_t[::1] tail=None):
        """End the region at `length`, or with the bytes of `tail` after it.

        Slices of this region, and other regions that map the file in any process, keep the bytes that are cut off. If
        there are any, or if a tail is given, the region continues in a new file, first written next to the old one as
        path + '.tmp'. A crash leaves one or the other.
        """
        cdef int64_t before = load_length(&self.r)
        cdef int64_t added = 0 if tail is None else tail.shape[0]
        cdef int status = self.usable(True)
        if status == OK and (not 0 <= length <= before or added > self.r.capacity - length):
            status = OUT_OF_RANGE
        if status == OK:
            if self.cut(length) or added:
                status = self.renew(length, &tail[0] if added else NULL, added)
            else:
                status = self.shorten()
            if status != OK:
                publish_length(&self.r, before)
        self.raise_for(status, "truncating", length)

    def renamed(self, path):
        """Follow a rename: from now on the file has this path."""
        self.raise_for(self.usable(False), "renaming")
        cdef bytes name = os.fsencode(path)
        kr_file_renamed(&self.file, name)
        self.name = name
        self.path = os.fspath(path)

    def lend(self):
        """Record that another region of the process has slices of the file, so that a cut continues in a new file."""
        self.lent_to = load_length(&self.r)

    def hold(self):
        """Keep the bytes readable although the file is about to lose its name.

        They stay mapped, or are read through a descriptor that does not count towards the budget.
        """
        cdef int status, error = 0
        with nogil:
            status = self.ready(False)
            if status == OUT_OF_MAPS:
                error = self.keep_open()
        self.raise_for(self.fail(error) if status == OUT_OF_MAPS else status, "holding")

    def idle(self):
        """Release the slack, the descriptor and, unless it is pinned, the mapping until the next use."""
        cdef int status = self.usable(False)
        self.raise_for(status, "idling")
        if self.usable(True) == OK:
            with nogil:
                status = self.give_back()
        self.let_go(False)
        kr_file_let_go(&self.file)
        self.raise_for(status, "idling")

    def close(self):
        """End all use except that of present slices; the slack goes back to the disk.

        After a fork, the child's close does not touch the parent's file.
        """
        cdef int status = OK
        if not self.closed and self.r.generation == self.r.process[0]:
            with nogil:
                if self.usable(True) == OK:
                    status = self.give_back()
                else:
                    kr_growth_stop(&self.growth, 0)
            pthread_mutex_lock(&self.lock)
            self.closed = True
            pthread_mutex_unlock(&self.lock)
            self.let_go(True)
            kr_file_let_go(&self.file)
        self.closed = True
        self.raise_for(status, "closing")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@cython.freelist(64)
@cython.no_gc_clear
cdef class Slice:
    """A pinned, read-only range of a region, for `memoryview(slice)` and everything else that accepts a buffer."""

    def __dealloc__(self):
        if self.mapping != NULL:
            self.region.release(self.mapping)
        else:
            PyMem_RawFree(<void *>self.data)

    def __len__(self):
        return self.size

    def __bytes__(self):
        return memoryview(self).tobytes()

    @property
    def address(self):
        """The address of the bytes in memory."""
        return <size_t>self.data

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("a slice is read-only")
        buffer.buf = <void *>self.data
        buffer.len = self.size
        buffer.itemsize = 1
        buffer.readonly = 1
        buffer.ndim = 1
        buffer.format = NULL
        if flags & PyBUF_FORMAT:
            buffer.format = b"B"
        buffer.shape = self.shape
        buffer.strides = self.strides
        buffer.suboffsets = NULL
        buffer.internal = NULL
        buffer.obj = self
