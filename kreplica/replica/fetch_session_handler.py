"""FetchSessionHandler: a follower's side of its fetch session with one leader (KIP-227).

It remembers what was last sent to the leader, so that a fetch names only what has changed since. Owned by one
fetcher, which calls it in its loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kreplica.common.types import INT32_MAX, TopicPartition, Uuid
from kreplica.replica.fetch_session import INITIAL_EPOCH, NO_SESSION
from kreplica.replica.partition_fetch_state import FetchData


class SessionFetch(NamedTuple):
    """One fetch: its session, the partitions it names, and those that the leader should forget."""

    session_id: int
    session_epoch: int
    to_send: Mapping[TopicPartition, FetchData]
    to_forget: list[tuple[TopicPartition, Uuid]]


class FetchSessionHandler:
    """`sent`: what was last sent to the leader for each partition of the session."""

    def __init__(self) -> None:
        self.sent: dict[TopicPartition, FetchData] = {}
        self._to_say_again: set[TopicPartition] = set()
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    @property
    def is_new(self) -> bool:
        """Whether the next fetch must name every partition."""
        return self._epoch == INITIAL_EPOCH

    def build(
        self, changed: Mapping[TopicPartition, FetchData], gone: Sequence[TopicPartition]
    ) -> SessionFetch:
        """Build the next fetch.

        `changed`: the partitions to send (all partitions if `is_new`). `gone`: those that are no longer
        fetched.
        """
        if self.is_new:
            self._to_say_again.clear()
            self.sent = dict(changed)
            return SessionFetch(self._session_id, INITIAL_EPOCH, changed, [])
        again = self._to_say_again
        if len(changed) == 1 and not again and not gone:
            # The usual case after a new record: one partition advances.
            ((topic_partition, data),) = changed.items()
            known = self.sent.get(topic_partition)
            if known is not None and known.topic_id is data.topic_id and known != data:
                self.sent[topic_partition] = data
                return SessionFetch(self._session_id, self._epoch, changed, [])
        to_send = {tp: data for tp, data in changed.items() if tp in again or self.sent.get(tp) != data}
        again.difference_update(to_send)
        to_forget = [(tp, self.sent.pop(tp).topic_id) for tp in gone if tp in self.sent]
        # A topic with the same name but another id is a different topic, and the leader identifies topics by
        # id.
        for tp, data in to_send.items():
            known = self.sent.get(tp)
            if known is not None and known.topic_id != data.topic_id:
                to_forget.append((tp, known.topic_id))
        self.sent.update(to_send)
        return SessionFetch(self._session_id, self._epoch, to_send, to_forget)

    def say_again(self, topic_partition: TopicPartition) -> None:
        """Name the partition in the next fetch even if it has not changed.

        The leader's answer could not be used, and the leader would not send it again otherwise.
        """
        self._to_say_again.add(topic_partition)

    def answered(self, session_id: int) -> None:
        """Take over the session of the leader's answer. NO_SESSION: the leader has given us none."""
        if session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH
        elif session_id != self._session_id:
            self._session_id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1

    def failed(self, *, is_unknown: bool) -> None:
        """Start a new session: the fetch was lost or rejected, so the leader's state is unknown.

        `is_unknown`: the leader does not know the session. Otherwise the next request ends it.
        """
        if is_unknown:
            self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
