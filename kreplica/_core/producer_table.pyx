"""The producers of a log in memory; contract, ownership and thread rule: producer_table.pxd."""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int64_t, uint8_t

from kreplica._core.append_job cimport let_go, view_of
from kreplica._core.fields cimport LOG_PRODUCERS, QUEUE_LOG
from kreplica._core.log_state cimport LogState
from kreplica._core.open_transactions cimport OpenTransactions
from kreplica._core.producer_append_info cimport (
    CompletedTxn, ProducerAppendInfo, ProducerStateEntry, Verification, errors, replication,
)
from kreplica._core.record_batch cimport CONTROL, BatchHeader, parse_header
from kreplica._core.records cimport RecordBatch, wrap
from kreplica._core.status cimport OK

from kreplica._core.producer_append_info import OPEN_ALREADY as _OPEN_ALREADY


cdef class PreparedRun:
    """What the first `size` bytes of a follower's run change.

    `begins_at`: the first offset of the first transaction that begins there, or None.
    """


cdef class ProducerTable(OpenTransactions):
    """The entries of a log's producers.

    `map_end_offset`: all batches below it are accounted for. The caller of `update` sets it afterwards.
    """

    def __cinit__(self, *_arguments, **_options):
        self._verifications = {}

    cpdef ProducerStateEntry last_entry(self, int64_t producer_id):
        """Return the producer's entry, or None."""
        return None if self._producers is None else self._producers.get(producer_id)

    def start_verification(self, int64_t producer_id, int epoch, int64_t sequence, int64_t now_ms, *,
                           bint begins_at_zero):
        """Return what the first batch of a transaction needs to be appended (KIP-890).

        OPEN_ALREADY if the transaction is open; otherwise the object that is valid once the coordinator has confirmed
        the transaction, the same for all batches that wait for that. Raises InvalidProducerEpoch.
        """
        cdef ProducerStateEntry entry = self.last_entry(producer_id)
        cdef Verification known
        if entry is not None:
            if epoch < entry.now.producer_epoch:
                raise errors().InvalidProducerEpoch(
                    f"producer {producer_id}: epoch {epoch}, where {entry.now.producer_epoch} is the least"
                )
            if entry.has_open_transaction() and epoch == entry.now.producer_epoch:
                return _OPEN_ALREADY
        known = self._verifications.get(producer_id)
        if known is None or known.producer_epoch != epoch:
            known = Verification(epoch, sequence, now_ms, begins_at_zero=begins_at_zero)
            self._verifications[producer_id] = known
        known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known

    cpdef ProducerAppendInfo prepare_update(self, int64_t producer_id, object origin, Verification verification=None):
        """Begin the producer's part of an append. Nothing changes before `update`.

        `verification`: the one of a transactional batch, None to check none.
        """
        cdef ProducerAppendInfo info = ProducerAppendInfo.__new__(ProducerAppendInfo)
        cdef ProducerStateEntry current = self.last_entry(producer_id)
        assert producer_id >= 0, producer_id
        info.begin(
            ProducerStateEntry(producer_id) if current is None else current, origin, verification,
            self._verifications.get(producer_id) if self._verifications else None)
        return info

    cpdef object update(self, ProducerAppendInfo appended):
        """Record that the batches of `appended` are in the log."""
        if self._producers is None:
            self._producers = {}
        self._producers[appended.producer_id] = appended
        if appended.voids_verification and self._verifications:
            self._verifications.pop(appended.producer_id, None)
        if appended.started:
            if self.ongoing is None:
                self.ongoing = {}
            for first_offset in appended.started:
                self.ongoing[first_offset] = appended.producer_id

    def note_end(self, CompletedTxn ended, LogState state not None):
        """Record that a marker is in the log, which ends that transaction, if it is not None.

        An aborted transaction has to be in the index before.
        """
        if ended is not None:
            assert not ended.is_aborted, ended
            self.complete_txn(ended)
        self.publish(state)

    # ---- batches that are in the log, or are about to be ------------------------------------------------------

    cpdef CompletedTxn take_over(self, RecordBatch batch):
        """Add a batch that is in the log already, unchecked. Return the transaction that it ends, or None."""
        cdef ProducerAppendInfo info
        if batch.h.producer_id < 0:
            return None
        info = self.prepare_update(batch.h.producer_id, replication())
        done = info.append(batch, batch.h.base_offset)
        self.update(info)
        return done

    cpdef object take_over_run(self, object data):
        """Add the batches of `data`, which are in the log already, unchecked.

        None is a control batch or transactional. The result is that of `take_over` for each batch.
        """
        cdef Py_buffer *view = view_of(data)
        cdef int64_t used = 0
        cdef BatchHeader h
        cdef ProducerAppendInfo info
        try:
            while parse_header(<const uint8_t *> view.buf + used, view.len - used, &h) == OK:
                if h.producer_id >= 0:
                    info = self.prepare_update(h.producer_id, replication())
                    info.append_records(&h, h.base_offset)
                    self.update(info)
                used += h.size
        finally:
            let_go(view)

    cpdef PreparedRun prepare_run(self, object data):
        """Decide what the batches of `data` will change, which a follower is about to append, unchecked.

        The result ends at the first batch that needs more than `note_run`: one that ends an aborted transaction, since
        its entry of the index is written first, or one that is refused.
        """
        cdef PreparedRun run = PreparedRun.__new__(PreparedRun)
        cdef Py_buffer *view = view_of(data)
        cdef RecordBatch batch
        cdef BatchHeader h
        cdef dict pending = {}
        run.changes = []
        try:
            while parse_header(<const uint8_t *> view.buf + run.size, view.len - run.size, &h) == OK:
                if h.producer_id >= 0:
                    batch = wrap(data, <const uint8_t *> view.buf + run.size, h.size, False)
                    if not self.foresee(run, pending, batch):
                        break
                elif h.attributes & CONTROL:
                    break
                run.size += h.size
        except errors().KreplicaError:
            # The batch is refused, with this error, when its turn comes.
            pass
        finally:
            let_go(view)
        return run

    cdef bint foresee(self, PreparedRun run, dict pending, RecordBatch batch) except -1:
        cdef ProducerAppendInfo info = self.prepare_update(batch.h.producer_id, replication())
        cdef ProducerAppendInfo before = pending.get(batch.h.producer_id)
        if before is not None:
            info.follow(before)
        info.ended = info.append(batch, batch.h.base_offset)
        if info.ended is not None and info.ended.is_aborted:
            return False
        pending[batch.h.producer_id] = info
        info.run_end = run.size + batch.h.size
        run.changes.append(info)
        if info.started and run.begins_at is None:
            run.begins_at = info.started[0]
        return True

    cpdef object note_run(self, PreparedRun prepared, int64_t size):
        """Record that the first `size` bytes of a prepared run are in the log."""
        cdef ProducerAppendInfo info
        for info in prepared.changes:
            if info.run_end > size:
                break
            self.update(info)
            if info.ended is not None:
                self.complete_txn(info.ended)

    cdef int begin_run(self, PreparedRun prepared, LogState state) except -1:
        if prepared.begins_at is not None:
            self.beginning = prepared.begins_at
            state.stable = False
        return 0

    cdef int end_run(self, PreparedRun prepared, int64_t size, LogState state) except -1:
        self.beginning = None
        self.note_run(prepared, size)
        return self.publish(state)


cdef class PendingProducers:
    """The producers' states once all appends in flight are done. A subclass has the attribute `log`, a UnifiedLog."""

    def __cinit__(self, *_arguments, **_options):
        self.producers = {}

    cdef ProducerTable table(self):
        return LOG_PRODUCERS.of(QUEUE_LOG.of(self))

    cdef ProducerAppendInfo prepare(self, int64_t producer_id, object origin, Verification verification):
        # Return the producer's state at `end`, to be changed by one append.
        cdef ProducerAppendInfo producer = self.table().prepare_update(producer_id, origin, verification)
        cdef ProducerAppendInfo pending = self.producers.get(producer_id)
        if pending is not None:
            producer.follow(pending)
        return producer

    def continue_sequence(self, RecordBatch batch not None, origin, Verification verification=None):
        """Add a batch at `end` to its producer's sequence, which includes the appends in flight.

        Return the producer's new state, for `note_producer`, or None for a duplicate of an earlier batch.
        `verification`: as in UnifiedLog.append_as_leader. Raises as ProducerAppendInfo.append_data_batch. Call with
        offsets_lock.
        """
        return self.add_records(&batch.h, origin, verification)

    cdef ProducerAppendInfo add_records(self, const BatchHeader *h, object origin, Verification verification):
        cdef ProducerAppendInfo producer = self.prepare(h.producer_id, origin, verification)
        assert self.end is not None
        if producer.append_records(h, self.end) is not None:
            return None
        self.producers[h.producer_id] = producer
        return producer

    cdef ProducerAppendInfo add_marker(self, const BatchHeader *h, object marker, object origin):
        cdef ProducerAppendInfo producer = self.prepare(h.producer_id, origin, None)
        assert self.end is not None
        producer.ended = producer.append_end_txn_marker(
            h.producer_epoch, marker.coordinator_epoch, self.end, h.max_timestamp, not marker.commit,
            producer.transaction_version())
        if producer.ended is not None and producer.ended.is_aborted:
            return None
        self.producers[h.producer_id] = producer
        return producer

    cpdef object note_producer(self, ProducerAppendInfo producer, int64_t end):
        """Record that a producer's batch is in the log, which ends at `end`. Call with offsets_lock."""
        cdef ProducerTable table = self.table()
        if table.map_end_offset < end:
            table.map_end_offset = end
        table.update(producer)
