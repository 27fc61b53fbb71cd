from typing_extensions import Buffer

from kreplica._core.region import Region

def check_plain(
    region: Region,
    position: int,
    end: int,
    base_offset: int,
    next_offset: int,
    leader_epoch: int,
    stop_offset: int,
    offsets: Buffer,
    offset_at: int,
    open_at: int,
    times: Buffer,
    time_at: int,
    greatest: int,
) -> tuple[int, int, int, int, int, int]: ...
def ascending_entries(data: Buffer, is_time_index: bool) -> int: ...
