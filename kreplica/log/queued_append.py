"""The appends that an AppendQueue carries: a leader's batch, and what a follower fetched.

Each is one call of the core, made by the disk thread. The loop decides the rest at submission: it checks a
compressed batch and the producer's sequence numbers, against the log end that the appends in flight will
leave. If the log then ends elsewhere, the core declines the append.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplica._core.append_job import AppendJob, RunJob
from kreplica._core.records import RecordBatch, batches
from kreplica.common.errors import DecompressionTooLarge, KreplicaError, UnknownServerError
from kreplica.common.types import AppendOrigin
from kreplica.log.log_validator import BRIEF_BYTES, ValidBatch
from kreplica.log.producer_append_info import ProducerAppendInfo, ProducerStateEntry

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kreplica._core.log_append_info import LogAppendInfo
    from kreplica.log.append_queue import AppendQueue
    from kreplica.log.unified_log import UnifiedLog

LOGGER = logging.getLogger(__name__)


# The position of the producer id in a batch header; see docs/FORMATS.md.
PRODUCER_ID_BYTES = 8
PRODUCER_ID = slice(43, 43 + PRODUCER_ID_BYTES)


class LeaderAppend:
    """Appends a producer's batch to a log that this node leads in `leader_epoch`.

    `may_be_made()`: called when its turn comes; returns whether the log's owner still accepts the append.
    `appended(info)`: called once the batch is in the log, or with the error if the queue has given up.
    `declined()`: called if the caller has to append or refuse the batch.
    `connection`: see QueuedAppend.
    """

    __slots__ = (
        "_appended",
        "_checked",
        "_declined",
        "_job",
        "_leader_epoch",
        "_log",
        "_may_be_made",
        "_origin",
        "_producer",
        "_records",
        "check",
        "connection",
    )

    def __init__(
        self,
        log: UnifiedLog,
        records: Buffer,
        leader_epoch: int,
        origin: AppendOrigin,
        appended: Callable[[LogAppendInfo | KreplicaError], None],
        declined: Callable[[], None],
        may_be_made: Callable[[], bool] = lambda: True,
        connection: object = None,
    ) -> None:
        self._log = log
        self._records = records
        self._leader_epoch = leader_epoch
        self._origin = origin
        self._may_be_made = may_be_made
        self._appended = appended
        self._declined = declined
        self._job: AppendJob | None = None
        self._producer: ProducerAppendInfo | None = None
        # The check to run on another thread, if one is needed; then its result.
        self.check: Callable[[], None] | None = None
        self._checked: list[ValidBatch] | KreplicaError | None = None
        self.connection = connection

    @property
    def producer_id(self) -> int:
        """The producer id in the first batch's unchecked header; -1 if the batch is too short to have one."""
        field = memoryview(self._records).cast("B")[PRODUCER_ID]
        return int.from_bytes(field, "big", signed=True) if len(field) == PRODUCER_ID_BYTES else -1

    def _check(self) -> None:
        # Runs in any thread: the records and the validator are immutable.
        log = self._log
        try:
            self._checked = log.validator.validate_anew(self._records, log.time_ms(), self._origin)
        except KreplicaError as error:
            # Drop the traceback and the context: their frames keep the records alive.
            self._checked = error.with_traceback(None)
            error.__context__ = None
        except Exception as error:
            LOGGER.exception("%s: checking a batch failed; the producer gets an error", log.topic_partition)
            self._checked = UnknownServerError(repr(error))
        self.check = None

    def _valid(self) -> list[ValidBatch] | None:
        """Return the checked batches, or None if the check must first run on another thread.

        Raises like LogValidator.validate.
        """
        assert not isinstance(self._checked, KreplicaError)
        if self._checked is None:
            log = self._log
            try:
                if log.validator.is_brief(self._records):
                    return log.validator.validate_anew(
                        self._records,
                        log.time_ms(),
                        self._origin,
                        max_decompressed=min(BRIEF_BYTES, log.validator.max_decompressed),
                    )
            except DecompressionTooLarge:
                pass
            self.check = self._check
            return None
        if self._checked[0].append_time >= 0:
            # Other batches were appended since the check, so the append time is stale.
            now_ms = self._log.time_ms()
            self._checked = [each._replace(append_time=now_ms) for each in self._checked]
        return self._checked

    def make_job(self, queue: AppendQueue) -> AppendJob | None:
        self._producer = None
        if not self._may_be_made() or not self._log.may_append(self._leader_epoch):
            return None
        if isinstance(self._checked, KreplicaError):
            # The careful path reports this error in its turn, like the errors raised below. Raised here, it
            # would refer to this append and its records until the garbage collector runs.
            return None
        try:
            self._job = self._made(queue)
        except KreplicaError:
            self._job = None
        return self._job

    def _made(self, queue: AppendQueue) -> AppendJob | None:
        log = self._log
        job = log.plain_job(self._records, self._leader_epoch)
        batch: RecordBatch | None = None
        if job is None:
            found = self._valid()
            if found is None:
                return None
            batch = found[0].batch
            if len(found) > 1 or batch.is_control:
                return None
            job = AppendJob(
                found[0].data,
                log.active,
                log.state,
                self._leader_epoch,
                checked=True,
                append_time=found[0].append_time,
            )
        if job.producer_id >= 0:
            batch = batch or next(batches(self._records))
            if queue.end is None or not self._takes_in(queue, queue.end, batch):
                return None
            job.expect(queue.end)
        if queue.end is not None:
            queue.end += job.offset_count
        return job

    def _takes_in(self, queue: AppendQueue, offset: int, batch: RecordBatch) -> bool:
        """Return whether the batch continues its producer's sequence, including the appends in flight."""
        if batch.is_control or batch.is_transactional:
            return False
        known = queue.producers.get(batch.producer_id) or self._log.producers.last_entry(batch.producer_id)
        producer = ProducerAppendInfo(known or ProducerStateEntry(batch.producer_id), self._origin)
        if producer.append(batch, offset) is not None:
            # A duplicate of an earlier append.
            return False
        self._producer = queue.producers[batch.producer_id] = producer
        return True

    def note(self) -> None:
        job, producers = self._job, self._log.producers
        if self._producer is not None and job is not None and not job.status:
            producers.map_end_offset = max(producers.map_end_offset, job.info().last_offset + 1)
            producers.update(self._producer)

    def finish(self) -> None:
        assert self._job is not None
        # Release the job first: it holds the records, and the owner may keep this object.
        job, self._job = self._job, None
        self._appended(job.info())

    def give_up(self, error: KreplicaError) -> None:
        self._appended(error)

    def make_carefully(self) -> None:
        self._job = None
        if isinstance(self._checked, KreplicaError):
            self._appended(self._checked)
            return
        found = None if self._checked is None else self._valid()
        if found is not None:
            self._log.validator.expect(self._records, found)
        self._declined()


class FollowerAppend:
    """Appends records that a follower fetched from the leader of `leader_epoch`.

    `appended(info)`: called once all records are in the log.
    `declined(rest, info)`: called if the caller has to append `rest`. `info` describes the part that was
    appended, or is None.
    `with_care`: decline everything, so that the caller appends it all.
    """

    check = None  # the leader has checked it
    connection = None  # stays in order with all other appends
    producer_id = -1

    __slots__ = ("_appended", "_declined", "_info", "_job", "_leader_epoch", "_log", "_rest", "_with_care")

    def __init__(
        self,
        log: UnifiedLog,
        records: Buffer,
        leader_epoch: int,
        appended: Callable[[LogAppendInfo | KreplicaError | None], None],
        declined: Callable[[memoryview, LogAppendInfo | None], None],
        *,
        with_care: bool = False,
    ) -> None:
        self._log = log
        self._rest = memoryview(records)
        self._leader_epoch = leader_epoch
        self._appended = appended
        self._declined = declined
        self._with_care = with_care
        self._info: LogAppendInfo | None = None
        self._job: RunJob | None = None

    def make_job(self, queue: AppendQueue) -> RunJob | None:
        log = self._log
        queue.end = None
        # Refuse records of an older leader epoch than the log's latest.
        if self._with_care or log.leader_epoch > self._leader_epoch or not log.may_append(log.leader_epoch):
            return None
        has_transactions = log.producers.has_transactions
        self._job = RunJob(
            self._rest, log.active, log.state, log.leader_epoch, with_producers=not has_transactions
        )
        return self._job

    def note(self) -> None:
        job, producers = self._job, self._log.producers
        assert job is not None
        info = job.info()
        if info is None:
            return
        done, self._rest = self._rest[: job.bytes_used], self._rest[job.bytes_used :]
        self._info = info
        producers.map_end_offset = max(producers.map_end_offset, info.last_offset + 1)
        if job.has_producers:
            for batch in batches(done):
                producers.take_over(batch)

    def finish(self) -> None:
        self._job = None
        self._appended(self._info)

    def give_up(self, error: KreplicaError) -> None:
        self._appended(error)

    def make_carefully(self) -> None:
        self._job = None
        self._declined(self._rest, self._info)
