"""MembershipRequests: the requests by which a follower changes its own entry in the set of voters.

A voter whose listeners differ from those in the voters' record sends UpdateRaftVoter (KIP-853). An observer
with controller.quorum.auto.join.enable sends AddRaftVoter to become a voter (KIP-1186). If its node is still
a voter with a disk that is gone, RemoveRaftVoter comes first. Each is sent at most once per fetch timeout,
instead of a fetch. So the leader answers before the change is committed: the commit may need this follower's
fetches. A request that collides with another change of voters is repeated sooner. Thread rule: the client's
loop.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.add_raft_voter.v1 import request as add
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest
from kio.schema.update_raft_voter.v0 import request as update

from kreplica.common.errors import RequestTimedOut
from kreplica.common.wire import error_of, uuid_of
from kreplica.raft.follower_state import FollowerState
from kreplica.raft.raft_context import RaftContext
from kreplica.raft.voter_set import KRAFT_VERSIONS, VoterNode

LOGGER = logging.getLogger(__name__)


class MembershipRequests:
    """Sends one follower's requests about its own vote."""

    def __init__(self, context: RaftContext) -> None:
        self._context = context

    def poll(self, state: FollowerState, now_ms: int) -> int:
        """Send the request that is due. Returns in how many ms to call again."""
        context = self._context
        if now_ms < state.membership_due_ms:
            return state.membership_due_ms - now_ms
        request = None if context.shutdown_until_ms is not None else self._request(state)
        if request is not None:
            if not context.requests.connection(state.leader_id).is_ready(now_ms):
                # The answer to the fetch under way brings the next step.
                return max(context.requests.back_off_ms([state.leader_id]), 1)
            context.requests.maybe_send(
                state.leader_id, lambda: request, partial(self._answered, state, request)
            )
        state.membership_due_ms = now_ms + context.config.quorum_fetch_timeout_ms
        return context.config.quorum_fetch_timeout_ms

    def _request(self, state: FollowerState) -> Any:
        """Return the request to send; None if this node's entry is as it should be."""
        context, own = self._context, self._context.membership
        if context.control.kraft_version < 1 or not own.can_be_voter:
            return None
        known = context.control.voters.voters.get(context.key.node_id)
        if known is not None and known.is_voter(context.key):
            return self._update(state) if context.own_voter_node not in (None, known) else None
        if not own.auto_join:
            return None
        return self._add() if known is None else self._remove(known)

    def _update(self, state: FollowerState) -> update.UpdateRaftVoterRequest:
        context = self._context
        lowest, highest = KRAFT_VERSIONS
        return update.UpdateRaftVoterRequest(
            cluster_id=context.cluster_id,
            current_leader_epoch=state.epoch,
            voter_id=context.key.node_id,
            voter_directory_id=uuid_of(context.key.directory_id),
            listeners=tuple(
                update.Listener(name=each.name, host=each.host, port=each.port)
                for each in context.membership.endpoints
            ),
            k_raft_version_feature=update.KRaftVersionFeature(
                min_supported_version=lowest, max_supported_version=highest
            ),
        )

    def _add(self) -> add.AddRaftVoterRequest:
        context = self._context
        return add.AddRaftVoterRequest(
            cluster_id=context.cluster_id,
            timeout=timedelta(milliseconds=context.config.quorum_request_timeout_ms),
            voter_id=context.key.node_id,
            voter_directory_id=uuid_of(context.key.directory_id),
            listeners=tuple(
                add.Listener(name=each.name, host=each.host, port=each.port)
                for each in context.membership.endpoints
            ),
            ack_when_committed=False,
        )

    def _remove(self, known: VoterNode) -> RemoveRaftVoterRequest:
        return RemoveRaftVoterRequest(
            cluster_id=self._context.cluster_id,
            voter_id=known.voter_key.node_id,
            voter_directory_id=uuid_of(known.voter_key.directory_id),
        )

    def _answered(self, state: FollowerState, request: Any, response: Any) -> None:
        error = None if response is None else error_of(response.error_code)
        if isinstance(error, RequestTimedOut):
            # The leader is busy with another change, such as that of a voter started at the same time. That
            # is over before the fetch timeout.
            state.membership_due_ms = self._context.now_ms() + self._context.config.fetch_wait_max_ms
        elif error is not None:
            # It is asked again as long as it is wanted.
            text = getattr(response, "error_message", None) or error
            LOGGER.info("node %d: %s: %s", self._context.key.node_id, type(request).__name__, text)
