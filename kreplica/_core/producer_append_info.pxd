# ProducerAppendInfo: the state of one producer, and its part in one append: checked batch by batch, then handed to the
# ProducerStateManager.
#
# An entry does not change once a ProducerStateManager has it: each append replaces it. Nothing changes before
# `ProducerStateManager.update`, so a failed append leaves no trace. The rules are those of KIP-98 (idempotence and
# transactions), with KIP-360 (an epoch may rise at any time) and the marker rule of KIP-890's second version of
# transactions.
#
# Ownership: an append owns its ProducerAppendInfo until the manager of the log has it. Thread rule: under the log's
# lock; with a disk thread, under its offsets_lock.

from libc.stdint cimport int32_t, int64_t

from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch

cdef enum:
    # The batches that a producer may have in flight: it may repeat any of them after a lost answer.
    RETAINED = 5

cdef struct AppendedBatch:
    # A BatchMetadata.
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta

cdef struct ProducerState:
    # What changes of a producer, see ProducerStateEntry.
    int64_t last_timestamp
    int64_t current_txn_first_offset
    int32_t producer_epoch
    int32_t coordinator_epoch
    int32_t retained                        # the number of `batches`
    AppendedBatch batches[RETAINED]


cdef class Verification:
    cdef readonly int32_t producer_epoch
    cdef readonly int64_t lowest_sequence
    cdef readonly int64_t timestamp
    cdef readonly bint begins_at_zero


cdef class CompletedTxn:
    cdef readonly int64_t producer_id
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly bint is_aborted


cdef class ProducerStateEntry:
    cdef readonly int64_t producer_id
    cdef ProducerState now

    cdef bint has_open_transaction(self) noexcept
    # Return the index of the retained batch with exactly these sequence numbers, or -1.
    cdef int duplicate_at(self, int32_t epoch, int64_t first_sequence, int64_t last_sequence) noexcept
    # Return whether a batch up to `last_sequence` must have been appended before the retained ones.
    cdef bint is_before_retained(self, int64_t last_sequence) noexcept
    cdef object batch_at(self, int index)


cdef class ProducerAppendInfo(ProducerStateEntry):
    cdef object origin                      # an AppendOrigin
    cdef Verification given
    cdef Verification known
    cdef public bint voids_verification
    cdef readonly tuple started
    # In a PreparedRun: where the batch ends in its bytes, and the transaction that it ends, or None.
    cdef int64_t run_end
    cdef CompletedTxn ended

    cdef int begin(self, ProducerStateEntry current, object origin, Verification given, Verification known) except -1
    cpdef object follow(self, ProducerAppendInfo pending)
    # Add a batch of records with this header, which gets `base_offset`, as `append_data_batch`.
    cdef object append_records(self, const BatchHeader *h, int64_t base_offset)
    cdef object append_control_batch(self, RecordBatch batch, int64_t base_offset)
    cpdef object append_data_batch(
        self, int32_t epoch, int64_t first_sequence, int64_t last_sequence, int64_t last_timestamp,
        int64_t first_offset, int64_t last_offset, bint is_transactional)
    cpdef CompletedTxn append_end_txn_marker(
        self, int32_t epoch, int32_t coordinator_epoch, int64_t offset, int64_t timestamp, bint is_abort,
        int transaction_version=*)
    cpdef object append_emptied_marker(self, int32_t epoch, int64_t timestamp)
    # Raise unless a batch that begins a transaction was verified by the coordinator.
    cdef int check_verified(self, bint is_transactional, int32_t epoch, int64_t first_sequence,
                            int64_t offset) except -1
    cdef int check_epoch(self, int32_t epoch, int32_t least, int64_t offset) except -1
    cdef int check_sequence(self, int32_t epoch, int64_t first_sequence, int64_t last_sequence,
                            int64_t offset) except -1
    # The version of transactions in which the origin writes markers.
    cdef int transaction_version(self) noexcept
    cdef int begin_txn(self, bint is_transactional, int64_t first_offset) except -1
    # Continue in `epoch`. A new epoch begins its sequence numbers anew.
    cdef void set_epoch(self, int32_t epoch) noexcept
    cdef void retain(self, AppendedBatch batch) noexcept
    cdef str whose(self, int64_t offset)
    cpdef object forget_transaction(self)


# What `install` was given: the module of the error classes, and the AppendOrigin of followers.
cdef object errors()
cdef object replication()
