from typing import NamedTuple, final

from typing_extensions import Buffer

from kreplica._core.records import RecordBatch

class RecordsCompared(NamedTuple):
    differs: bool
    compared: int
    only_left: int
    only_right: int
    first_only_left: int
    first_only_right: int

@final
class RecordCursor:
    offset: int
    is_drained: bool
    def load(self, batch: RecordBatch) -> None: ...
    def end(self) -> None: ...
    def lost(self, first_offset: int, next_offset: int) -> None: ...
    def seek(self, offset: int) -> None: ...

def agree(left: Buffer, right: Buffer, next_offset: int, stop: int) -> tuple[int, int, int]: ...
def compare_records(left: RecordCursor, right: RecordCursor, stop: int) -> RecordsCompared: ...
