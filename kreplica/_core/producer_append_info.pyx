"""The state of one producer, and its part in one append; contract and thread rule: producer_append_info.pxd."""

cimport cython
from libc.stdint cimport INT16_MAX, INT32_MAX, int32_t, int64_t, uint8_t

from kreplica._core.big_endian cimport load16, load32
from kreplica._core.record cimport NO_OFFSET, check_fault
from kreplica._core.record_batch cimport (
    CONTROL, TRANSACTIONAL, BatchHeader, RecordScan, RecordView, parse_record, scan_records,
)
from kreplica._core.records cimport RecordBatch
from kreplica._core.status cimport OK

from collections import namedtuple

BATCHES_TO_RETAIN = RETAINED

cdef enum:
    NO_EPOCH = -1                      # of a producer or a coordinator
    NO_SEQUENCE = -1
    NO_TIMESTAMP = -1
    SECOND_VERSION = 2                 # of transactions: each has its own epoch (KIP-890)
    # A marker is a record with key: version, type (int16 each); value: version (int16), coordinator epoch (int32).
    MARKER_KEY_BYTES = 4
    MARKER_VALUE_BYTES = 6
    ABORT = 0
    COMMIT = 1

cdef object _errors = None
cdef object _client = None
cdef object _second = None
cdef object _replication = None
cdef object _decide_marker = None


def install(errors not None, origins not None, decide_marker not None):
    """Use these from now on; the core does not know them.

    `errors`: the module of the error classes. `origins`: the AppendOrigins. `decide_marker(batch)`: returns what a
    control batch with a record says if that is not simply the end of a transaction: the EndTransactionMarker, or None.
    """
    global _errors, _client, _second, _replication, _decide_marker
    _errors, _decide_marker = errors, decide_marker
    _client, _second, _replication = origins.CLIENT, origins.COORDINATOR_TV2, origins.REPLICATION


cdef object errors():
    return _errors


cdef object replication():
    return _replication


cdef inline int64_t add(int64_t sequence, int64_t count) noexcept nogil:
    return (sequence + count) & INT32_MAX


def add_sequence(int64_t sequence, int64_t count):
    """Return the sequence number `count` steps after `sequence`; after INT32_MAX comes 0."""
    return add(sequence, count)


class BatchMetadata(namedtuple("BatchMetadata", ("last_sequence", "last_offset", "offset_delta", "timestamp"))):
    """An appended batch. `offset_delta`: its last offset less its first; its sequences span the same."""

    __slots__ = ()

    @property
    def first_sequence(self):
        """The sequence number of the first record."""
        return add_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self):
        """The offset of the first record."""
        return self.last_offset - self.offset_delta


@cython.final
cdef class Verification:
    """Proof that the coordinator knows the transaction of a producer in one epoch (KIP-890).

    A transaction's first batch is appended only with the object under which the coordinator was asked. The end of a
    transaction, and its first batch, make the object void, so a batch that was delayed past the end cannot open it anew
    (KAFKA-14402, KAFKA-14884). `lowest_sequence`: the lowest first sequence among the batches that wait for the answer;
    a transaction begins with it (KAFKA-14920). `begins_at_zero`: an unknown producer begins at sequence 0, since each
    transaction has its own epoch (transaction version 2).
    """

    def __init__(self, int32_t producer_epoch, int64_t lowest_sequence, int64_t timestamp, *, bint begins_at_zero):
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        self.timestamp = timestamp
        self.begins_at_zero = begins_at_zero


# For a batch whose transaction was open already when its request arrived: nothing had to be verified.
OPEN_ALREADY = Verification(NO_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, begins_at_zero=False)


@cython.final
cdef class CompletedTxn:
    """A transaction that a marker ended. `last_offset`: the marker's offset."""

    def __init__(self, int64_t producer_id, int64_t first_offset, int64_t last_offset, bint is_aborted):
        self.producer_id = producer_id
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.is_aborted = is_aborted

    def __eq__(self, other):
        cdef CompletedTxn those
        if type(other) is not CompletedTxn:
            return NotImplemented
        those = other
        return (self.producer_id == those.producer_id and self.first_offset == those.first_offset
                and self.last_offset == those.last_offset and self.is_aborted == those.is_aborted)

    def __hash__(self):
        return hash((self.producer_id, self.first_offset, self.last_offset, self.is_aborted))

    def __repr__(self):
        return (f"CompletedTxn(producer_id={self.producer_id}, first_offset={self.first_offset}, "
                f"last_offset={self.last_offset}, is_aborted={bool(self.is_aborted)})")


cdef class ProducerStateEntry:
    """The state of one producer.

    `batches`: the last batches of this epoch, at most five, oldest first. `current_txn_first_offset`: the first offset
    of the open transaction, or -1. `last_timestamp`: that of the last batch or transaction marker, or -1.
    """

    def __init__(self, int64_t producer_id, int32_t producer_epoch=NO_EPOCH, int32_t coordinator_epoch=NO_EPOCH,
                 int64_t last_timestamp=NO_TIMESTAMP, int64_t current_txn_first_offset=-1, tuple batches not None=()):
        cdef AppendedBatch *batch
        if len(batches) > RETAINED:
            raise ValueError(f"{len(batches)} batches: at most {RETAINED} are retained")
        self.producer_id = producer_id
        self.now.producer_epoch = producer_epoch
        self.now.coordinator_epoch = coordinator_epoch
        self.now.last_timestamp = last_timestamp
        self.now.current_txn_first_offset = current_txn_first_offset
        self.now.retained = 0
        for each in batches:
            batch = &self.now.batches[self.now.retained]
            batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp = each
            self.now.retained += 1

    @property
    def producer_epoch(self):
        """The epoch of its last batch or marker, or -1."""
        return self.now.producer_epoch

    @property
    def coordinator_epoch(self):
        """That of its last marker, or -1."""
        return self.now.coordinator_epoch

    @property
    def last_timestamp(self):
        """The timestamp of its last batch or marker, or -1."""
        return self.now.last_timestamp

    @property
    def current_txn_first_offset(self):
        """The first offset of the open transaction, or -1."""
        return self.now.current_txn_first_offset

    @property
    def batches(self):
        """The last batches of this epoch, at most five, oldest first."""
        return tuple([self.batch_at(index) for index in range(self.now.retained)])

    @property
    def last_sequence(self):
        """The sequence number of the last record, or -1 if this epoch has no record yet."""
        return self.now.batches[self.now.retained - 1].last_sequence if self.now.retained else NO_SEQUENCE

    @property
    def last_data_offset(self):
        """The offset of the last record, or -1 if this epoch has no record yet."""
        return self.now.batches[self.now.retained - 1].last_offset if self.now.retained else NO_OFFSET

    @property
    def last_offset_delta(self):
        """The offset of the last record less that of the first one in its batch."""
        return self.now.batches[self.now.retained - 1].offset_delta if self.now.retained else 0

    @property
    def in_transaction(self):
        """Whether it has an open transaction."""
        return self.has_open_transaction()

    def __repr__(self):
        return (f"{type(self).__name__}(batches={self.batches!r}, coordinator_epoch={self.now.coordinator_epoch}, "
                f"current_txn_first_offset={self.now.current_txn_first_offset}, "
                f"last_timestamp={self.now.last_timestamp}, producer_epoch={self.now.producer_epoch}, "
                f"producer_id={self.producer_id})")

    cdef bint has_open_transaction(self) noexcept:
        return self.now.current_txn_first_offset != NO_OFFSET

    cdef object batch_at(self, int index):
        cdef AppendedBatch *batch = &self.now.batches[index]
        return BatchMetadata(batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp)

    cdef int duplicate_at(self, int32_t epoch, int64_t first_sequence, int64_t last_sequence) noexcept:
        cdef AppendedBatch *batch
        cdef int index
        if epoch != self.now.producer_epoch:
            return -1
        for index in range(self.now.retained):
            batch = &self.now.batches[index]
            if (last_sequence == batch.last_sequence
                    and first_sequence == add(batch.last_sequence, -<int64_t> batch.offset_delta)):
                return index
        return -1

    cdef bint is_before_retained(self, int64_t last_sequence) noexcept:
        # This is certain only if five batches are retained: a producer has at most five in flight, so an earlier one
        # was answered or is being repeated. With fewer, the log may have missed it.
        cdef AppendedBatch *oldest = &self.now.batches[0]
        if self.now.retained < RETAINED:
            return False
        return 0 < add(oldest.last_sequence, -last_sequence - oldest.offset_delta) <= INT32_MAX // 2


@cython.final
@cython.no_gc
cdef class ProducerAppendInfo(ProducerStateEntry):
    """The entry of a producer as one append changes it, batch by batch.

    `given`: the verification that came with a transactional batch, None to check none. `known`: the valid one of this
    producer, if there is one. `voids_verification`: whether the append ends its validity. `started`: the first offsets
    of the transactions that the append begins.
    """

    def __init__(self, ProducerStateEntry current not None, origin, Verification given=None, Verification known=None):
        self.begin(current, origin, given, known)

    cdef int begin(self, ProducerStateEntry current, object origin, Verification given, Verification known) except -1:
        self.producer_id = current.producer_id
        self.now = current.now
        self.origin = origin
        self.given = given
        self.known = known
        self.started = ()
        return 0

    cpdef object follow(self, ProducerAppendInfo pending):
        """Continue after `pending`, which is not recorded yet.

        A verification that it makes void is not valid any longer.
        """
        self.now = pending.now
        if pending.voids_verification:
            self.known, self.voids_verification = None, True

    def append(self, RecordBatch batch not None, int64_t base_offset):
        """Check a batch that gets `base_offset`, and add it.

        Returns the transaction that it ends. If it repeats an earlier batch, returns that one and changes nothing.
        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, DuplicateSequenceNumber, InvalidTxnState,
        TransactionCoordinatorFenced, CorruptMessage.
        """
        if batch.h.attributes & CONTROL:
            return self.append_control_batch(batch, base_offset)
        return self.append_records(&batch.h, base_offset)

    cdef object append_records(self, const BatchHeader *h, int64_t base_offset):
        # A group coordinator writes the offsets of a transaction without sequence numbers.
        cdef bint is_numbered = h.base_sequence != NO_SEQUENCE
        return self.append_data_batch(
            h.producer_epoch, h.base_sequence,
            add(h.base_sequence, h.last_offset_delta) if is_numbered else NO_SEQUENCE,
            h.max_timestamp, base_offset, base_offset + h.last_offset_delta, h.attributes & TRANSACTIONAL != 0)

    cdef object append_control_batch(self, RecordBatch batch, int64_t base_offset):
        cdef const uint8_t *records = NULL
        cdef int64_t size = 0
        cdef RecordView first
        cdef RecordScan found
        cdef int32_t coordinator_epoch = 0
        cdef bint is_abort = False
        cdef object keeper = batch.section(batch.max_decompressed, &records, &size)
        cdef bint is_plain = scan_records(records, size, &batch.h, False, &found) == OK
        if is_plain and batch.h.record_count == 0:
            self.append_emptied_marker(batch.h.producer_epoch, batch.h.max_timestamp)
            return None
        is_plain = (
            is_plain and parse_record(records, size, &first, &size) == OK
            and first.key != NULL and first.key_size >= MARKER_KEY_BYTES and load16(first.key) >= 0
            and ABORT <= load16(first.key + 2) <= COMMIT
            and first.value != NULL and first.value_size >= MARKER_VALUE_BYTES and load16(first.value) >= 0)
        if is_plain:
            is_abort = load16(first.key + 2) == ABORT
            coordinator_epoch = load32(first.value + 2)
            check_fault(batch.fault)
        del keeper
        if not is_plain:
            marker = _decide_marker(batch)
            if marker is None:
                # Other control batches do not concern producers.
                return None
            is_abort, coordinator_epoch = not marker.commit, marker.coordinator_epoch
        return self.append_end_txn_marker(
            batch.h.producer_epoch, coordinator_epoch, base_offset, batch.h.max_timestamp, is_abort,
            self.transaction_version())

    cpdef object append_data_batch(self, int32_t epoch, int64_t first_sequence, int64_t last_sequence,
                                   int64_t last_timestamp, int64_t first_offset, int64_t last_offset,
                                   bint is_transactional):
        """Add a batch of records; call it in the order of the log.

        If a client repeats one of its last five batches, returns that one and changes nothing: the caller appends
        nothing and answers with its offsets. Otherwise returns None.

        Raises InvalidProducerEpoch, OutOfOrderSequenceNumber, DuplicateSequenceNumber, InvalidTxnState.
        """
        cdef int retained = self.now.retained
        cdef int duplicate
        if (retained == 0 or epoch != self.now.producer_epoch
                or first_sequence != <int64_t> self.now.batches[retained - 1].last_sequence + 1):
            # The batch does not simply continue the sequence, but may still be valid.
            if self.origin is _client:
                duplicate = self.duplicate_at(epoch, first_sequence, last_sequence)
                if duplicate >= 0:
                    return self.batch_at(duplicate)
                self.check_epoch(epoch, self.now.producer_epoch, first_offset)
                self.check_verified(is_transactional, epoch, first_sequence, first_offset)
                self.check_sequence(epoch, first_sequence, last_sequence, first_offset)
            else:
                self.check_epoch(epoch, self.now.producer_epoch, first_offset)
                self.check_verified(is_transactional, epoch, first_sequence, first_offset)
            self.set_epoch(epoch)
        else:
            self.check_verified(is_transactional, epoch, first_sequence, first_offset)
        self.voids_verification = self.voids_verification or is_transactional
        if is_transactional != self.has_open_transaction():
            self.begin_txn(is_transactional, first_offset)
        self.retain(AppendedBatch(
            last_offset=last_offset, timestamp=last_timestamp, last_sequence=<int32_t> last_sequence,
            offset_delta=<int32_t> (last_offset - first_offset)))
        self.now.last_timestamp = last_timestamp
        return None

    cpdef CompletedTxn append_end_txn_marker(self, int32_t epoch, int32_t coordinator_epoch, int64_t offset,
                                             int64_t timestamp, bint is_abort, int transaction_version=0):
        """Add a transaction marker; return the transaction that it ended, or None if none was open.

        From transaction version 2 on the coordinator raises the epoch with each transaction it ends. So a marker with
        the open transaction's own epoch is a late one of the previous transaction. Without an open transaction it may
        be a repeated marker (KAFKA-19999). The greatest epoch cannot be raised.

        Raises InvalidProducerEpoch, TransactionCoordinatorFenced.
        """
        cdef bint is_second = transaction_version >= SECOND_VERSION
        cdef bint is_open = self.has_open_transaction()
        cdef int32_t least = self.now.producer_epoch + (is_second and is_open)
        cdef CompletedTxn completed = None
        self.check_epoch(epoch, min(least, <int32_t> INT16_MAX), offset)
        if coordinator_epoch < self.now.coordinator_epoch and self.origin is not _replication:
            raise _errors.TransactionCoordinatorFenced(
                f"{self.whose(offset)}: marker of coordinator epoch {coordinator_epoch}, "
                f"after one of {self.now.coordinator_epoch}"
            )
        if is_open:
            completed = CompletedTxn.__new__(CompletedTxn)
            completed.producer_id, completed.first_offset = self.producer_id, self.now.current_txn_first_offset
            completed.last_offset, completed.is_aborted = offset, is_abort
        # A later marker of version 2 belongs to the transaction before the one that is being verified.
        if not (is_second and self.known is not None and epoch == self.known.producer_epoch):
            self.voids_verification = True
        self.set_epoch(epoch)
        self.now.coordinator_epoch = coordinator_epoch
        self.now.last_timestamp = timestamp
        self.now.current_txn_first_offset = NO_OFFSET
        return completed

    cpdef object append_emptied_marker(self, int32_t epoch, int64_t timestamp):
        """Add a control batch whose marker a cleaner has removed; only its epoch still counts."""
        if epoch > self.now.producer_epoch:
            self.set_epoch(epoch)
        self.now.last_timestamp = timestamp

    cpdef object forget_transaction(self):
        """End the open transaction without a marker."""
        self.now.current_txn_first_offset = NO_OFFSET

    cdef int check_verified(self, bint is_transactional, int32_t epoch, int64_t first_sequence,
                            int64_t offset) except -1:
        cdef int64_t greatest
        if self.given is None or not is_transactional:
            return 0
        if self.has_open_transaction() and epoch == self.now.producer_epoch:
            return 0
        if self.given is not self.known or self.known.producer_epoch != epoch:
            raise _errors.InvalidTxnState(f"{self.whose(offset)}: the coordinator does not know its transaction")
        greatest = self.known.lowest_sequence
        if self.known.begins_at_zero and self.now.producer_epoch == NO_EPOCH:
            greatest = min(greatest, 0)
        if first_sequence > greatest:
            raise _errors.OutOfOrderSequenceNumber(
                f"{self.whose(offset)}: the transaction begins at sequence {greatest}, not {first_sequence}"
            )
        return 0

    cdef int check_epoch(self, int32_t epoch, int32_t least, int64_t offset) except -1:
        # A follower accepts what its leader appended: the leader has checked it.
        if epoch < least and self.origin is not _replication:
            raise _errors.InvalidProducerEpoch(f"{self.whose(offset)}: epoch {epoch}, where {least} is the least")
        return 0

    cdef int check_sequence(self, int32_t epoch, int64_t first_sequence, int64_t last_sequence,
                            int64_t offset) except -1:
        cdef int64_t expected = 0
        if self.now.producer_epoch == NO_EPOCH:
            return 0  # an unknown or expired producer may be anywhere in its sequence
        if epoch == self.now.producer_epoch and self.now.retained:
            expected = add(self.now.batches[self.now.retained - 1].last_sequence, 1)
        if first_sequence == expected:
            return 0
        if epoch == self.now.producer_epoch and self.is_before_retained(last_sequence):
            raise _errors.DuplicateSequenceNumber(
                f"{self.whose(offset)}: sequence {first_sequence} to {last_sequence} of epoch {epoch} was "
                f"appended before, too long ago to name its offset"
            )
        raise _errors.OutOfOrderSequenceNumber(
            f"{self.whose(offset)}: sequence {first_sequence} of epoch {epoch}, where {expected} is next"
        )

    cdef int transaction_version(self) noexcept:
        return SECOND_VERSION if self.origin is _second else 0

    cdef int begin_txn(self, bint is_transactional, int64_t first_offset) except -1:
        if not is_transactional:
            raise _errors.InvalidTxnState(f"{self.whose(first_offset)} writes outside of its open transaction")
        self.now.current_txn_first_offset = first_offset
        self.started = (*self.started, first_offset)
        return 0

    cdef void set_epoch(self, int32_t epoch) noexcept:
        if epoch != self.now.producer_epoch:
            self.now.producer_epoch = epoch
            self.now.retained = 0

    cdef void retain(self, AppendedBatch batch) noexcept:
        cdef int index
        if self.now.retained == RETAINED:
            for index in range(1, RETAINED):
                self.now.batches[index - 1] = self.now.batches[index]
            self.now.retained -= 1
        self.now.batches[self.now.retained] = batch
        self.now.retained += 1

    cdef str whose(self, int64_t offset):
        return f"producer {self.producer_id} at offset {offset}"
