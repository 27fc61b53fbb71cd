"""LogAppendInfo: the result of an append."""


cdef class LogAppendInfo:
    """The result of an append: offsets, timestamps in ms, sizes in bytes.

    `log_append_time` is -1 if the records keep their create time. `duplicate`: the batch was appended before, and the
    offsets are those it got then.
    """

    def __init__(self, base_offset=-1, last_offset=-1, leader_epoch=-1, max_timestamp=-1, log_append_time=-1,
                 log_start_offset=-1, record_count=0, size=0, position=-1, duplicate=False):
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.leader_epoch = leader_epoch
        self.max_timestamp = max_timestamp
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.record_count = record_count
        self.size = size
        self.position = position
        self.duplicate = duplicate

    def __repr__(self):
        return (f"LogAppendInfo(base_offset={self.base_offset}, last_offset={self.last_offset}, "
                f"leader_epoch={self.leader_epoch}, record_count={self.record_count}, size={self.size})")
