"""ShareMember: a member of a share group (KIP-932), to which the coordinator assigns partitions.

Members share partitions, so none waits until another one has let go. Thread rule: everything runs in the
client's loop.
"""

from __future__ import annotations

from typing import Any

from kreplica.client.consumer_member import JOIN, ConsumerMember
from kreplica.common.messages.share_groups import ShareGroupHeartbeatRequest


class ShareMember(ConsumerMember):
    """A member of a share group; it acknowledges no assignments."""

    _acknowledges = False

    def _message(self, epoch: int, *, is_full: bool, reports: bool) -> Any:
        del reports  # members share partitions: the coordinator does not ask for them
        is_full = is_full and epoch >= JOIN
        return ShareGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=epoch,
            subscribed_topic_names=self._subscription.topics if is_full else None,
        )
