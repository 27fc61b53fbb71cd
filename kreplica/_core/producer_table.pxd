# ProducerTable: the entries of a log's producers in memory, and what appends that are under way make of them.
#
#     prepare_update --> ProducerAppendInfo --append--> checked --update--> the producer's entry
#
# A leader's appends pass PendingProducers, batch by batch; a follower's pass a PreparedRun, many at once. Both decide
# before the disk has the bytes, and record it afterwards, or not at all.
#
# Ownership: the log's ProducerStateManager, the table's subclass; the AppendQueue, the subclass of PendingProducers.
# Thread rule: under the log's lock; with a disk thread, under its offsets_lock.

from libc.stdint cimport int64_t

from kreplica._core.log_state cimport LogState
from kreplica._core.open_transactions cimport OpenTransactions
from kreplica._core.producer_append_info cimport CompletedTxn, ProducerAppendInfo, ProducerStateEntry, Verification
from kreplica._core.record_batch cimport BatchHeader
from kreplica._core.records cimport RecordBatch


cdef class PreparedRun:
    cdef readonly int64_t size
    # The first offset of the first transaction that begins there, or None.
    cdef readonly object begins_at
    # Of each batch with a producer, in order: a ProducerAppendInfo.
    cdef list changes


cdef class ProducerTable(OpenTransactions):
    cdef public dict _producers             # ProducerStateEntry by producer id, or None
    cdef public dict _verifications         # Verification by producer id; only a leader has them, not stored
    cdef public int64_t map_end_offset

    cpdef ProducerStateEntry last_entry(self, int64_t producer_id)
    cpdef ProducerAppendInfo prepare_update(self, int64_t producer_id, object origin, Verification verification=*)
    cpdef object update(self, ProducerAppendInfo appended)
    cpdef CompletedTxn take_over(self, RecordBatch batch)
    cpdef object take_over_run(self, object data)
    cpdef PreparedRun prepare_run(self, object data)
    cpdef object note_run(self, PreparedRun prepared, int64_t size)
    # Add a batch with a producer to the run. Return False if the run must end before it.
    cdef bint foresee(self, PreparedRun run, dict pending, RecordBatch batch) except -1
    # Call this with a prepared run before it is given to the disk. Readers of committed data stop before it meanwhile.
    cdef int begin_run(self, PreparedRun prepared, LogState state) except -1
    # ... and this once its first `size` bytes are in the log, and no more will be.
    cdef int end_run(self, PreparedRun prepared, int64_t size, LogState state) except -1


cdef class PendingProducers:
    # The log end, and the producers' states, once all appends in flight are done. The end is None if it cannot be known
    # in advance.
    cdef public object end
    cdef public dict producers

    cdef ProducerTable table(self)
    cdef ProducerAppendInfo prepare(self, int64_t producer_id, object origin, Verification verification)
    # As continue_sequence, for the batch with this header.
    cdef ProducerAppendInfo add_records(self, const BatchHeader *h, object origin, Verification verification)
    # Add a marker at `end`, whose batch has this header, to its producer's batches, including the appends in flight.
    # Return the producer's new state, whose `ended` is the transaction that ends. Return None if the transaction is
    # aborted, because its entry of the index has to be written first. Raises as append_end_txn_marker.
    cdef ProducerAppendInfo add_marker(self, const BatchHeader *h, object marker, object origin)
    cpdef object note_producer(self, ProducerAppendInfo producer, int64_t end)
