"""LiveReader: reads a log that may have a live writer, in this process, another one, or Kafka.

A kreplica writer publishes its log's state in `kreplica.state.deleted` (see _core/log_state.pxd). The reader
takes it before each read and goes no further. A live Kafka broker has removed that file, and only writes a
checkpoint of its high watermark every five seconds. That is the bound then. Without a writer, the log is read
to the end of its valid batches.
"""

from __future__ import annotations

import os
from functools import partial

from kreplica._core.log_state import LogStanding
from kreplica.common.config import LogConfig
from kreplica.common.errors import InvalidFile, KafkaStorageError
from kreplica.common.locks import Lock
from kreplica.common.ports import Clock, Storage
from kreplica.common.types import TopicPartition
from kreplica.log import log_loader
from kreplica.log.file_names import STATE_FILE
from kreplica.log.log_directory import LogDirectory
from kreplica.log.log_loader import OpenOptions
from kreplica.log.log_walk import LogWalk
from kreplica.log.state_file import read_state
from kreplica.log.unified_log import UnifiedLog

# The number of attempts if the writer changes the files while they are opened.
ATTEMPTS = 20


class LiveReader:
    """Opens the log in `directory` for reading, and follows its writer.

    Thread rule: any thread may call `refresh` and `note_rot`. `_lock` is held from the read of the writer's
    state until the log has it, so that no thread puts an older state in the place of a newer one. `note_rot`
    holds it, too: the files that it examines are not replaced meanwhile.
    """

    def __init__(
        self, directory: str, partition: TopicPartition, config: LogConfig, storage: Storage, clock: Clock
    ) -> None:
        self._directory = directory
        self._partition = partition
        self._config = config
        self._storage = storage
        self._clock = clock
        self._lock = Lock()
        # Guarded by _lock:
        self._standing: LogStanding | None = None

    @property
    def cuts(self) -> int:
        """The number of times the writer has truncated the log or replaced its files, at the last refresh."""
        return 0 if self._standing is None else self._standing.cuts

    def open(self) -> UnifiedLog:
        """Open the log read-only in its present state. Raises InvalidFile without a log,
        KafkaStorageError."""
        if not self._storage.is_directory(self._directory):
            raise InvalidFile(
                f"{self._directory}: there is no such directory; open without read_only to create a log there"
            )
        for attempt in range(ATTEMPTS):
            self._standing = self._read_standing()
            try:
                log = self._load()
                self._require_same_files(self._standing)
                self._require_start(log)
                return log
            except KafkaStorageError:
                # The writer removed or trimmed a file after it was listed: try again.
                if attempt + 1 == ATTEMPTS:
                    raise
        raise AssertionError

    def open_apart(self) -> UnifiedLog:
        """Open the log a second time in its present state, independent of `refresh`. Raises like `open`."""
        return LiveReader(self._directory, self._partition, self._config, self._storage, self._clock).open()

    def _require_same_files(self, standing: LogStanding | None) -> None:
        # Files from before and after a replacement do not fit together, so check that there was none.
        now = self._read_standing()
        if standing is not None and now is not None and now.cuts != standing.cuts:
            raise KafkaStorageError(f"{self._directory}: files were replaced while they were opened; retry")

    def _require_start(self, log: UnifiedLog) -> None:
        # A writer moves the log start before it removes a segment. It has done so meanwhile, or a segment is
        # missing.
        if log.local.segments[0].base_offset > log.log_start_offset:
            standing = self._read_standing()
            if standing is not None and standing.log_start_offset > log.log_start_offset:
                raise KafkaStorageError(
                    f"{self._directory}: segments were removed while they were opened; retry"
                )

    def _load(self) -> UnifiedLog:
        return log_loader.load(
            self._directory, self._partition, self._config, self._storage, self._clock, self._options()
        )

    def refresh(self, log: UnifiedLog) -> None:
        """Update `log` to the state that its writer has published since."""
        with self._lock:
            self._refresh(log)

    def _refresh(self, log: UnifiedLog) -> None:
        for attempt in range(ATTEMPTS):
            standing = self._read_standing()
            if standing is None or standing == self._standing or not self._is_live(standing):
                return
            anew = self._standing is None or standing.cuts != self._standing.cuts
            try:
                log.follow(standing, anew=anew, check=partial(self._require_same_files, standing))
            except KafkaStorageError:
                if attempt + 1 == ATTEMPTS:
                    raise
            else:
                self._standing = standing
                return

    def note_rot(self, log: UnifiedLog, offset: int) -> None:
        """Find the damage that a read met above `offset`, so that reads of `log` stop there.

        A writer changes nothing below the end that it has published unless it counts a cut, so the damage is
        real. Kafka counts none: with its files, each read meets the damage again.
        """
        with self._lock:
            if self._standing is None:
                return
            walk = LogWalk(log)
            walk.seek(offset)
            while not walk.lost and (batch := walk.peek()) is not None:
                walk.advance(batch.size, batch.next_offset)
            if walk.lost:
                log.add_damage(walk.lost[0])

    def _read_standing(self) -> LogStanding | None:
        for _ in range(ATTEMPTS):
            standing = read_state(self._storage, self._directory)
            if standing is not None or not self._storage.exists(f"{self._directory}/{STATE_FILE}"):
                return standing
            # The writer changed the file during the read: read it again.
        return None

    def _is_live(self, standing: LogStanding | None) -> bool:
        # A state published in this boot is true up to the last append, even if the writer was killed.
        return standing is not None and (standing.clean or standing.boot_id == self._storage.boot_id())

    def _options(self) -> OpenOptions:
        parent = LogDirectory(self._storage, os.path.dirname(self._directory))
        standing = self._standing
        if standing is not None:
            return OpenOptions(read_only=True, standing=standing if self._is_live(standing) else None)
        _, log_starts, marks = parent.read_checkpoints()
        is_taken = parent.is_taken
        return OpenOptions(
            read_only=True,
            end_bound=marks.get(self._partition, 0) if is_taken else None,
            log_start_offset=log_starts.get(self._partition, 0),
            known_start=None if is_taken else log_starts.get(self._partition),
            is_settled=not is_taken and (not parent.is_formatted or parent.was_closed_in_order),
        )
