"""VoterChanges: an administrator who adds and removes voters of a running cluster's quorum (KIP-853).

One change at a time, as a person would make them. Thread rule: one thread.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from kio.schema.add_raft_voter.v1.request import AddRaftVoterRequest
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest

from kreplica.common.future import Future
from kreplica.common.wire import error_of, uuid_of
from kreplica.sim.broker_factory import CLUSTER_ID
from kreplica.sim.nodes.node_cluster import NodeCluster
from kreplica.sim.nodes.sim_client import SimClient

TIMEOUT_MS = 500
# A quorum of one is tried only now and then.
FEWEST_VOTERS = 2


class VoterChanges:
    """The voter changes of `cluster`, requested by `client`."""

    def __init__(self, cluster: NodeCluster, client: SimClient, random: Random) -> None:
        self._cluster = cluster
        self._client = client
        self._random = random
        self._is_asked = False

    def ask(self) -> tuple[str, Future[Any]] | None:
        """Request a change; return its name and its future, None if none is possible now."""
        active = self._cluster.controller
        node = None if active is None else self._cluster.node(active)
        if self._is_asked or active is None or node is None:
            return None
        voters = set(node.raft.voters.voters)
        outside = [each for each in self._cluster.controllers if each not in voters]
        request: Any
        if outside and (len(voters) <= FEWEST_VOTERS or self._random.randrange(3)):
            what, chosen = "voters added", self._random.choice(outside)
            request = AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                timeout=timedelta(milliseconds=TIMEOUT_MS),
                voter_id=chosen,
                voter_directory_id=uuid_of(self._cluster.directory_ids[chosen]),
                listeners=(),
            )
        elif len(voters) > 1:
            what, chosen = "voters removed", self._random.choice(sorted(voters))
            request = RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                voter_id=chosen,
                voter_directory_id=uuid_of(self._cluster.directory_ids[chosen]),
            )
        else:
            return None
        self._is_asked = True
        answer = self._client.endpoint.send(active, request, timeout_ms=2 * TIMEOUT_MS)
        return what, answer

    def answered(self, answer: Future[Any]) -> bool:
        """Return whether the change was made, from its completed future."""
        self._is_asked = False
        return answer.exception() is None and error_of(answer.result().error_code) is None
