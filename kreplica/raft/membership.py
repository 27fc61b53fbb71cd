"""Membership: the roles that a node may have in its quorum, from its configuration. Any thread may read
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kreplica.metadata.control_records import VoterEndpoint


def _every_node(_: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """`can_be_voter`: the node is a controller (Kafka's `canBecomeVoter`). A voter that is not one replicates
    and grants votes but never stands for election, since it would lead without a controller.

    `endpoints`: where the node listens for the quorum, the default listener first; empty if nodes reach each
    other by id. `auto_join`: an observer that can be a voter asks to become one
    (controller.quorum.auto.join.enable, KIP-853). `bootstrap`: the ids under which the transport reaches
    controller.quorum.bootstrap.servers. `is_controller(node_id)`: whether another node is a controller.
    """

    can_be_voter: bool = True
    endpoints: tuple[VoterEndpoint, ...] = ()
    auto_join: bool = False
    bootstrap: tuple[int, ...] = ()
    is_controller: Callable[[int], bool] = _every_node
