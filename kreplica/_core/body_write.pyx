"""Writes a large batch's records past the mapping, see body_write.pxd.

The page cache is shared, so readers of the mapping see what the call has written. The header is written last, through
the mapping as always: until its length is there, readers do not take the bytes after it for a batch.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from kreplica._core.crc32c cimport crc32c, crc32c_copy
from kreplica._core.log_segment cimport BODY_WRITTEN, CHECK_RECORDS, WRITES_BODY, Append
from kreplica._core.record_batch cimport CODEC_MASK, HEADER_SIZE, RecordScan, scan_records
from kreplica._core.region cimport Region, kr_guard_call, load_length
from kreplica._core.status cimport BAD_CRC, NEEDS_LOOK, OK

cdef enum:
    # For smaller batches a call costs as much as the page faults.
    LEAST_BYTES = 65536
    CRC_FROM = 21


cdef int _check_source(void *argument) noexcept nogil:
    # Check everything before writing: what _copy_batch would reject or change.
    cdef Append *a = <Append *> argument
    cdef RecordScan found
    cdef int status
    if crc32c(a.data + CRC_FROM, a.header.size - CRC_FROM) != a.header.crc:
        return BAD_CRC
    if a.flags & CHECK_RECORDS and a.header.attributes & CODEC_MASK == 0:
        status = scan_records(a.data + HEADER_SIZE, a.header.size - HEADER_SIZE, &a.header, True, &found)
        if status != OK:
            return status
        if found.max_timestamp != a.header.max_timestamp:
            return NEEDS_LOOK
    return OK


cdef void write_body(Region region, Append *a) noexcept nogil:
    a.flags &= ~BODY_WRITTEN
    if not a.flags & WRITES_BODY or a.header.size < LEAST_BYTES or a.append_time >= 0:
        return
    if kr_guard_call(_check_source, a) != OK:
        return
    if region.write_aside(load_length(&region.r) + HEADER_SIZE, a.header.size - HEADER_SIZE, a.data + HEADER_SIZE) == 0:
        a.flags = (a.flags | BODY_WRITTEN) & ~CHECK_RECORDS


cdef bint copy_body(uint8_t *target, const Append *a) noexcept nogil:
    if a.flags & BODY_WRITTEN:
        memcpy(target + CRC_FROM, a.data + CRC_FROM, HEADER_SIZE - CRC_FROM)
        return True
    return crc32c_copy(target + CRC_FROM, a.data + CRC_FROM, a.header.size - CRC_FROM) == a.header.crc
