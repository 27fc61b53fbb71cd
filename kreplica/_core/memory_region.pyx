"""A file in memory that knows what a power failure would leave of it: the simulator's regions.

See memory_region.pxd for ownership and threads. The simulator decides when a disk is full, when a flush fails and
which pages a crash loses; this module is only the mechanism.
"""

from libc.errno cimport EIO, ENOMEM, ENOSPC, ENOSYS
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from kreplica._core.backing cimport kr_mapping, kr_set_fault
from kreplica._core.region cimport Region, drop_mapping, keep_mapping, load_length, new_memory
from kreplica._core.status cimport IO_FAILED, OK, OUT_OF_RANGE

PAGE_SIZE = 4096

cdef enum:
    PAGE = 4096
    STEP = 64 << 10

cdef const uint8_t ZEROS[PAGE]


cdef class MemoryFile:
    """One file of a simulated disk. `capacity`: its maximum size, in bytes."""

    def __init__(self, int64_t capacity):
        if self.memory != NULL or capacity < 0:
            raise ValueError(f"a file can be initialized only once, with capacity >= 0, not {capacity}")
        self.room = INT64_MAX
        self.durable = b""
        self.make_room(capacity, NULL, 0)

    def __dealloc__(self):
        drop_mapping(self.memory)

    cdef int make_room(self, int64_t capacity, const uint8_t *source, int64_t size) except -1:
        """Replace the memory by new memory that begins with source[0:size]."""
        cdef kr_mapping *made = new_memory(capacity)
        if made == NULL:
            raise MemoryError
        if size:
            memcpy(made.base, source, size)
        self.memory, made = made, self.memory
        drop_mapping(made)
        self.capacity = capacity
        self.size = size
        return 0

    cdef int set_size(self, int64_t size) noexcept nogil:
        if size < self.size:
            memset(self.memory.base + size, 0, self.size - size)
        self.size = size
        return 0

    def open(self, path, int64_t capacity, *, bint writable):
        """Return a region over the file; its length is the file's size.

        If `capacity` is larger than the file's, no other region of the file may be in use.
        """
        if capacity > self.capacity:
            self.make_room(capacity, self.memory.base, self.size)
        return MemoryRegion(self, path, capacity, writable)

    def read(self):
        """Return the file's contents, as a program would read them now."""
        return (<char *>self.memory.base)[:self.size]

    def write(self, bytes data not None):
        """Replace the contents without flushing, as a program would."""
        cdef const uint8_t *source = data
        self.make_room(max(self.capacity, <int64_t>len(data)), source, len(data))

    def flush(self, int64_t start=0, stop=None):
        """Make the pages of [start, stop) and the file's size durable; by default up to the end."""
        cdef int64_t end = self.size if stop is None else min(<int64_t>stop, self.size)
        if self.on_flush is not None:
            self.on_flush(start, end)
        if start <= 0 and end >= self.size:
            self.durable = self.read()
        else:
            self.durable = self.image(range(max(start, 0) // PAGE, (end + PAGE - 1) // PAGE), self.size)

    def dirty_pages(self):
        """Return the numbers of the 4 KiB pages whose contents on disk and in memory differ, ascending."""
        cdef const uint8_t *disk = self.durable
        cdef int64_t flushed = len(self.durable)
        cdef int64_t start, both, size
        dirty = []
        for start in range(0, self.size, PAGE):
            size = min(self.size - start, PAGE)
            both = min(max(flushed - start, 0), size)
            if both and memcmp(self.memory.base + start, disk + start, both):
                dirty.append(start // PAGE)
            elif memcmp(self.memory.base + start + both, ZEROS, size - both):
                dirty.append(start // PAGE)
        return dirty

    def image(self, pages, int64_t size):
        """Return the contents of the disk, `size` bytes, if the given pages had been written."""
        cdef bytearray made = bytearray(self.durable[:size].ljust(size, b"\0"))
        cdef uint8_t *target = made
        cdef int64_t page, part
        for page in pages:
            part = min(PAGE, min(size, self.size) - page * PAGE)
            if page >= 0 and part > 0:
                memcpy(target + page * PAGE, self.memory.base + page * PAGE, part)
        return bytes(made)

    def crash(self, pages=(), size=None):
        """Simulate a power failure: of the unflushed data only `pages`, and `size` if given, reached the disk.

        Existing regions and slices belong to the dead process: they keep their memory but can change nothing. The file
        gets new memory.
        """
        self.crashes += 1
        self.durable = self.image(pages, len(self.durable) if size is None else size)
        cdef const uint8_t *source = self.durable
        self.make_room(max(self.capacity, <int64_t>len(self.durable)), source, len(self.durable))


cdef class MemoryRegion(Region):
    """A Region over a MemoryFile; created by `MemoryFile.open`."""

    def __init__(self, MemoryFile contents not None, path, int64_t capacity, bint writable):
        self.begin(path, capacity, writable, 0)
        self.contents = contents
        self.crashes = contents.crashes
        self.growth.file_size = contents.size
        self.r.length = min(contents.size, capacity)
        self.closed = False

    cdef bint dead(self) noexcept nogil:
        return self.crashes != self.contents.crashes

    cdef int make_mapping(self, int64_t size, kr_mapping **mapping) noexcept nogil:
        if self.dead():
            return EIO
        keep_mapping(self.contents.memory)
        mapping[0] = self.contents.memory
        return 0

    cdef int grow(self, int64_t need) noexcept nogil:
        cdef int64_t filled = max(self.r.allocated, load_length(&self.r))
        cdef int64_t stop = min(max(need, filled + STEP), self.r.capacity)
        if self.dead():
            return EIO
        if stop > self.contents.room:
            stop = need
        if stop > self.contents.room:
            return ENOSPC
        self.contents.size = max(self.contents.size, stop)
        self.growth.file_size = self.contents.size
        self.r.allocated = stop
        return 0

    cdef int resize(self, int64_t size) noexcept nogil:
        return 0 if self.dead() else self.contents.set_size(size)

    cdef int cut_file(self, int64_t size) noexcept nogil:
        return self.resize(size)  # no other process has the file open

    cdef int keep_open(self) noexcept nogil:
        return 0

    cdef int measure(self, int64_t *size) noexcept nogil:
        size[0] = self.contents.size
        return 0

    cdef int read_file(self, int64_t position, int64_t size, uint8_t *target, bint aside) noexcept nogil:
        if self.dead():
            return self.fail(EIO)
        if position + size > self.contents.size:
            return OUT_OF_RANGE
        memcpy(target, self.contents.memory.base + position, size)
        return OK

    cdef int write_aside(self, int64_t position, int64_t size, const uint8_t *source) noexcept nogil:
        return ENOSYS

    cdef int replace(self, int64_t keep, const uint8_t *tail, int64_t tail_size, int64_t size,
                     kr_mapping **mapping) noexcept nogil:
        """Replace the contents as a file system does: they are on disk before they get the name."""
        cdef int error = EIO if self.dead() else 0
        if error:
            return error
        if keep + tail_size > self.contents.room:
            return ENOSPC
        with gil:
            try:
                self.contents.make_room(self.contents.capacity, self.contents.memory.base, keep)
                if tail_size:
                    memcpy(self.contents.memory.base + keep, tail, tail_size)
                    self.contents.size = keep + tail_size
                self.contents.durable = self.contents.read()
            except MemoryError:
                error = ENOMEM
        return error if error else self.make_mapping(size, mapping)

    def flush(self, int64_t start=0, stop=None, Region along=None):
        """Flush the bytes of [start, stop), as the file's on_flush allows, after those of `along`.

        An error from on_flush ends writes, as that of a real flush does, and is raised.
        """
        if along is not None:
            along.flush()
        self.raise_for(self.usable(True), "flushing")
        if self.dead():
            self.raise_for(self.fail(EIO), "flushing")
        try:
            self.contents.flush(start, stop)
        except Exception:
            kr_set_fault(&self.r.fault, IO_FAILED)
            raise
