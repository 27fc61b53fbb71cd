"""The same raw requests of transactions to Kafka and to our node: answers are equal but for ids and times.

`transaction_requests` explains the lines. Where our answer differs deliberately, the line ends with `!` and a
key of REASONS; the test also fails if the two answers become equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.kafka_peer import SETTINGS, Node
from tests.conformance.transaction_requests import TransactionRequests
from tests.support.tcp_cluster import TcpClient, TcpCluster

pytestmark = pytest.mark.conformance

PRODUCE = 0
# Produce, OffsetFetch, FindCoordinator, those of transactions, and DescribeProducers.
APIS = (PRODUCE, 9, 10, 22, 24, 25, 26, 27, 28, 61, 65, 66)

REASONS = {
    "fenced": "A commit of what the coordinator has aborted is a fenced producer's (KAFKA-20785; after 4.3).",
    "verifies": "The coordinator confirms what is in the transaction, and asks no metadata: a topic that is"
    " deleted meanwhile does not refuse the other partitions of the request.",
    "no producer": "Kafka takes a transactional batch of no producer, which no marker ends. Ours refuses it.",
    "marker": "For a producer id or epoch below 0 Kafka reports an internal error, ours a bad request.",
    "duration": "Kafka lists ids without a transaction as if they had one since 1970; ours lists open ones.",
    "upgraded": "An end under the first version raises no epoch, so the request is a fenced producer's; Kafka"
    " takes it for a repetition, and gives it the epoch of its successor.",
    "level": "At level 0 Kafka cannot store a transaction of the second version; ours stores a first one.",
}

SCRIPTS = {
    "ids": """
        init - v=0
        init - v=5 had=77/3
        init - v=3 had=-1/3
        init v=4
        init v=0
        init ~a v=4 timeout=0
        init ~a v=4 timeout=-1
        init ~a v=4 had=-1/3
        init ~a v=4 had=7/-1
        init ~a v=0 as=p
        init ~a v=1
        init ~a v=2 timeout=1234 as=q
        describe ~a
        init ~a v=3 had=q as=r
        init ~a v=3 had=q
        init ~a v=3 had=p
        init ~a v=4 had=p
        init ~a v=4 had=q+9
        init ~a v=5 had=999999/0
        init ~new v=5 had=999999/5
        describe ~a
        describe ~unknown
        describe
    """,
    "first version commits and aborts": """
        init ~a v=4 as=p
        end ~a p commit v=4
        end ~a p abort v=4
        produce ~a p ~t-0 seq=0 v=9
        produce ~a p ~t-0 seq=0 v=11
        add ~a p ~t-0 v=3
        add ~a p ~t-0 v=3
        describe ~a
        produce ~a p ~t-0 seq=0 v=11
        produce ~a p ~t-0 seq=0 v=11
        produce ~a p ~t-0 seq=1 v=9
        produce ~a p ~t-0 seq=5 v=9
        produce ~a p ~t-1 seq=0 v=9
        produce ~a p ~t-1 seq=0 v=11
        produce - p ~t-0 seq=2 v=11
        produce ~a p ~t-0 seq=2 v=11 plain
        producers ~t-0
        bounds ~t-0
        end ~a p commit v=1
        settle ~a
        describe ~a
        end ~a p commit v=0
        end ~a p commit v=4
        end ~a p abort v=4
        producers ~t-0
        bounds ~t-0
        produce ~a p ~t-0 seq=2 v=11
        add ~a p ~t-0,~t-1 v=0
        produce ~a p ~t-0 seq=2 v=11
        bounds ~t-0
        end ~a p abort v=4
        settle ~a
        end ~a p abort v=4
        end ~a p commit v=4
        bounds ~t-0
        describe ~a
    """,
    "an abort of a transaction whose first request was lost": """
        init ~a v=4 as=p
        end ~a p abort v=1
        add ~a p ~t-0 v=0
        produce ~a p ~t-0 seq=0 v=10
        end ~a p commit v=1
        settle ~a
        end ~a p abort v=1
        describe ~a
        add ~a p ~t-0 v=0
        end ~a p abort v=1
        settle ~a
        describe ~a
    """,
    "second version commits and aborts": """
        init ~a v=5 as=p
        end ~a p commit v=5
        end ~a p-1 commit v=5
        end ~a p-1 abort v=5
        produce ~a p ~t-0 seq=3 v=12
        produce ~a p ~t-0 seq=0 v=12
        produce ~a p ~t-0 seq=0 v=12
        produce ~a p ~t-0 seq=1 v=12
        produce ~a p+1 ~t-0 seq=0 v=12
        describe ~a
        end ~a p+1 commit v=5
        end ~a p-1 commit v=5
        end ~a p commit v=5 as=q
        settle ~a
        describe ~a
        end ~a p commit v=5
        end ~a p abort v=5
        end ~a q commit v=5
        end ~a q+1 commit v=5
        produce ~a p ~t-0 seq=2 v=12
        produce ~a p ~t-1 seq=0 v=12
        producers ~t-0
        bounds ~t-0
        end ~a q abort v=5 as=r
        settle ~a
        end ~a q abort v=5
        end ~a q commit v=5 ! fenced
        end ~a r commit v=5
        produce ~a r ~t-0 seq=0 v=12
        end ~a r abort v=5 as=s
        settle ~a
        end ~a r abort v=5
        describe ~a
        producers ~t-0
        bounds ~t-0
    """,
    "an abort without a transaction": """
        init ~a v=5 as=p
        end ~a p abort v=5 as=q
        settle ~a
        describe ~a
        end ~a p abort v=5
        end ~a p commit v=5 ! fenced
        produce ~a q ~t-0 seq=0 v=12
        bounds ~t-0
    """,
    "adding partitions": """
        init ~a v=4 as=p
        add ~unknown p ~t-0 v=3
        add ~a 77/0 ~t-0 v=3
        add ~a p+1 ~t-0 v=3
        add ~a p+1 ~t-0 v=2
        add ~a p+1 ~t-0 v=1
        add ~a p+1 ~t-0 v=0
        add ~a p+1 ~t-0 v=5
        add ~a p ~t-0,~none-0 v=3
        add ~a p ~t-0,~t-9 v=0
        describe ~a
        add ~a p ~t-0 v=5 verify
        add ~a p ~t-0 v=4 verify
        add ~unknown p ~t-0 v=5 verify
        add ~a 77/0 ~t-0 v=5 verify
        add ~a p-1 ~t-0 v=5 verify
        add ~a p ~t-0 v=3
        add ~a p ~t-0,~t-1 v=5 verify
        add ~a p ~none-0 v=5 verify ! verifies
        add ~a p ~t-1 v=4
        add ~a p ~t-1,~t-0 v=5 verify
        describe ~a
        end ~a p commit v=4
        settle ~a
        add ~a p ~t-0 v=5 verify
        bounds ~t-0
        bounds ~t-1
    """,
    "offsets by the first version": """
        init ~a v=4 as=p
        commit ~a p ~g ~t-0=5 v=3
        commit ~a p ~g ~t-0=5 v=4
        offsets ~unknown p ~g v=3
        offsets ~a 77/0 ~g v=3
        offsets ~a p+1 ~g v=3
        offsets ~a p+1 ~g v=1
        offsets ~a p ~g v=0
        offsets ~a p ~g v=4
        offsets ~a p v=3
        commit ~a p ~g ~t-0=5 v=4
        fetched ~g ~t-0
        commit ~a p ~g ~t-0=6 v=0
        commit ~a p ~g ~none-0=6 ~t-0=7 v=3
        commit ~a p ~g ~t-9=6 v=3
        commit ~a p - ~t-0=6 v=3
        commit ~a p ~g ~t-0=8 v=3 generation=4
        commit ~a p ~g ~t-0=8 v=3 generation=4 member=m
        commit ~a p ~g ~t-0=8 v=3 member=m
        commit ~a p+1 ~g ~t-0=8 v=3
        commit ~a p-1 ~g ~t-0=8 v=3
        commit ~a 77/0 ~g ~t-0=8 v=3
        commit ~a -1/-1 ~g ~t-0=8 v=3
        end ~a p commit v=3
        settle ~a
        fetched ~g ~t-0
        offsets ~a p ~g v=3
        commit ~a p ~g ~t-0=20 v=3
        end ~a p abort v=3
        settle ~a
        fetched ~g ~t-0
    """,
    "offsets by the second version": """
        init ~a v=5 as=p
        commit ~a p+1 ~g ~t-0=5 v=5
        commit ~a 77/0 ~g ~t-0=5 v=5
        commit ~unknown p ~g ~t-0=5 v=5
        commit ~a p ~g ~t-0=5 v=5 metadata=m
        fetched ~g ~t-0
        commit ~a p ~g ~t-0=8 v=5 generation=4 member=m
        commit ~a p ~g ~t-0=8 v=5 member=m
        describe ~a
        end ~a p commit v=5 as=q
        settle ~a
        fetched ~g ~t-0
        commit ~a p ~g ~t-0=9 v=5
        commit ~a q ~g ~t-0=9 v=5
        end ~a q abort v=5 as=r
        settle ~a
        fetched ~g ~t-0
        commit ~a r ~g ~none-0=9 v=5
        describe ~a
        commit ~a r ~other ~t-0=9 v=5 generation=4 member=m
        describe ~a
    """,
    "fencing": """
        init ~a v=4 as=p
        add ~a p ~t-0 v=3
        produce ~a p ~t-0 seq=0 v=11
        init ~a v=4
        settle ~a
        describe ~a
        producers ~t-0
        produce ~a p ~t-0 seq=1 v=11
        produce ~a p ~t-0 seq=1 v=9
        produce ~a p ~t-0 seq=1 v=12
        produce ~a p ~t-1 seq=0 v=11
        add ~a p ~t-0 v=3
        add ~a p ~t-0 v=0
        end ~a p commit v=4
        end ~a p commit v=1
        end ~a p abort v=4
        offsets ~a p ~g v=0
        commit ~a p ~g ~t-0=1 v=5
        init ~a v=3 had=p
        init ~a v=4 had=p
        init ~a v=4 as=q
        bounds ~t-0
        produce ~a q ~t-0 seq=0 v=12
        init ~a v=5 had=q
        settle ~a
        describe ~a
        init ~a v=5 had=q
        describe ~a
    """,
    "batches": """
        init ~a v=4 as=p
        init ~b v=4 as=q
        produce ~a p ~t-0 seq=0 v=12 plain
        produce ~a p ~t-0 seq=1 v=12
        produce ~a p ~t-0 seq=2 v=12 plain
        produce ~b p ~t-0 seq=2 v=12
        produce ~b p ~t-1 seq=0 v=12
        produce ~unknown p ~t-1 seq=0 v=12
        produce ~a 77/0 ~t-1 seq=0 v=12
        produce ~a p ~none-0 seq=0 v=12
        produce ~a p ~t-9 seq=0 v=12
        produce ~a p ~t-0 seq=4 v=12
        produce ~a p ~t-0 seq=1 v=12
        produce ~a p ~t-0 seq=2 v=12 acks=1
        produce ~a -1/-1 ~u-0 seq=-1 v=12 plain
        produce ~a -1/-1 ~u-0 seq=-1 v=12 ! no producer
        end ~a p commit v=5 as=p
        settle ~a
        produce ~a p ~t-0 seq=3 v=12
        produce ~a p ~t-0 seq=0 v=12
        producers ~t-0
        producers ~t-9
        producers ~none-0
        bounds ~t-0
        bounds ~t-1
    """,
    "markers": """
        init ~a v=4 as=p timeout=3600000
        add ~a p ~t-0 v=3
        produce ~a p ~t-0 seq=0 v=11
        marker p commit ~t-0,~none-0 epoch=5 tv=0 v=2
        producers ~t-0
        bounds ~t-0
        produce ~a p ~t-0 seq=1 v=11
        bounds ~t-0
        marker p abort ~t-0 epoch=4 v=1
        marker p-1 abort ~t-0 epoch=6 v=1 ! marker
        marker p abort ~t-0 epoch=6 tv=2 v=2
        marker p+1 abort ~t-0 epoch=6 tv=2 v=2
        bounds ~t-0
        marker p+1 abort ~t-0 epoch=6 tv=2 v=2
        marker p+1 commit ~t-0 epoch=7 tv=0 v=2
        marker p abort ~t-0 epoch=7 tv=2 v=2
        marker 78/3 commit ~t-1 epoch=0 tv=2 v=2
        marker 79/32767 commit ~t-1 epoch=0 tv=2 v=2
        marker 79/32767 commit ~t-1 epoch=0 tv=2 v=2
        marker -1/-1 commit ~t-1 epoch=0 tv=2 v=2 ! marker
        producers ~t-0
        producers ~t-1
        bounds ~t-1
        produce ~a p ~t-0 seq=1 v=11
        produce ~a p+1 ~t-0 seq=3 v=11
        marker p abort ~t-9 epoch=7 v=1
    """,
    "lists": """
        init ~a v=4 as=p
        init ~b v=4 as=q
        init ~b.c v=4 as=r
        add ~b q ~t-0 v=3
        add ~b.c r ~t-0 v=3
        end ~b.c r abort v=4
        settle ~b.c
        list
        list v=0
        list v=1 duration=0 ! duration
        list duration=100000 ! duration
        list states=Ongoing
        list states=Ongoing,Wrong,Dead
        list states=ongoing
        list states=Wrong
        list producer=p
        list producer=77/0
        list pattern=~b
        list pattern=~.*
        list pattern=[
        list pattern=b
        list states=Ongoing producer=p
        list states=CompleteAbort,Empty
    """,
    "a deleted topic": """
        init ~a v=4 as=p
        add ~a p ~t-0,~u-0 v=3
        produce ~a p ~t-0 seq=0 v=11
        produce ~a p ~u-0 seq=0 v=11
        delete ~u
        produce ~a p ~u-0 seq=1 v=11
        end ~a p commit v=4
        settle ~a
        describe ~a
        bounds ~t-0
        add ~a p ~u-0 v=3
        producers ~u-0
    """,
    "time-outs of the second version": """
        init ~a v=5 as=p timeout=100
        produce ~a p ~t-0 seq=0 v=12
        await ~a CompleteAbort
        describe ~a
        producers ~t-0
        bounds ~t-0
        produce ~a p ~t-0 seq=1 v=12
        produce ~a p ~t-1 seq=0 v=12
        commit ~a p ~g ~t-0=5 v=5
        end ~a p abort v=5
        end ~a p commit v=5 ! fenced
        init ~a v=5 had=p as=q timeout=100
        describe ~a
        produce ~a q ~t-0 seq=0 v=12
        await ~a CompleteAbort
        end ~a q abort v=4
        init ~a v=5 had=q+1
        end ~a q+1 abort v=5
        end ~a q commit v=5
    """,
    "level 1": """
        level 1
        init ~a v=5 as=p timeout=100
        describe ~a
        add ~a p ~t-0 v=3
        produce ~a p ~t-0 seq=0 v=11
        await ~a CompleteAbort
        describe ~a
        producers ~t-0
        end ~a p abort v=4
        end ~a p commit v=4
        end ~a p commit v=1
        add ~a p ~t-0 v=3
        add ~a p ~t-0 v=0
        produce ~a p ~t-0 seq=1 v=11
        produce ~a p ~t-1 seq=0 v=11
        init ~a v=4 had=p
        init ~a v=4 as=q timeout=60000
        produce ~a q ~t-0 seq=0 v=12
        end ~a q commit v=5 as=r
        settle ~a
        describe ~a
        add ~a r ~t-0 v=3
        produce ~a r ~t-0 seq=0 v=11
        init ~a v=4
        settle ~a
        describe ~a
        producers ~t-0
        bounds ~t-0
        init ~a v=4 had=r
        init ~a v=4 as=s
        describe ~a
        level 2
    """,
    "level 0": """
        level 0
        init ~a v=5 as=p
        add ~a p ~t-0 v=3
        produce ~a p ~t-0 seq=0 v=11
        init ~a v=4
        settle ~a
        describe ~a
        init ~a v=4 as=q
        add ~a q ~t-0 v=3
        produce ~a q ~t-0 seq=0 v=11
        end ~a q commit v=4
        settle ~a
        describe ~a
        producers ~t-0
        bounds ~t-0
        init ~b v=4 as=r
        produce ~b r ~t-1 seq=0 v=12 ! level
        end ~b r commit v=5 ! level
        level 2
        add ~a q ~t-0 v=3
        end ~a q abort v=4
        settle ~a
        describe ~a
    """,
    "a change of versions": """
        init ~a v=4 as=p
        add ~a p ~t-0 v=3
        produce ~a p ~t-0 seq=0 v=11
        end ~a p commit v=5 as=q
        settle ~a
        describe ~a
        produce ~a q ~t-0 seq=0 v=12
        end ~a q commit v=4
        settle ~a
        describe ~a
        add ~a q ~t-0 v=3
        produce ~a q ~t-0 seq=1 v=11
        end ~a q commit v=4
        settle ~a
        end ~a q-1 commit v=5 ! upgraded
        end ~a q abort v=4
        describe ~a
        producers ~t-0
    """,
}


def lines_of(script: str) -> list[str]:
    return [line.strip() for line in script.strip().splitlines()]


def split(line: str) -> tuple[str, str | None]:
    """Split a line into the request, and the reason for another answer than Kafka's."""
    request, _, key = line.partition(" ! ")
    return request, REASONS[key] if key else None


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[TcpClient, str]]]:
    """Clients of Kafka's node and of ours, with the address of each."""
    directory = tmp_path_factory.mktemp("nodes")
    shared = {name: value for name, value in SETTINGS.items() if name.startswith(("offsets", "transaction"))}
    timer = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    with (
        Node(directory / "kafka", **{timer: 200}) as kafka,
        TcpCluster(directory / "kreplica", brokers=1, settings={**shared, timer: 200}) as ours,
    ):
        host, port = kafka.bootstrap.split(":")
        theirs: Any = SimpleNamespace(addresses={1: (host, int(port))}, live=[1])
        with TcpClient(theirs) as of_kafka, TcpClient(ours) as of_ours:
            yield {"kafka": (of_kafka, kafka.bootstrap), "kreplica": (of_ours, ours.bootstrap_servers)}


def answers(client: TcpClient, bootstrap: str, name: str, lines: Sequence[str]) -> list[str]:
    """The answers of one node to the lines."""
    prefix = f"{name.replace(' ', '_')}."
    topics = [NewTopic(f"{prefix}{topic}", 2, 1) for topic in "tu"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(topics).values():
        created.result(60)
    requests = TransactionRequests(client, prefix)
    requests.begin([each.topic for each in topics], f"{prefix}a", f"{prefix}g")
    return [requests.answer(line) for line in lines]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_answers_are_kafkas(clients: dict[str, tuple[TcpClient, str]], name: str) -> None:
    lines, reasons = zip(*(split(line) for line in lines_of(SCRIPTS[name])), strict=True)
    kafka = answers(*clients["kafka"], name, lines)
    ours = answers(*clients["kreplica"], name, lines)
    differing = [
        f"{line}: Kafka answers {theirs!r}, we {our!r}, deliberately: {reason or 'no'}"
        for line, reason, theirs, our in zip(lines, reasons, kafka, ours, strict=True)
        if (theirs == our) is (reason is not None)
    ]
    assert differing == []


# The other APIs are offered in the same versions.
DIFFERENT_VERSIONS = {PRODUCE: ((0, 13), (0, 12))}


def test_the_same_versions_and_features_are_offered(clients: dict[str, tuple[TcpClient, str]]) -> None:
    offered = {side: TransactionRequests(client, "").offered() for side, (client, _) in clients.items()}
    (theirs, of_kafka), (ours, of_kreplica) = offered["kafka"], offered["kreplica"]
    differing = {key: (theirs[key], ours[key]) for key in APIS if theirs[key] != ours[key]}
    assert differing == DIFFERENT_VERSIONS
    assert of_kreplica == of_kafka == 2
