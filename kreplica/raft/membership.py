"""Membership: what one member may be in its quorum, by its node's configuration. No state; any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kreplica.metadata.control_records import VoterEndpoint


def _anybody(_: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """`can_be_voter`: the node has the role of a controller (Kafka's `canBecomeVoter`). A voter without it
    replicates and grants votes, but never stands for election: it would lead without a controller.

    `endpoints`: where the node listens for the quorum, the default listener first; none where nodes find each
    other by their ids. `auto_join`: an observer that can be a voter asks to become one
    (controller.quorum.auto.join.enable, KIP-853). `bootstrap`: ids under which the transport reaches
    controller.quorum.bootstrap.servers. `is_controller(node_id)`: whether another node has the role.
    """

    can_be_voter: bool = True
    endpoints: tuple[VoterEndpoint, ...] = ()
    auto_join: bool = False
    bootstrap: tuple[int, ...] = ()
    is_controller: Callable[[int], bool] = _anybody
