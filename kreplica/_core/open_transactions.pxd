# OpenTransactions: the transactions of one log that bound its last stable offset.
#
#     first batch --> beginning, ongoing --marker--> unreplicated --high watermark above the marker--> forgotten
#
# Readers of committed data stop at the first of their offsets. Ownership: the log's ProducerStateManager, which is a
# subclass by way of ProducerTable. Thread rule: under the log's lock; with a disk thread, under its offsets_lock.

from libc.stdint cimport int64_t

from kreplica._core.log_state cimport LogState
from kreplica._core.producer_append_info cimport CompletedTxn


cdef class OpenTransactions:
    # Transactions without a marker: first offset -> producer id, in the order of the offsets. None without any.
    cdef public dict ongoing
    # The first offset of a transaction whose first batch is being appended, or None.
    cdef public object beginning
    # Completed transactions above the high watermark: (first offset, offset of the marker), sorted.
    cdef public list _unreplicated

    cpdef object complete_txn(self, CompletedTxn completed)
    cpdef object on_high_watermark_updated(self, int64_t high_watermark)
    cdef object first_unstable(self)
    cdef object first_undecided(self)
    cdef int publish(self, LogState state) except -1
    cdef int advance(self, LogState state, int64_t high_watermark) except -1
