"""Dead letters: the records that a share group has rejected or could not process, in a topic (KIP-1191).

    SharePartition ──take_letters──▶ DeadLetters ──batch──▶ DeadLetterTopics ──▶ leader in the topic
          ▲                               │
          └────────settle_letters─────────┘

A dead letter has headers that name the record, its group and the cause, and if the group wants a copy, the
record's key, value and headers too. The record is archived after its letter is on all in-sync replicas. A
leader that fails in between leaves it to the next one, so a letter may be written twice. Letters that cannot
be written are tried again, at longer and longer intervals, and hold their place among the records in flight.
If there is no room for other records after `PATIENCE_MS`, the oldest are archived without a letter, which is
logged with their offsets: a group never stops for its dead letters. Thread rule: the loop of the share
partitions' owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from kreplica._core.batch_builder import BatchBuilder
from kreplica._core.records import batches as batches_in
from kreplica.common.errors import (
    InvalidConfig,
    KreplicaError,
    LeaderNotAvailable,
    MessageTooLarge,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kreplica.common.future import Future, failed
from kreplica.common.leader_and_isr import NO_LEADER
from kreplica.common.ports import Cancellable, Clock, Loop, monotonic_ms
from kreplica.common.share_state import SharePartitionKey
from kreplica.common.types import TopicPartition
from kreplica.metadata.cluster_metadata import TOPIC_RESOURCE, ClusterMetadata
from kreplica.share.share_partition import NEVER, InFlightBatch, SharePartition

LOGGER = logging.getLogger(__name__)

# The setting of a topic that may have dead letters.
ENABLE = "errors.deadletterqueue.group.enable"
# What the headers begin with that a letter has beside those of the record.
HEADER = "__dlq.errors."
# The most letters in one batch, and the bytes of the log that are read for it.
MOST_LETTERS = 100
READ_BYTES = 256 << 10
# The pauses after failures; the last one repeats.
BACKOFFS_MS = (1_000, 2_000, 4_000, 8_000, 16_000, 30_000)
# How long letters that cannot be written may keep other records from delivery.
PATIENCE_MS = 30_000


class DeadLetterTopics:
    """Appends batches of dead letters to topics, wherever these are led.

    `append(broker_id, partition, batch)`: its future is done when all in-sync replicas have the batch.
    `create(topic)`: begins to create a topic; None if topics are not created. `prefix`: what the names of
    topics for dead letters begin with.
    """

    def __init__(
        self,
        metadata: Callable[[], ClusterMetadata],
        append: Callable[[int, TopicPartition, bytes], Future[Any]],
        create: Callable[[str], None] | None,
        prefix: str,
    ) -> None:
        self._metadata = metadata
        self._append = append
        self._create = create
        self._prefix = prefix

    def append(self, topic: str, source: TopicPartition, batch: bytes) -> Future[Any]:
        """Append a batch with letters from one partition, whose number decides where it goes.

        It fails with InvalidConfig if letters must not go to this topic, UnknownTopicOrPartition,
        LeaderNotAvailable, or an error of the append.
        """
        try:
            leader, at = self._place(topic, source)
        except KreplicaError as error:
            return failed(error)
        return self._append(leader, at, batch)

    def _place(self, name: str, source: TopicPartition) -> tuple[int, TopicPartition]:
        if name.startswith("__") or not name.startswith(self._prefix):
            raise InvalidConfig(
                f"topic {name!r} is no place for dead letters: its name must begin with {self._prefix!r}, as"
                " errors.deadletterqueue.topic.name.prefix says, and not with '__'"
            )
        metadata = self._metadata()
        topic = metadata.topics.get(name)
        if topic is None or not topic.partitions:
            if self._create is None:
                raise UnknownTopicOrPartition(
                    f"topic {name!r} does not exist: create it with {ENABLE}=true, or set"
                    " errors.deadletterqueue.auto.create.topics.enable=true on brokers"
                )
            self._create(name)
            raise UnknownTopicOrPartition(f"topic {name!r} is being created")
        if metadata.config(TOPIC_RESOURCE, name).get(ENABLE, "").strip().lower() != "true":
            raise InvalidConfig(f"topic {name!r} takes no dead letters: set its {ENABLE}=true to allow them")
        at = TopicPartition(name, source.partition % len(topic.partitions))
        found = metadata.partition(at)
        if found is None or found.leader == NO_LEADER:
            raise LeaderNotAvailable(f"{at} has no leader")
        return found.leader, at


class LetterTopics(Protocol):
    """Where dead letters go."""

    def append(self, topic: str, source: TopicPartition, batch: bytes) -> Future[Any]:
        """Append a batch of letters from the partition `source`."""
        ...


class LetterConfig(NamedTuple):
    """Where a group's dead letters go, and whether they have the record's key, value and headers."""

    topic: str = ""
    copies_record: bool = False


class Source(Protocol):
    """A share partition whose dead letters are written."""

    key: SharePartitionKey
    share: SharePartition | None
    is_dropped: bool

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the records."""
        ...

    def letter_config(self) -> LetterConfig:
        """Return the group's present settings; no topic if it has no dead letters."""
        ...

    def read_at(self, offset: int, max_bytes: int) -> Any:
        """Return whole committed batches from the one at `offset` on, or nothing if the log has it no more.

        Raises KreplicaError.
        """
        ...

    def letters_settled(self, letters: Iterable[InFlightBatch], *, is_done: bool) -> None:
        """Archive letters that are done with, or keep them."""
        ...

    def letters_moved(self) -> None:
        """Note that letters were settled."""
        ...


class DeadLetters:
    """Writes the dead letters of one share partition, one batch at a time."""

    def __init__(self, source: Source, topics: LetterTopics, *, clock: Clock, loop: Loop) -> None:
        self._source = source
        self._topics = topics
        self._clock = clock
        self._loop = loop
        self._is_writing = False
        self._retry: Cancellable | None = None
        self._failures = 0
        self._failing_since_ms = NEVER
        self._logged = ""
        # After a batch was too large: how many letters the next one may have, and whether as bare headers.
        self._most = MOST_LETTERS
        self._is_bare = False

    def stop(self) -> None:
        """Write no more."""
        if self._retry is not None:
            self._retry.cancel()

    def write(self) -> None:
        """Write the next letters, unless a batch of them is under way or waits for its next attempt."""
        share = self._source.share
        if self._is_writing or self._retry is not None or self._source.is_dropped or share is None:
            return
        first = share.next_letter
        if first is None:
            return
        config = self._source.letter_config()
        if not config.topic:
            # The setting has gone.
            self._source.letters_settled(share.take_letters(NEVER, NEVER), is_done=True)
            self._loop.post(self._source.letters_moved)
            return
        try:
            records: dict[int, Any] = {}
            last = NEVER
            if config.copies_record and not self._is_bare:
                records, last = _records_of(self._source.read_at(first, READ_BYTES), first)
        except KreplicaError as error:
            self._failed(error)
            return
        letters = share.take_letters(self._most, last)
        if not letters:
            # The log's start has passed the first one.
            self.write()
            return
        batch = self._batch(letters, records)
        self._is_writing = True
        done = self._topics.append(config.topic, self._source.topic_partition, batch)
        done.add_done_callback(lambda done: self._loop.post(partial(self._written, letters, done)))

    def _batch(self, letters: Sequence[InFlightBatch], records: dict[int, Any]) -> bytes:
        now_ms = self._clock.time_ms()
        found: list[Any] = []
        for letter in letters:
            for offset in range(letter.first_offset, letter.last_offset + 1):
                record, context = records.get(offset), self._context(letter, offset)
                if record is None:
                    found.append((None, None, context, now_ms))
                else:
                    found.append((record.key, record.value, [*record.headers, *context], now_ms))
        return bytes(BatchBuilder().build(found, now_ms=now_ms))

    def _context(self, letter: InFlightBatch, offset: int) -> list[tuple[str, bytes]]:
        key, at = self._source.key, self._source.topic_partition
        cause = "rejected by a member" if letter.is_rejected else "delivered as often as the group allows"
        context = {
            "topic": at.topic,
            "partition": at.partition,
            "offset": offset,
            "group": key.group_id,
            "delivery.count": letter.delivery_count,
            "message": cause,
        }
        return [(HEADER + name, str(value).encode()) for name, value in context.items()]

    def _written(self, letters: Sequence[InFlightBatch], done: Future[Any]) -> None:
        self._is_writing = False
        if self._source.is_dropped:
            return
        error = done.exception()
        self._source.letters_settled(letters, is_done=error is None)
        if error is None:
            if self._failing_since_ms != NEVER:
                LOGGER.info("%s: dead letters are written again", self._source.key)
            self._failing_since_ms, self._failures, self._logged = NEVER, 0, ""
            self._most, self._is_bare = MOST_LETTERS, False
        elif isinstance(error, MessageTooLarge) and (self._most > 1 or not self._is_bare):
            self._is_bare = self._most == 1
            self._most = 1
        else:
            self._failed(error)
        self.write()
        self._source.letters_moved()

    def _failed(self, error: BaseException) -> None:
        known = error if isinstance(error, KreplicaError) else UnknownServerError(str(error))
        text = f"{type(known).__name__}: {known}"
        if text != self._logged:
            self._logged = text
            LOGGER.warning("%s: dead letters cannot be written: %s", self._source.key, text)
        if self._failing_since_ms == NEVER:
            self._failing_since_ms = monotonic_ms(self._clock)
        pause_ms = BACKOFFS_MS[min(self._failures, len(BACKOFFS_MS) - 1)]
        self._failures += 1
        self._retry = self._loop.post_later(self._again, pause_ms)

    def _again(self) -> None:
        self._retry = None
        self.write()

    def give_way(self) -> None:
        """Archive the oldest letters if they have failed for long and leave no room for other records."""
        share = self._source.share
        if self._failing_since_ms == NEVER or self._is_writing or self._source.is_dropped or share is None:
            return
        failing_ms = monotonic_ms(self._clock) - self._failing_since_ms
        if failing_ms < PATIENCE_MS or share.can_acquire:
            return
        if share.next_letter != share.start_offset:
            return
        letters = share.take_letters(MOST_LETTERS, NEVER)
        LOGGER.error(
            "%s: archived without dead letters, which could not be written for %d s: offsets %s",
            self._source.key,
            failing_ms // 1_000,
            ", ".join(f"{each.first_offset}-{each.last_offset}" for each in letters),
        )
        self._source.letters_settled(letters, is_done=True)


def _records_of(data: Any, first: int) -> tuple[dict[int, Any], int]:
    """Return the records by offset, and the last offset for which the data decides whether there is one."""
    found: dict[int, Any] = {}
    last = first
    for batch in batches_in(data):
        if not batch.is_control:
            found.update({record.offset: record for record in batch if record.offset is not None})
        last = max(last, batch.last_offset)
    return found, last
