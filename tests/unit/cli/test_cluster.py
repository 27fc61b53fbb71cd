"""What `kreplica cluster health` finds, of clusters that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kreplica.cli import cluster
from kreplica.cli.cluster import findings_of
from kreplica.cli.cluster_admin import ClusterAdmin, LogDirectory, Move, RegisteredBroker
from kreplica.common.errors import NetworkException, RequestTimedOut
from kreplica.common.types import TopicPartition

AT = TopicPartition("orders", 0)
GIB = 1 << 30


class Made(ClusterAdmin):
    """A cluster without connections: brokers 1 to 3, one partition with min.insync.replicas=2."""

    def __init__(self) -> None:
        self.seed_name = "made up"
        self.no_controller = None
        self.moves = {}
        self.registered = {each: RegisteredBroker(each, f"h{each}:1", None, True) for each in (1, 2, 3)}
        self.found: dict[int, list[LogDirectory]] = {each: [disk(each)] for each in self.registered}
        self.voters = [
            SimpleNamespace(replica_id=each, last_caught_up_timestamp=100_000) for each in self.registered
        ]
        self.become(1, (1, 2, 3), (1, 2, 3))

    def become(self, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> None:
        found = SimpleNamespace(leader_id=leader, replica_nodes=replicas, isr_nodes=isr)
        self.partitions = {AT: found}

    def topic_settings(self, names: Any) -> Any:
        assert list(names) == ["min.insync.replicas"]
        return iter([("orders", SimpleNamespace(value="2"))])

    def directories(self, broker: int, partitions: Any = None) -> list[LogDirectory]:
        assert partitions is None
        if not self.found[broker]:
            raise NetworkException(f"h{broker}:1 closed the connection")
        return self.found[broker]

    @property
    def seed(self) -> Any:
        return self.seed_name


def disk(broker: int, *, error: str | None = None, usable: int = 60 * GIB) -> LogDirectory:
    return LogDirectory(broker, "/data", error, -1 if error else 100 * GIB, -1 if error else usable, {})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made()
    partition = SimpleNamespace(leader_id=1, current_voters=found.voters)
    answer = SimpleNamespace(topics=[SimpleNamespace(partitions=[partition])])
    monkeypatch.setattr(cluster, "described_quorum", lambda _: answer)
    return found


def problems(made: Made) -> dict[str, list[str]]:
    return {
        each.check: list(each.examples) for each in findings_of(made) if each.examples and each.is_problem
    }


def test_nothing_is_wrong(made: Made) -> None:
    assert problems(made) == {}
    assert {each.fact["status"] for each in findings_of(made)} == {"ok"}


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (-1, (), {"partitions without a leader", "under-replicated partitions"}),
        (1, (1,), {"partitions under min.insync.replicas", "under-replicated partitions"}),
        (1, (1, 2), {"under-replicated partitions"}),
    ],
)
def test_partitions_that_lack_something(
    made: Made, leader: int, isr: tuple[int, ...], expected: set[str]
) -> None:
    made.become(leader, (1, 2, 3), isr)
    assert problems(made) == {name: ["orders-0"] for name in expected}


def test_a_replica_that_a_move_adds_is_not_missed(made: Made) -> None:
    made.become(1, (1, 2, 4), (1, 2))
    made.moves = {AT: Move((1, 2, 4), (4,), ())}
    assert problems(made) == {}
    assert {each.check for each in findings_of(made) if each.examples} == {"partitions that move"}


def test_another_leader_than_the_preferred_one_is_no_problem(made: Made) -> None:
    made.become(2, (1, 2, 3), (1, 2, 3))
    assert problems(made) == {}
    [note] = [each.fact for each in findings_of(made) if each.examples]
    assert (note["check"], note["status"]) == ("leaders that are not preferred", "note")


def test_a_voter_that_lags(made: Made) -> None:
    made.voters[2].last_caught_up_timestamp -= 60_000
    assert problems(made) == {"voters of the quorum that lag": ["node 3"]}


def test_no_controller(made: Made) -> None:
    made.no_controller = RequestTimedOut("no leader of the quorum")
    assert problems(made) == {"controllers": ["no leader of the quorum"]}


def test_disks_that_are_full_or_have_failed(made: Made) -> None:
    made.found = {1: [disk(1, usable=5 * GIB)], 2: [disk(2, error="has failed")], 3: []}
    assert problems(made) == {
        "disks that are 90% full": ["/data of broker 1: 95%"],
        "failed disks": ["/data of broker 2"],
        "brokers that do not describe their disks": ["broker 3: h3:1 closed the connection"],
    }


def test_a_broker_that_is_down_is_not_asked(made: Made) -> None:
    made.registered[3] = made.registered[3]._replace(is_up=False)
    made.found[3] = []
    assert problems(made) == {"brokers that are down": ["3"]}
