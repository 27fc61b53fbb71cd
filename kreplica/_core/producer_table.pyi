from typing import Any

from typing_extensions import Buffer

from kreplica._core.log_state import LogState
from kreplica._core.open_transactions import OpenTransactions
from kreplica._core.producer_append_info import (
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateEntry,
    Verification,
)
from kreplica._core.records import RecordBatch

class PreparedRun:
    @property
    def size(self) -> int: ...
    @property
    def begins_at(self) -> int | None: ...

class ProducerTable(OpenTransactions):
    _producers: dict[int, ProducerStateEntry] | None
    _verifications: dict[int, Verification]
    map_end_offset: int
    def last_entry(self, producer_id: int) -> ProducerStateEntry | None: ...
    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, begins_at_zero: bool
    ) -> Verification: ...
    def prepare_update(
        self, producer_id: int, origin: Any, verification: Verification | None = None
    ) -> ProducerAppendInfo: ...
    def update(self, appended: ProducerAppendInfo) -> None: ...
    def note_end(self, ended: CompletedTxn | None, state: LogState) -> None: ...
    def take_over(self, batch: RecordBatch) -> CompletedTxn | None: ...
    def take_over_run(self, data: Buffer) -> None: ...
    def prepare_run(self, data: Buffer) -> PreparedRun: ...
    def note_run(self, prepared: PreparedRun, size: int) -> None: ...

class PendingProducers:
    end: int | None
    producers: dict[int, ProducerAppendInfo]
    def continue_sequence(
        self, batch: RecordBatch, origin: Any, verification: Verification | None = None
    ) -> ProducerAppendInfo | None: ...
    def note_producer(self, producer: ProducerAppendInfo, end: int) -> None: ...
