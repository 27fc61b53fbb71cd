"""Replay scripts on a simulated cluster, with all invariants checked after every event. One thread."""

from __future__ import annotations

from collections.abc import Mapping

from kreplica.replica.replica_config import ReplicaConfig
from kreplica.sim.cluster import SimCluster, broker_factory
from kreplica.sim.invariants.checker import InvariantChecker
from kreplica.sim.nodes.node_checker import NodeChecker
from kreplica.sim.transcript.node_commands import NodesTranscript
from kreplica.sim.transcript.quorum_commands import QuorumTranscript
from kreplica.sim.transcript.runner import Transcript, first_command, replay


def simulated_cluster(settings: Mapping[str, str]) -> SimCluster:
    """Create a cluster whose events run in the order they were added."""
    cluster = SimCluster(broker_factory(ReplicaConfig.parse(settings)), shuffle=False)
    InvariantChecker(cluster)
    return cluster


def transcript_of(text: str) -> Transcript:
    """Return a transcript for the kind of script: of brokers, of whole nodes, or of a quorum."""
    first = first_command(text)
    if first == "nodes":
        return NodesTranscript(NodeChecker)
    return QuorumTranscript() if first == "voters" else Transcript(simulated_cluster)


def replay_simulated(text: str) -> str:
    """Return the script with its output on a simulated cluster; see script.replay."""
    transcript = transcript_of(text)
    try:
        return replay(text, transcript.run)
    finally:
        transcript.close()
