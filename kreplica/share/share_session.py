"""Share sessions: the partitions that a member of a share group fetches from this broker (KIP-932).

A member opens a session with its first fetch, and names only changes after that. Each request carries the
session's epoch, so a lost or repeated request is noticed. Thread rule: the loop of the share partitions'
owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kreplica.common.errors import (
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)
from kreplica.common.share_state import SharePartitionKey
from kreplica.common.types import INT32_MAX

# The epochs of a request that opens a session, and of one that closes it.
INITIAL_EPOCH = 0
FINAL_EPOCH = -1

SessionKey = tuple[str, str]


class ShareSession:
    """A member's session. `epoch`: what the next request must carry; `partitions`: an ordered set.

    `fetch`: the DelayedShareFetch of its last request, which may wait.
    """

    __slots__ = ("connection", "epoch", "fetch", "group_id", "holder", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, connection: object) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[SharePartitionKey, None] = {}
        # Typed as Any: that class is above this one.
        self.fetch: Any = None
        # Who may use it, where clients need rights.
        self.holder: object = None

    def update(self, added: Iterable[SharePartitionKey], forgotten: Iterable[SharePartitionKey]) -> None:
        """Take over what a request names. It also names partitions only to acknowledge their records."""
        self.partitions.update(dict.fromkeys(added))
        for key in forgotten:
            self.partitions.pop(key, None)

    def in_turn(self) -> list[SharePartitionKey]:
        """Return the partitions in the order in which to read them: each request begins at the next one."""
        keys = list(self.partitions)
        start = self.epoch % len(keys) if keys else 0
        return keys[start:] + keys[:start]


class ShareSessionCache:
    """The sessions of one broker, at most `limit` of them, by group and member."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Looked up by other threads, too.
        self.by_member: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[object, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self.by_member)

    def open(self, group_id: str, member_id: str, connection: object) -> ShareSession:
        """Open a session, in place of an earlier one of the member. Raises ShareSessionLimitReached."""
        key = (group_id, member_id)
        self.remove(group_id, member_id)
        if len(self.by_member) >= self._limit:
            raise ShareSessionLimitReached(f"the broker has {self._limit} share sessions: retry later")
        session = self.by_member[key] = ShareSession(group_id, member_id, connection)
        if connection is not None:
            self._by_connection.setdefault(connection, set()).add(key)
        return session

    def use(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session for a request that carries `epoch`, and count the request.

        With FINAL_EPOCH the session is removed. Raises ShareSessionNotFound, InvalidShareSessionEpoch.
        """
        session = self.by_member.get((group_id, member_id))
        if session is None:
            raise ShareSessionNotFound(f"member {member_id} of {group_id} has no share session here")
        if epoch == FINAL_EPOCH:
            self.remove(group_id, member_id)
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(f"share session epoch {epoch}: {session.epoch} is the next one")
        session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        return session

    def remove(self, group_id: str, member_id: str) -> None:
        """Forget a session, if it is there."""
        key = (group_id, member_id)
        session = self.by_member.pop(key, None)
        if session is not None and session.connection is not None:
            others = self._by_connection[session.connection]
            others.discard(key)
            if not others:
                del self._by_connection[session.connection]

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session."""
        return any(key[0] == group_id for key in self.by_member)

    def take_of(self, connection: object) -> list[ShareSession]:
        """Remove and return the sessions of a connection that is closed."""
        keys = self._by_connection.get(connection)
        if keys is None:
            return []
        closed = [self.by_member[key] for key in keys]
        for session in closed:
            self.remove(session.group_id, session.member_id)
        return closed
