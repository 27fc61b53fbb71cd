"""A file as memory whose base never moves: reserved once, backed in steps, read through pinned slices.

See region.pxd for the contract, the ownership and the thread rule. Every failure is a typed error of
`kreplica.common.errors`: a full disk StorageFull, a lost page MappedPageLost, a use after fork UseAfterFork.
"""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_WRITABLE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.errno cimport EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

import os

from kreplica._core.status cimport (
    CLOSED, FORKED, IO_FAILED, NO_MEMORY, OK, OUT_OF_DESCRIPTORS, OUT_OF_MAPS, OUT_OF_RANGE, PAGE_FAULT,
    READ_ONLY, STORAGE_FULL, check,
)

cdef extern from "atomics.h" nogil:
    int32_t kr_load_acquire32(const int32_t *p)
    void kr_store_release32(int32_t *p, int32_t value)

cdef extern from "guard.h" nogil:
    enum:
        KR_PAGE_FAULT
    int guard_call "kr_guard_call"(kr_guarded fn, void *argument)
    int guard_install "kr_guard_install"()
    const int32_t *kr_generation_address()

cdef extern from "backing.h" nogil:
    int kr_open(const char *path, int writable, int create, kr_descriptor **out)
    void kr_descriptor_retain(kr_descriptor *descriptor)
    void kr_descriptor_release(kr_descriptor *descriptor)
    int kr_map(int fd, int64_t size, int writable, int32_t *fault, kr_mapping **out)
    void kr_mapping_retain(kr_mapping *mapping)
    void kr_mapping_release(kr_mapping *mapping)
    void kr_mapping_disown(kr_mapping *mapping)
    int64_t kr_map_budget()
    void kr_set_map_budget(int64_t maps)
    int64_t kr_maps_held()
    int kr_file_size(int fd, int64_t *size)
    int kr_reserves_nothing(int fd)
    int kr_allocate(int fd, int64_t start, int64_t stop, int zeros)
    int kr_resize(int fd, int64_t size)
    int kr_flush(int fd, uint8_t *base, int64_t size)
    int kr_read(int fd, int64_t position, int64_t size, uint8_t *target)
    int kr_write(int fd, int64_t position, int64_t size, const uint8_t *source)

cdef extern from "pthread.h" nogil:
    int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)

cdef enum:
    FIRST_STEP = 64 << 10
    LAST_STEP = 16 << 20
    PAGE = 4096

if KR_PAGE_FAULT != PAGE_FAULT:
    raise ImportError("native/guard.h and status.pxd disagree on PAGE_FAULT")


cdef int kr_guard_call(kr_guarded fn, void *argument) noexcept nogil:
    return guard_call(fn, argument)


cdef int kr_generation() noexcept nogil:
    return kr_generation_address()[0]


cdef int status_of(int number) noexcept nogil:
    """The status that belongs to an errno; status.status_of_errno without the GIL."""
    if number == 0:
        return OK
    if number == ENOSPC or number == EDQUOT or number == EFBIG:
        return STORAGE_FULL
    if number == EMFILE or number == ENFILE:
        return OUT_OF_DESCRIPTORS
    if number == ENOMEM:
        return NO_MEMORY
    return IO_FAILED


cdef struct copy_t:
    void *target
    const void *source
    size_t size


cdef int copy_bytes(void *argument) noexcept nogil:
    cdef copy_t *copy = <copy_t *>argument
    memcpy(copy.target, copy.source, copy.size)
    return OK


cdef int guarded_copy(void *target, const void *source, int64_t size) noexcept nogil:
    cdef copy_t copy
    copy.target = target
    copy.source = source
    copy.size = <size_t>size
    return guard_call(copy_bytes, &copy)


def map_budget():
    """How many file mappings this process may hold (default: four fifths of vm.max_map_count)."""
    return kr_map_budget()


def set_map_budget(int64_t maps):
    """Let this process hold so many file mappings; readers beyond it copy with pread."""
    kr_set_map_budget(maps)


def maps_held():
    """How many file mappings this process holds now."""
    return kr_maps_held()


cdef class Region:
    """One file as memory. `capacity`: the largest length it may ever have, in bytes.

    An existing file opens with its size as its length (the caller publishes the valid one once it knows it),
    a missing one raises FileNotFoundError's typed kin StorageIOError unless `create`. `foreign`: the file of
    another program, which may truncate it at any time: it is read with pread, never mapped.
    """

    def __cinit__(self, *_arguments, **_options):
        pthread_mutex_init(&self.lock, NULL)
        self.r.process = kr_generation_address()
        self.closed = True

    def __init__(self, path, int64_t capacity, *, bint writable=False, bint create=False, bint foreign=False,
                 zeros_ahead=None):
        cdef kr_descriptor *descriptor = NULL
        cdef int64_t size = 0
        cdef int error
        if capacity < 0:
            raise ValueError(f"a capacity of {capacity} bytes")
        if foreign and writable:
            raise ValueError("a foreign file is only read")
        error = guard_install()
        if error:
            self.r.error = error
            self.raise_for(IO_FAILED, "installing the SIGBUS handler for")
        self.path = os.fspath(path)
        self.path_bytes = os.fsencode(self.path)
        self.c_path = self.path_bytes
        self.writable = writable
        self.foreign = foreign
        self.r.generation = self.r.process[0]
        self.r.capacity = capacity
        self.step = FIRST_STEP
        error = kr_open(self.c_path, writable, create, &descriptor)
        if not error:
            error = kr_file_size(descriptor.fd, &size)
        if error:
            kr_descriptor_release(descriptor)
            self.r.error = error
            self.raise_for(status_of(error), "opening")
        self.zeros_ahead = kr_reserves_nothing(descriptor.fd) if zeros_ahead is None else zeros_ahead
        self.descriptor = descriptor
        self.r.length = min(size, capacity)
        self.closed = False

    def __dealloc__(self):
        # A slice keeps its region alive, so no pin is out there. Whoever wants the slack given back closes.
        kr_mapping_release(self.mapping)
        kr_descriptor_release(self.descriptor)
        pthread_mutex_destroy(&self.lock)

    # ---- the native side ---------------------------------------------------------------------------------

    cdef int fail(self, int number) noexcept nogil:
        """Keep the errno for the message; its status."""
        self.r.error = number
        return status_of(number)

    cdef int usable(self, bint for_write) noexcept nogil:
        if self.r.generation != self.r.process[0]:
            return FORKED
        if self.closed:
            return CLOSED
        if for_write and not self.writable:
            return READ_ONLY
        cdef int fault = kr_load_acquire32(&self.r.fault)
        # A failed flush ends writes alone: what was read before can still be read.
        if fault and (for_write or fault != IO_FAILED):
            return fault
        return OK

    cdef int open_descriptor(self, kr_descriptor **descriptor) noexcept nogil:
        """A counted reference to the descriptor, opened if nothing had needed it; 0 or an errno."""
        cdef int error = 0
        pthread_mutex_lock(&self.lock)
        if self.descriptor == NULL:
            error = kr_open(self.c_path, self.writable, 0, &self.descriptor)
        if not error:
            kr_descriptor_retain(self.descriptor)
            descriptor[0] = self.descriptor
        pthread_mutex_unlock(&self.lock)
        return error

    cdef int make_mapping(self, kr_mapping **mapping) noexcept nogil:
        cdef int64_t size = 0
        cdef int error = 0
        if self.descriptor == NULL:
            error = kr_open(self.c_path, self.writable, 0, &self.descriptor)
        if not error:
            error = kr_file_size(self.descriptor.fd, &size)
        if not error and size < load_length(&self.r):
            error = EIO
        if not error:
            size = (self.r.capacity + PAGE - 1) // PAGE * PAGE
            error = kr_map(self.descriptor.fd, size if size else PAGE, self.writable, &self.r.fault, mapping)
        return error

    cdef int wake(self) noexcept nogil:
        """Map a cold region; called under the lock."""
        cdef int error
        if self.mapping != NULL:
            return OK
        if self.foreign:
            return OUT_OF_MAPS
        error = self.make_mapping(&self.mapping)
        if error:
            self.mapping = NULL
            self.r.error = error
            return OUT_OF_MAPS if error == ENOMEM else status_of(error)
        self.r.base = self.mapping.base
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

    cdef int grow(self, int64_t start, int64_t stop) noexcept nogil:
        cdef kr_descriptor *descriptor
        cdef int error = self.open_descriptor(&descriptor)
        if not error:
            error = kr_allocate(descriptor.fd, start, stop, self.zeros_ahead)
            kr_descriptor_release(descriptor)
        return error

    cdef int reserve(self, int64_t need) noexcept nogil:
        cdef int status = self.ready(True)
        cdef int64_t start = self.r.allocated
        cdef int64_t stop
        cdef int error
        if status != OK or need <= start:
            return status
        if need > self.r.capacity:
            return OUT_OF_RANGE
        stop = min(max(need, max(start, load_length(&self.r)) + self.step), self.r.capacity)
        error = self.grow(start, stop)
        if status_of(error) == STORAGE_FULL and stop > need:
            # Not room enough for a whole step: the disk is used to its last page before it counts as full.
            stop = need
            error = self.grow(start, stop)
        if error:
            return self.fail(error)
        self.step = min(self.step * 2, LAST_STEP)
        kr_store_release(&self.r.allocated, stop)
        return OK

    cdef void advanced(self) noexcept nogil:
        pass

    cdef int acquire(self, kr_mapping **mapping) noexcept nogil:
        cdef int status
        pthread_mutex_lock(&self.lock)
        status = self.usable(False)
        if status == OK:
            status = self.wake()
        if status == OK:
            kr_mapping_retain(self.mapping)
            mapping[0] = self.mapping
            self.pinned_to = max(load_length(&self.r), self.pinned_to if kr_load_acquire(&self.r.pins) else 0)
            kr_fetch_add(&self.r.pins, 1)
        pthread_mutex_unlock(&self.lock)
        return status

    cdef void release(self, kr_mapping *mapping) noexcept nogil:
        kr_mapping_release(mapping)
        kr_fetch_add(&self.r.pins, -1)

    cdef int copy_out(self, int64_t position, int64_t size, uint8_t *target) noexcept nogil:
        cdef kr_mapping *mapping
        cdef kr_descriptor *descriptor
        cdef int64_t length = load_length(&self.r)
        cdef int status, error
        if position < 0 or size < 0 or position > length or size > length - position:
            return OUT_OF_RANGE
        status = self.acquire(&mapping)
        if status == OK:
            status = guarded_copy(target, mapping.base + position, size)
            self.release(mapping)
            return status
        if status != OUT_OF_MAPS:
            return status
        error = self.open_descriptor(&descriptor)
        if not error:
            error = kr_read(descriptor.fd, position, size, target)
            kr_descriptor_release(descriptor)
        return self.fail(error) if error else OK

    cdef Slice pin(self, int64_t position, int64_t size):
        cdef Slice made = Slice.__new__(Slice)
        cdef kr_mapping *mapping
        cdef int64_t length = load_length(&self.r)
        cdef int status
        made.region = self
        if position < 0 or size < 0 or position > length or size > length - position:
            self.raise_for(OUT_OF_RANGE, f"pinning {size} bytes of", position)
        made.position = position
        made.size = made.shape[0] = size
        made.strides[0] = 1
        status = self.acquire(&mapping)
        if status == OK:
            made.mapping = mapping
            made.mapped = True
            made.data = mapping.base + position
        elif status == OUT_OF_MAPS:
            made.data = <uint8_t *>PyMem_RawMalloc(max(size, 1))
            if made.data == NULL:
                raise MemoryError
            with nogil:
                status = self.copy_out(position, size, <uint8_t *>made.data)
            self.raise_for(status, "reading", position)
        else:
            self.raise_for(status, "pinning", position)
        return made

    cdef int resize(self, int64_t size) noexcept nogil:
        cdef kr_descriptor *descriptor
        cdef int error = self.open_descriptor(&descriptor)
        if not error:
            error = kr_resize(descriptor.fd, size)
            kr_descriptor_release(descriptor)
        return error

    cdef int raise_for(self, int status, str what, int64_t where=-1) except? -128:
        """Raise what belongs to a negative status, naming the file and the system's reason."""
        if status >= 0:
            return status
        reason = ""
        if self.r.error and status in (STORAGE_FULL, IO_FAILED, OUT_OF_MAPS, OUT_OF_DESCRIPTORS, NO_MEMORY):
            reason = f" ({os.strerror(self.r.error)})"
        return check(status, f"{what} {self.path}{reason}", where)

    # ---- the Python side ---------------------------------------------------------------------------------

    @property
    def length(self):
        """Valid bytes."""
        return load_length(&self.r)

    @property
    def capacity(self):
        """The largest length, bytes."""
        return self.r.capacity

    @property
    def allocated(self):
        """Bytes that may be written without asking the file system again."""
        return kr_load_acquire(&self.r.allocated)

    @property
    def pins(self):
        """Slices and acquired mappings out there."""
        return kr_load_acquire(&self.r.pins)

    @property
    def mapped(self):
        """Whether the region holds a mapping at the moment."""
        return self.r.base != NULL

    @property
    def holds_descriptor(self):
        """Whether the region holds a file descriptor at the moment."""
        return self.descriptor != NULL

    @property
    def is_closed(self):
        return self.closed

    def contains_address(self, size_t address):
        """Whether the address lies inside the present mapping's valid bytes."""
        cdef size_t base = <size_t>self.r.base
        return self.r.base != NULL and base <= address < base + <size_t>load_length(&self.r)

    def slice(self, int64_t position, int64_t size):
        """The bytes [position, position + size), pinned: a Slice, which has the buffer protocol."""
        return self.pin(position, size)

    def read(self, int64_t position, int64_t size):
        """A copy of the bytes [position, position + size)."""
        if position < 0 or size < 0 or position > self.length or size > self.length - position:
            self.raise_for(OUT_OF_RANGE, f"reading {size} bytes of", position)
        cdef bytearray target = bytearray(size)
        cdef uint8_t *p = target
        cdef int status
        with nogil:
            status = self.copy_out(position, size, p)
        self.raise_for(status, "reading", position)
        return bytes(target)

    def write(self, int64_t position, const uint8_t[::1] data not None):
        """Write bytes at `position`, reserving the room first; nothing is valid before `publish`."""
        cdef int64_t size = data.shape[0]
        cdef int status
        if position < 0 or position > self.r.capacity or size > self.r.capacity - position:
            self.raise_for(OUT_OF_RANGE, f"writing {size} bytes to", position)
        status = ensure_writable(self, position + size)
        if status == OK and size:
            status = guarded_copy(self.r.base + position, &data[0], size)
        self.raise_for(status, "writing", position)

    def ensure(self, int64_t need):
        """Make [0, need) writable, or raise StorageFull."""
        self.raise_for(ensure_writable(self, need), "growing", need)

    def publish(self, int64_t length):
        """Make [0, length) the valid bytes. A reader beside another process's writer says so what it sees."""
        cdef kr_descriptor *descriptor
        cdef int64_t size = self.r.allocated
        self.raise_for(self.usable(False), "publishing in")
        if length > size and length > self.r.length:
            error = self.open_descriptor(&descriptor)
            if not error:
                error = kr_file_size(descriptor.fd, &size)
                kr_descriptor_release(descriptor)
            self.raise_for(self.fail(error), "measuring")
        elif length <= self.r.length:
            size = self.r.length
        if length < 0 or length > min(size, self.r.capacity):
            self.raise_for(OUT_OF_RANGE, "publishing in", length)
        publish_length(&self.r, length)
        self.advanced()

    def flush(self, int64_t start=0, stop=None):
        """Make the bytes written so far last. After an error nothing is written to the region any more."""
        cdef kr_descriptor *descriptor
        cdef int error
        self.raise_for(self.usable(True), "flushing")
        with nogil:
            error = self.open_descriptor(&descriptor)
            if not error:
                error = kr_flush(descriptor.fd, self.r.base, load_length(&self.r))
                kr_descriptor_release(descriptor)
        if error:
            kr_store_release32(&self.r.fault, IO_FAILED)
            self.r.error = error
            self.raise_for(IO_FAILED, "flushing")

    def trim(self):
        """Give the slack between the length and the end of the file back to the disk."""
        self.raise_for(self.usable(True), "trimming")
        self.give_back(load_length(&self.r))

    def give_back(self, int64_t length):
        cdef int error
        with nogil:
            error = self.resize(length)
        self.raise_for(self.fail(error), "resizing")
        self.step = FIRST_STEP
        kr_store_release(&self.r.allocated, length)

    def truncate(self, int64_t length):
        """End the region at `length`; slices of what is cut off keep their bytes."""
        self.raise_for(self.usable(True), "truncating")
        if length < 0 or length > self.r.length:
            self.raise_for(OUT_OF_RANGE, "truncating", length)
        if self.r.pins and self.pinned_to > length:
            raise NotImplementedError("truncation below a pin")
        publish_length(&self.r, length)
        self.give_back(length)

    def unmap(self):
        """Let the mapping go; the last pin unmaps. The next use maps it again."""
        pthread_mutex_lock(&self.lock)
        cdef kr_mapping *mapping = self.mapping
        self.mapping = NULL
        self.r.base = NULL
        pthread_mutex_unlock(&self.lock)
        kr_mapping_release(mapping)

    def close_descriptor(self):
        pthread_mutex_lock(&self.lock)
        cdef kr_descriptor *descriptor = self.descriptor
        self.descriptor = NULL
        pthread_mutex_unlock(&self.lock)
        kr_descriptor_release(descriptor)

    def idle(self):
        """Hold no slack, no descriptor and, unless it is pinned, no mapping until the next use."""
        self.raise_for(self.usable(False), "idling")
        if self.writable and self.r.allocated > self.r.length:
            self.trim()
        if not self.pins:
            self.unmap()
        self.close_descriptor()

    def close(self):
        """End all use but that of the slices that are out there; the slack goes back to the disk."""
        if self.closed:
            return
        if self.usable(True) == OK and self.r.allocated > self.r.length:
            self.give_back(load_length(&self.r))
        self.closed = True
        self.r.allocated = 0
        self.unmap()
        self.close_descriptor()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@cython.no_gc_clear
cdef class Slice:
    """A pinned, read-only range of a region; `memoryview(slice)` and anything that takes a buffer work."""

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
        """Where the bytes lie in memory."""
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
