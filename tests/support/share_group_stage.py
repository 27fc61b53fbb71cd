"""Share groups on a coordinator under a virtual clock, their members' heartbeats, and states in memory."""

from __future__ import annotations

from kreplica.common.errors import KreplicaError
from kreplica.common.future import Future, failed, resolved
from kreplica.coordinator.share_groups import ShareGroupPorts, ShareHeartbeat, ShareSettings
from tests.support.consumer_stage import MadeTopics
from tests.support.group_stage import CONFIG, GroupStage


class MemoryPersister:
    """The initialized states, by share partition: (state epoch, start offset).

    Requests wait while `held` is a list, and fail with `error`; `refused`: errors of single partitions.
    """

    def __init__(self):
        self.states = {}
        self.held = None
        self.error = None
        self.refused = {}
        self.calls = []

    def initialize(self, key, state_epoch, start_offset):
        self.calls.append(("initialize", key.partition, state_epoch, start_offset))
        return self._do(key, lambda: self.states.__setitem__(key, (state_epoch, start_offset)))

    def delete(self, key):
        self.calls.append(("delete", key.partition))
        return self._do(key, lambda: self.states.pop(key, None))

    def _do(self, key, step):
        error = self.error or self.refused.get(key.partition)
        if error is not None:
            return failed(error)
        if self.held is None:
            step()
            return resolved(None)
        future = Future()
        self.held.append((future, step))
        return future

    def release(self):
        held, self.held = self.held, None
        for future, step in held:
            step()
            future.set_result(None)


class ShareGroupStage(GroupStage):
    """A coordinator with the topics t (2 partitions) and u (1)."""

    def __init__(self, config=CONFIG, log=None, *, topics=None, persister=None, **settings):
        self.topics = topics or MadeTopics(t=2, u=1)
        self.persister = persister or MemoryPersister()
        self.settings = ShareSettings(
            **{"session_timeout_ms": 1_000, "heartbeat_interval_ms": 100, "assignment_interval_ms": 0}
            | settings
        )
        super().__init__(config, log)

    def share_ports(self):
        return ShareGroupPorts(self.topics, self.persister, lambda _: self.settings)

    def begin_share(self, member_id="a", epoch=0, topics=None, *, group="g", **options):
        future = self.coordinator.share_heartbeat(
            ShareHeartbeat(group, member_id, epoch, None, "client", "host", topics, **options)
        )
        self.settle()
        return future

    def share(self, *arguments, **options):
        """Return the answer to a heartbeat, or its error."""
        return outcome(self.begin_share(*arguments, **options))

    def do(self, name, *arguments):
        """Return the result of another request, or its error."""
        future = getattr(self.coordinator, name)(*arguments)
        self.settle()
        return outcome(future)

    def joined(self, member_id="a", topics=("t",), group="g"):
        """Let a member join and get its partitions; return the last answer."""
        answer = self.share(member_id, 0, topics, group=group)
        return self.share(member_id, answer.member_epoch, topics, group=group)

    def group(self, group="g"):
        [shard] = self.coordinator.shards
        return shard.groups.get(group)

    def fail_over(self):
        """Return a coordinator that has loaded the same log, in the next leader epoch."""
        self.log.leader_epoch += 1
        self.log.held = self.log.error = None
        return ShareGroupStage(log=self.log, topics=self.topics, persister=self.persister)

    def live_keys(self):
        """The keys whose last record in the log is no tombstone."""
        return {key for key, value in dict(self.log.records()).items() if value is not None}


def outcome(future):
    error = future.exception(0)
    assert error is None or isinstance(error, KreplicaError), error
    return future.result(0) if error is None else error
