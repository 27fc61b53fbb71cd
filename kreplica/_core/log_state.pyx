"""LogState: a log's offsets and the valid length of its active segment, published under a sequence lock.

The one writer keeps a private copy and publishes it to the mapped file `kreplica.state.deleted`; readers in any
process take a consistent copy with `read_standing`. Layout, protocol and thread rule: log_state.pxd.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from collections import namedtuple

from kreplica._core.backing cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
)
from kreplica._core.crc32c cimport crc32c as checksum
from kreplica._core.region cimport Region, kr_guard_call, kr_load_acquire, kr_store_release
from kreplica._core.status cimport OK


cdef extern from "atomics.h" nogil:
    void kr_fence_acquire()
    void kr_fence_release()


LogStanding = namedtuple(
    "LogStanding",
    "log_start_offset high_watermark last_stable_offset log_end_offset active_base_offset valid_length "
    "flush_offset leader_epoch boot_id clean cuts has_gaps segments",
)
LogStanding.__doc__ = """The state of a log at one moment, as published by its writer.

Offsets are exclusive ends, except `log_start_offset`. `valid_length`: bytes in the segment whose base offset is
`active_base_offset`. `clean`: the log was closed cleanly and needs no recovery. `cuts`: how often bytes visible to
readers were removed, or files replaced, over the life of the log. `has_gaps`: another program wrote some of the
segments, so that a segment need not begin where the previous one ends. `segments`: their number at a clean close,
else 0.
"""

cdef const char *MAGIC = b"KRLOG\x00\x00\x01"


cdef struct StateHeader:
    uint8_t magic[8]
    int64_t sequence
    uint8_t boot_id[36]
    uint32_t segments             # at the last clean close; 0 while the log is open
    int64_t process_id


cdef struct Publication:
    uint8_t *base
    const Standing *standing


cdef int _publish(void *argument) noexcept nogil:
    cdef Publication *what = <Publication *> argument
    cdef StateHeader *header = <StateHeader *> what.base
    cdef int64_t sequence = header.sequence + 1
    cdef uint8_t *slot = what.base + STATE_SLOT + (sequence & 1) * STATE_SLOT_STRIDE
    cdef int64_t crc = checksum(<const uint8_t *> what.standing, sizeof(Standing))
    kr_fence_release()
    memcpy(slot, what.standing, sizeof(Standing))
    memcpy(slot + sizeof(Standing), &crc, sizeof(crc))
    kr_store_release(&header.sequence, sequence)
    return OK


cdef struct Count:
    uint8_t *base
    uint32_t segments


cdef int _count_segments(void *argument) noexcept nogil:
    cdef Count *what = <Count *> argument
    (<StateHeader *> what.base).segments = what.segments
    return OK


cdef class LogState:
    """The writer's side of a log's published state.

    `region`: the state file, writable, or None to publish nothing. `boot_id`: the id of this boot, 36 characters. The
    first update overwrites an earlier state; read it first with `read_standing`.
    """

    def __cinit__(self, Region region, str boot_id, int64_t process_id=0):
        self.region = region
        self.follows = False
        self.stable = True
        self.boot_id = boot_id
        self.process_id = process_id
        self.begun = region is None
        memset(&self.now, 0, sizeof(Standing))
        pthread_mutex_init(&self.lock, NULL)
        pthread_mutex_init(&self.turn, NULL)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.lock)
        pthread_mutex_destroy(&self.turn)

    cdef int _begin(self) except -1:
        # Write the whole file at once: until then it holds a previous writer's state, which recovery needs.
        cdef bytes slot = (<const char *> &self.now)[:sizeof(Standing)]
        cdef int64_t crc = checksum(<const uint8_t *> &self.now, sizeof(Standing))
        self.region.write(0, (
            MAGIC[:8] + bytes(8) + self.boot_id.encode("ascii")[:36].ljust(36) + bytes(4)
            + self.process_id.to_bytes(8, "little") + slot + crc.to_bytes(8, "little")
        ).ljust(STATE_SIZE, b"\0"))
        self.region.publish(STATE_SIZE)
        self.begun = True
        return 0

    cdef bint can_publish(self) noexcept nogil:
        return self.region is not None and self.begun and self.region.ready(True) == OK

    cdef void publish(self) noexcept nogil:
        # If a page of the state cannot be written, readers in other processes miss the change, but the append
        # succeeds. The region remembers the fault, and the next flush reports it.
        cdef Publication what
        cdef Standing copied
        if not self.shared:
            if self.can_publish():
                what.base = self.region.r.base
                what.standing = &self.now
                kr_guard_call(_publish, &what)
            return
        pthread_mutex_lock(&self.turn)
        pthread_mutex_lock(&self.lock)
        copied = self.now
        self.unpublished = False
        pthread_mutex_unlock(&self.lock)
        if self.can_publish():
            what.base = self.region.r.base
            what.standing = &copied
            kr_guard_call(_publish, &what)
        pthread_mutex_unlock(&self.turn)

    cdef void appended(self, int64_t log_end_offset, int64_t valid_length, int64_t leader_epoch,
                       bint publishes) noexcept nogil:
        cdef Publication what
        self.now.log_end_offset = log_end_offset
        self.now.valid_length = valid_length
        self.now.leader_epoch = leader_epoch
        if self.follows:
            self.now.high_watermark = log_end_offset
            if self.stable:
                self.now.last_stable_offset = log_end_offset
        if publishes:
            what.base = self.region.r.base
            what.standing = &self.now
            _publish(&what)

    cdef void appended_aside(self, int64_t log_end_offset, int64_t valid_length, int64_t leader_epoch) noexcept nogil:
        pthread_mutex_lock(&self.lock)
        kr_store_release(&self.now.log_end_offset, log_end_offset)
        self.now.valid_length = valid_length
        self.now.leader_epoch = leader_epoch
        pthread_mutex_unlock(&self.lock)
        self.publish()

    # ---- the Python edge --------------------------------------------------------------------------------

    @property
    def log_start_offset(self):
        return self.now.log_start_offset

    @property
    def high_watermark(self):
        return self.now.high_watermark

    @property
    def last_stable_offset(self):
        return self.now.last_stable_offset

    @property
    def log_end_offset(self):
        return kr_load_acquire(&self.now.log_end_offset)

    @property
    def valid_length(self):
        return self.now.valid_length

    @property
    def flush_offset(self):
        return self.now.flush_offset

    @property
    def leader_epoch(self):
        return self.now.leader_epoch

    @property
    def cuts(self):
        """How often the log was truncated, or files of it were replaced."""
        return self.now.flags >> CUT_SHIFT

    def update(self, *, log_start_offset=None, high_watermark=None, last_stable_offset=None, log_end_offset=None,
               active_base_offset=None, valid_length=None, flush_offset=None, leader_epoch=None):
        """Change the given fields in one publication."""
        pthread_mutex_lock(&self.lock)
        try:
            if log_start_offset is not None:
                self.now.log_start_offset = log_start_offset
            if high_watermark is not None:
                self.now.high_watermark = high_watermark
            if last_stable_offset is not None:
                self.now.last_stable_offset = last_stable_offset
            if log_end_offset is not None:
                self.now.log_end_offset = log_end_offset
            if active_base_offset is not None:
                self.now.active_base_offset = active_base_offset
            if valid_length is not None:
                self.now.valid_length = valid_length
            if flush_offset is not None:
                self.now.flush_offset = flush_offset
            if leader_epoch is not None:
                self.now.leader_epoch = leader_epoch
        finally:
            pthread_mutex_unlock(&self.lock)
        if not self.begun:
            self._begin()
        else:
            self.publish()

    def take_over(self, standing):
        """Set the state to that of a LogStanding, in one publication."""
        self.update(
            log_start_offset=standing.log_start_offset, log_end_offset=standing.log_end_offset,
            high_watermark=standing.high_watermark, last_stable_offset=standing.last_stable_offset,
            active_base_offset=standing.active_base_offset, valid_length=standing.valid_length,
            leader_epoch=standing.leader_epoch, flush_offset=standing.flush_offset,
        )

    def advance(self, int64_t high_watermark, int64_t last_stable_offset):
        """Move the high watermark and the last stable offset.

        If the state is shared, they are published with the next append or `PublishJob`, since writing the page may
        wait.
        """
        pthread_mutex_lock(&self.lock)
        self.now.high_watermark = high_watermark
        self.now.last_stable_offset = last_stable_offset
        self.unpublished = self.shared
        pthread_mutex_unlock(&self.lock)
        if not self.begun:
            self._begin()
        elif not self.shared:
            self.publish()

    def share(self):
        """Switch to shared mode: a disk thread appends, while this thread changes the other offsets."""
        if not self.begun:
            self._begin()
        self.shared = True

    @property
    def is_unpublished(self):
        """Whether a change has not been published yet."""
        return self.unpublished

    def count_cut(self, int64_t cuts=1):
        """Count a removal of bytes from the log; with the next publication readers reopen its files."""
        self.now.flags += cuts << CUT_SHIFT

    def allow_gaps(self):
        """Record that the log has segments of another program, which need not be contiguous."""
        self.now.flags |= FLAG_GAPS

    @property
    def has_gaps(self):
        """Whether segments need not be contiguous."""
        return bool(self.now.flags & FLAG_GAPS)

    def mark_clean(self, int64_t segments=0):
        """Publish that the log is closed cleanly, with this number of segments (0: unknown).

        The caller flushes the region afterwards.
        """
        cdef Count what
        if self.can_publish():
            what.base = self.region.r.base
            what.segments = <uint32_t> segments
            kr_guard_call(_count_segments, &what)
        self.now.flags |= FLAG_CLEAN
        self.publish()


def read_standing(const uint8_t[::1] image):
    """Parse a state file; return its LogStanding, or None if it is invalid (wrong magic, torn, too short).

    `image`: a copy of the file, or its live mapping in another process.
    """
    cdef Standing copied
    cdef int64_t crc, sequence
    cdef const uint8_t *base
    cdef const StateHeader *header
    cdef const uint8_t *slot
    if image.shape[0] < STATE_SIZE:
        return None
    base = &image[0]
    header = <const StateHeader *> base
    if memcmp(base, MAGIC, 8) != 0:
        return None
    for _ in range(1000):
        sequence = kr_load_acquire(&header.sequence)
        slot = base + STATE_SLOT + (sequence & 1) * STATE_SLOT_STRIDE
        memcpy(&copied, slot, sizeof(Standing))
        memcpy(&crc, slot + sizeof(Standing), sizeof(crc))
        kr_fence_acquire()
        if kr_load_acquire(&header.sequence) == sequence:
            break
    else:
        return None
    if crc != checksum(<const uint8_t *> &copied, sizeof(Standing)):
        return None
    return LogStanding(
        copied.log_start_offset, copied.high_watermark, copied.last_stable_offset, copied.log_end_offset,
        copied.active_base_offset, copied.valid_length, copied.flush_offset, copied.leader_epoch,
        bytes(base[16:52]).decode("ascii", "replace").strip("\0 "), bool(copied.flags & FLAG_CLEAN),
        copied.flags >> CUT_SHIFT, bool(copied.flags & FLAG_GAPS), header.segments,
    )
