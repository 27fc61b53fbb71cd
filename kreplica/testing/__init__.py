"""Tools for tests: pytest fixtures with real clusters, faults for them, and replay() for scripts.

    def test_orders(kreplica_cluster):
        kreplica_cluster.create_topic("orders")
        kreplica_cluster.append("orders", [b"v"], partition=0).result(timeout=5)
        kreplica_cluster.kill(kreplica_cluster.partition("orders").leader)
        ...

    def test_my_service(kreplica_bootstrap_servers, kreplica_topic):
        ...  # any Kafka client

Each test with `kreplica_cluster` has a cluster of its own, of three brokers or as its marker says, which
takes the arguments of `kreplica.Cluster`:

    @pytest.mark.kreplica(brokers=1, config={"min.insync.replicas": 1})

After the test, running nodes are resumed and connected again, and the cluster must settle: a test fails if it
passed but the cluster violated an invariant. All tests with `kreplica_session_cluster`,
`kreplica_bootstrap_servers` or `kreplica_topic` share one cluster that serves clients on ports; a session
fixture `kreplica_session_arguments` of your own gives its arguments. pytest finds the fixtures where kreplica
is installed; nothing else is imported until one is used. Without pytest, as in unittest, use
`kreplica.Cluster` or `CheckedCluster` as a context manager (`self.enterContext(...)`).
`kreplica.testing.faults` breaks things.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kreplica.cluster import Cluster
    from kreplica.cluster.checked_cluster import CheckedCluster


__all__ = [
    "CheckedCluster",
    "kreplica_bootstrap_servers",
    "kreplica_cluster",
    "kreplica_session_arguments",
    "kreplica_session_cluster",
    "kreplica_topic",
    "replay",
]


def __getattr__(name: str) -> Any:
    # pytest imports this module in every run: the cluster's modules come with the first use.
    if name != "CheckedCluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kreplica.cluster.checked_cluster import CheckedCluster

    return CheckedCluster


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
    positional = () if marker is None else marker.args
    arguments = {} if marker is None else dict(marker.kwargs)
    if len(positional) < 2:
        arguments.setdefault("directory", tmp_path / "kreplica")
    with CheckedCluster(*positional, **arguments) as cluster:
        yield cluster
        cluster.check()


@pytest.fixture(scope="session")
def kreplica_session_arguments() -> Mapping[str, Any]:
    """Arguments of `kreplica.Cluster` for the session's cluster; a fixture of this name changes them."""
    return {"brokers": 1, "serve": True}


@pytest.fixture(scope="session")
def kreplica_session_cluster(kreplica_session_arguments: Mapping[str, Any]) -> Iterator[Cluster]:
    """A running cluster that serves clients on ports; all tests of the session share it."""
    from kreplica.cluster.checked_cluster import CheckedCluster

    with CheckedCluster(**{"serve": True, **kreplica_session_arguments}) as cluster:
        yield cluster
        cluster.check()


@pytest.fixture(scope="session")
def kreplica_bootstrap_servers(kreplica_session_cluster: Cluster) -> str:
    """The addresses of the session's cluster, for the setting bootstrap.servers of any Kafka client."""
    return kreplica_session_cluster.bootstrap_servers


@pytest.fixture
def kreplica_topic(request: pytest.FixtureRequest, kreplica_session_cluster: Cluster) -> Iterator[str]:
    """The name of a new topic of one partition in the session's cluster, deleted after the test."""
    from kreplica.common.errors import UnknownTopicOrPartition

    topic = f"{re.sub('[^A-Za-z0-9._-]', '-', request.node.name)[:200]}-{id(request.node):x}"
    kreplica_session_cluster.create_topic(topic)
    yield topic
    with suppress(UnknownTopicOrPartition):  # the test may have deleted it itself
        kreplica_session_cluster.delete_topic(topic)
