"""Tools for tests: a pytest fixture with a real cluster, and replay() for scripts on a simulated one.

The fixture checks the cluster's invariants after the test:

    def test_orders(kreplica_cluster):
        kreplica_cluster.create_topic("orders")
        kreplica_cluster.append("orders", [b"v"], partition=0).result(timeout=5)
        kreplica_cluster.kill(kreplica_cluster.partition("orders").leader)
        ...

    @pytest.mark.kreplica(brokers=1, config={"min.insync.replicas": 1})
    @pytest.mark.kreplica(serve=True)  # for any Kafka client, at kreplica_cluster.bootstrap_servers

The marker takes the arguments of `kreplica.Cluster`. After the test, running nodes are resumed and connected
again, and the cluster must settle: a test fails if it passed but the cluster violated an invariant. pytest
finds the plugin automatically where kreplica is installed. Nothing else is imported until the fixture is
used or a script is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kreplica.cluster import Cluster


__all__ = ["kreplica_cluster", "replay"]


def replay(script: str) -> str:
    """Run a script on a simulated cluster and return it with the output that its commands print now.

    A script has blocks of command lines, and under a line `----` what they print; docs/SIMULATOR.md lists the
    commands. The same script gives the same output in any process, so a test compares:

        assert replay(script) == script

    The clock is simulated, and all invariants are checked after every event. Raises InvariantViolated (an
    AssertionError) if one is violated, and ScriptError (a ValueError) with the number of the line if a
    command is unknown or cannot be run.
    """
    from kreplica.sim.transcript.simulated import replay_simulated

    return replay_simulated(script)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "kreplica(**arguments): arguments for the kreplica_cluster of a test")


@pytest.fixture
def kreplica_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A running cluster of three brokers, or as the marker `kreplica` configures it."""
    from kreplica.cluster.checked_cluster import CheckedCluster

    marker = request.node.get_closest_marker("kreplica")
    arguments = {} if marker is None else dict(marker.kwargs)
    arguments.setdefault("directory", tmp_path / "kreplica")
    with CheckedCluster(**arguments) as cluster:
        yield cluster
        cluster.check()
