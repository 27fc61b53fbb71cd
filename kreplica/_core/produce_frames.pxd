# A producer's request of one batch, and the plain answer to it; the functions are in produce_frames.pyx.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    PLAIN_VERSION = 11             # of requests without a transaction
    # The most bytes of a request before its batch, if its client id has at most 32 and its topic 249, as Kafka allows,
    # and no transactional id. A longer head is copied with its batch.
    MOST_HEAD_BYTES = 352
    # The counts of unknown fields, behind the batch: of the partition, the topic and the request.
    TAIL_BYTES = 3

cdef struct produce_t:
    int32_t number                # of the request
    int version
    int acks
    int32_t timeout_ms
    int64_t batch_size


# Return the size of the request's bytes before its batch. `name`: the partition's wire name. `transactional`: the
# transactional id, or None.
cdef int64_t head_size(const produce_t *request, bytes client_id, bytes transactional, bytes name) except -1
# Write these bytes, which include the size of the whole frame.
cdef int write_head(
    uint8_t *p, const produce_t *request, bytes client_id, bytes transactional, bytes name) except -1
