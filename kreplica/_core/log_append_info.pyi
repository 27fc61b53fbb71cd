class LogAppendInfo:
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int
    log_append_time: int
    log_start_offset: int
    record_count: int
    size: int
    position: int
    duplicate: bool
    def __init__(
        self,
        base_offset: int = -1,
        last_offset: int = -1,
        leader_epoch: int = -1,
        max_timestamp: int = -1,
        log_append_time: int = -1,
        log_start_offset: int = -1,
        record_count: int = 0,
        size: int = 0,
        position: int = -1,
        duplicate: bool = False,
    ) -> None: ...
