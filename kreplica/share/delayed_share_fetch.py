"""DelayedShareFetch: one fetch of a member, which waits while there is too little to acquire (KIP-932).

It reads its partitions from the next record that each can deliver, and acquires what it has read once that is
enough, or once its time is up. A partition is read and acquired in one step of the loop, so no other fetch
comes between. A step that makes records available tries the fetches that wait at the partition. Thread rule:
the loop of the share partitions' owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kreplica._core.records import batches as batches_in
from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future
from kreplica.common.share_state import SharePartitionKey
from kreplica.log.transaction_index import AbortedTxn
from kreplica.share.share_partition import AcquiredRecords, FetchedBatch, SharePartition

# A read asks for at least as many bytes as this, if the fetch has room for them.
LEAST_BYTES = 64 << 10
# A fetch reads a partition at most this often in one step: batches without records may come first.
MOST_READS = 16


class ShareFetchParams(NamedTuple):
    """What a member asks for. `is_exact`: exactly up to `max_records`, not whole batches."""

    group_id: str
    member_id: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    is_exact: bool


class SharePartitionData(NamedTuple):
    """The answer for a partition. `records`: whole batches; the member may use those `acquired`."""

    error: KreplicaError | None = None
    records: Any = b""
    acquired: Sequence[AcquiredRecords] = ()


class ReadBatches(NamedTuple):
    """Whole batches of a partition's log, from the one at `fetch_offset` on."""

    records: Any
    fetch_offset: int
    aborted: Sequence[AbortedTxn] | None

    @property
    def size(self) -> int:
        return len(self.records)


class ReadablePartition(Protocol):
    """A share partition that can be read; `share` is None until its state is read."""

    share: SharePartition | None
    waiters: dict[DelayedShareFetch, None]
    # The size of a record in what was read last.
    bytes_per_record: int

    def read(self, max_bytes: int, *, at_least_one: bool) -> ReadBatches | None:
        """Return what may be acquired next, or None. Raises KreplicaError."""
        ...

    def acquired(self) -> None:
        """Note that records were acquired, whose locks will end."""
        ...


# Returns the partition if this broker leads it. Raises KreplicaError.
Find = Callable[[SharePartitionKey], ReadablePartition]
FetchAnswer = dict[SharePartitionKey, SharePartitionData]


class DelayedShareFetch:
    """One fetch of the partitions `keys`, in this order. `try_again`: calls `try_complete` later.

    `handle`: that of its deadline, 0 if it does not wait.
    """

    __slots__ = ("_find", "_keys", "_try_again", "_waits_at", "errors", "future", "handle", "params")

    def __init__(
        self,
        params: ShareFetchParams,
        keys: Sequence[SharePartitionKey],
        find: Find,
        try_again: Callable[[DelayedShareFetch], None],
    ) -> None:
        self.params = params
        self.future: Future[FetchAnswer] = Future()
        self.handle = 0
        # The errors of partitions that have failed while it waited.
        self.errors: dict[SharePartitionKey, KreplicaError] = {}
        self._keys = keys
        self._find = find
        self._try_again = try_again
        self._waits_at: list[ReadablePartition] = []

    def try_complete(self, now_ms: int, *, is_last: bool = False) -> bool:
        """Answer if there is enough, or with what there is if `is_last`. Returns whether it is answered."""
        if self.future.done():
            return True
        answer: FetchAnswer = {key: SharePartitionData(error) for key, error in self.errors.items()}
        found = self._partitions(answer)
        if self.future.done():
            # A partition had another leader epoch, and its fetches were answered for that.
            return True
        # What is read may turn out to have no records for members; what follows it counts then.
        for _ in range(MOST_READS):
            read = self._read(found, answer)
            enough = min(self.params.min_bytes, self.params.max_bytes)
            if not (answer or is_last) and sum(each.size for each in read.values()) < enough:
                break
            self._acquire(found, read, answer, now_ms)
            if answer or not read:
                break
        else:
            # Let other work of the loop come first.
            self._try_again(self)
        if not answer and not is_last:
            self._wait_at(found.values())
            return False
        self._leave()
        self.future.set_result(answer)
        return True

    def give_up(self) -> None:
        """Wait no longer, and acquire nothing: the client is gone, or has sent another request."""
        self._leave()
        if not self.future.done():
            self.future.set_result({})

    def _partitions(self, answer: FetchAnswer) -> dict[SharePartitionKey, ReadablePartition]:
        found = {}
        for key in self._keys:
            if key in answer:
                continue
            try:
                found[key] = self._find(key)
            except KreplicaError as error:
                answer[key] = SharePartitionData(error)
        return found

    def _read(
        self, found: Mapping[SharePartitionKey, ReadablePartition], answer: FetchAnswer
    ) -> dict[SharePartitionKey, ReadBatches]:
        read: dict[SharePartitionKey, ReadBatches] = {}
        if self.params.max_records <= 0:
            return read
        left = self.params.max_bytes
        for key, partition in found.items():
            if key in answer or (left <= 0 and read):
                continue
            # Members allow many more bytes than the records that they ask for have, and each read is checked.
            likely = 2 * self.params.max_records * partition.bytes_per_record
            room = min(left, max(likely, self.params.min_bytes, LEAST_BYTES))
            try:
                data = partition.read(max(room, 0), at_least_one=not read)
            except KreplicaError as error:
                answer[key] = SharePartitionData(error)
                continue
            if data is not None:
                read[key] = data
                left -= data.size
        return read

    def _acquire(
        self,
        found: Mapping[SharePartitionKey, ReadablePartition],
        read: Mapping[SharePartitionKey, ReadBatches],
        answer: FetchAnswer,
        now_ms: int,
    ) -> None:
        params, left = self.params, self.params.max_records
        for key, data in read.items():
            if left <= 0:
                return
            partition = found[key]
            assert partition.share is not None
            fetched = fetched_batches(data, partition.share.end_offset + params.max_records)
            if fetched:
                count = fetched[-1][0].last_offset - fetched[0][0].first_offset + 1
                partition.bytes_per_record = fetched[-1][1] // count + 1
            acquired = partition.share.acquire(
                params.member_id,
                [each for each, _ in fetched],
                data.fetch_offset,
                now_ms,
                max_records=left,
                batch_size=params.batch_size,
                is_exact=params.is_exact,
            )
            if acquired:
                partition.acquired()
                left -= sum(last - first + 1 for first, last, _ in acquired)
                answer[key] = SharePartitionData(None, _only(data.records, fetched, acquired), acquired)

    def _wait_at(self, partitions: Any) -> None:
        if self._waits_at:
            return
        self._waits_at = list(partitions)
        for partition in self._waits_at:
            partition.waiters[self] = None

    def _leave(self) -> None:
        for partition in self._waits_at:
            partition.waiters.pop(self, None)
        self._waits_at = []


def fetched_batches(data: ReadBatches, last_offset: int) -> list[tuple[FetchedBatch, int]]:
    """Return the batches that were read up to the one with `last_offset`, each with the position of its end.

    No more can be acquired, and a read may have many more. Control batches are hidden, and those of aborted
    transactions if the read excludes them.
    """
    found = []
    end = 0
    for batch in batches_in(data.records):
        first, last = batch.base_offset, batch.last_offset
        end += batch.size
        is_hidden = batch.is_control
        if data.aborted and not is_hidden and batch.is_transactional:
            producer_id = batch.producer_id
            is_hidden = any(
                each.producer_id == producer_id and each.first_offset <= first <= each.last_offset
                for each in data.aborted
            )
        found.append((FetchedBatch(first, last, is_hidden), end))
        if last >= last_offset:
            break
    return found


def _only(
    records: Any, fetched: Sequence[tuple[FetchedBatch, int]], acquired: Sequence[AcquiredRecords]
) -> Any:
    """Return the batches from the one with the first acquired record to the one with the last."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    start = 0
    for batch, end in fetched:
        if batch.last_offset < first:
            start = end
        if batch.last_offset >= last:
            is_all = start == 0 and end == len(records)
            return records if is_all else memoryview(records)[start:end]
    raise AssertionError("acquired records that were not read")
