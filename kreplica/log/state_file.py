"""The state file of a log that is not open here: `kreplica.state.deleted` in its directory.

The log's writer publishes its state in the file (`_core/log_state.pxd` has the layout). Readers take it from
there, and a repair or a splice replaces it before it changes files. Thread rule: pure functions.
"""

from __future__ import annotations

from kreplica._core.log_state import LogStanding, LogState, read_standing
from kreplica.common.ports import Storage
from kreplica.log.file_names import STATE_FILE

CAPACITY = 4096
# More than the state takes; the rest of a longer file is not read.
MAX_BYTES = 1 << 16


def read_state(storage: Storage, directory: str) -> LogStanding | None:
    """Return the published state; None without a file, and if the file holds no whole state."""
    path = f"{directory}/{STATE_FILE}"
    return read_standing(storage.read_file(path, MAX_BYTES)) if storage.exists(path) else None


def publish_state(storage: Storage, directory: str, standing: LogStanding) -> None:
    """Replace the published state durably. It counts one more cut, so that readers reopen the log's files."""
    with storage.open_region(f"{directory}/{STATE_FILE}", CAPACITY, writable=True, create=True) as region:
        state = LogState(region, standing.boot_id, storage.process_id())
        state.count_cut(standing.cuts + 1)
        if standing.has_gaps:
            state.allow_gaps()
        state.take_over(standing)
        region.flush()
