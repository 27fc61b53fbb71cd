"""Writing into a running cluster in transactions: each batch appears once and whole, whatever dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from kreplica.spark import cluster_sink, sink_rows
from kreplica.spark.cluster_client import ClusterClient
from kreplica.spark.cluster_sink import IDEMPOTENT, TRANSACTIONS, Cluster, Scratch, this_machine
from kreplica.spark.offsets import LATEST
from kreplica.spark.sink_rows import Rows, SinkError, Staged, Staging
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplica
from kreplica.common.errors import InvalidTransactionTimeout, MessageTooLarge, TransactionAbortable
from kreplica.common.messages.data import ProduceRequest
from kreplica.common.messages.transactions import EndTxnRequest
from kreplica.common.types import TopicPartition
from tests.support.failing_tasks import ROWS
from tests.support.polling import wait_until
from tests.support.serving import environment
from tests.support.topic_names import topic_of

COMMITTED = 1
PARTITIONS = 2
# Much less than the timeout of a transaction.
SOON_S = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kreplica.Cluster]:
    with kreplica.Cluster(brokers=2, directory=tmp_path_factory.mktemp("cluster"), serve=True) as made:
        yield made


@pytest.fixture
def topic(cluster: kreplica.Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name = topic_of(request)
    cluster.create_topic(name, partitions=PARTITIONS, replication_factor=2)
    return name


class Driver:
    """A driver of a query, with the tasks of its batches. Each has an own client, as an own process has."""

    def __init__(
        self, cluster: kreplica.Cluster, topic: str, checkpoint: Path | None, exactly_once: str | None = None
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._scratch = None if checkpoint is None else Scratch(str(checkpoint))
        self._exactly_once = exactly_once

    def sink(self, *, is_stream: bool = True, **more: Any) -> Cluster:
        client = ClusterClient(self._cluster.bootstrap_servers)
        given = {"is_stream": is_stream, "exactly_once": self._exactly_once, **more}
        return Cluster(client, "none", self._scratch, **given)

    def task(self, batch_id: int, directory: Path, *numbers: int) -> Staged:
        """Stage rows for all partitions: the number in one batch of each."""
        sink = self.sink()
        staging = sink.staging("query", batch_id) or str(directory)
        made = Staging(staging, Rows(self.topic, {self.topic: PARTITIONS}))
        for number in numbers:
            for partition in range(PARTITIONS):
                made.write(rows(number, partition))
        files = made.close()
        if self._scratch is None:
            return Staged.with_contents("query", files, staging)
        return Staged("query", tuple(files))

    def commit(self, batch_id: int, *staged: Staged) -> bool:
        return self.sink().commit("query", batch_id, staged)


def rows(number: int, partition: int) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(
        {"value": [b"%d" % number], "partition": pyarrow.array([partition], pyarrow.int32())}
    )


@pytest.fixture
def driver(cluster: kreplica.Cluster, topic: str, tmp_path: Path) -> Driver:
    (tmp_path / "checkpoint").mkdir()
    # A query of its own for each test: the topic's name is in the id of the query.
    return Driver(cluster, topic, tmp_path / "checkpoint")


@pytest.fixture(autouse=True)
def own_query(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own transactional id and group."""
    monkeypatch.setattr(cluster_sink, "_name", lambda writer: f"{topic}-{writer}")


def committed(cluster: kreplica.Cluster, topic: str) -> list[list[int]]:
    """Return what a reader of committed records sees in each partition."""
    return [
        [int(record.value or b"") for record in cluster.read(topic, each, isolation="txn_committed")]
        for each in range(PARTITIONS)
    ]


def require_committed(cluster: kreplica.Cluster, topic: str, numbers: list[int]) -> None:
    """Check that readers of committed records reach the end of each partition, and see these numbers there.

    The markers of a transaction may still be on their way when its end is stored.
    """
    client = ClusterClient(cluster.bootstrap_servers)
    partitions = [TopicPartition(topic, each) for each in range(PARTITIONS)]

    def is_complete() -> bool:
        return all(client.offset(at, LATEST, COMMITTED) == client.offset(at, LATEST, 0) for at in partitions)

    wait_until(is_complete, f"no transaction of {topic} is open", timeout_s=SOON_S)
    client.close()
    assert committed(cluster, topic) == [numbers] * PARTITIONS


def before_each_request(monkeypatch: pytest.MonkeyPatch, act: Callable[[Any], object]) -> None:
    """Call `act` with each request to a leader or coordinator before it is sent."""
    ask = ClusterClient._ask

    def asking(self: ClusterClient, address: Any, request: Any) -> Any:
        act(request)
        return ask(self, address, request)

    monkeypatch.setattr(ClusterClient, "_ask", asking)


def test_readers_see_no_part_of_a_batch_that_is_being_written(
    cluster: kreplica.Cluster, driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []
    staged = [driver.task(0, tmp_path, number) for number in range(3)]
    before_each_request(monkeypatch, lambda _: seen.append(committed(cluster, driver.topic)))
    assert driver.commit(0, *staged)
    assert len(seen) > 3 * PARTITIONS
    assert seen == [[[], []]] * len(seen)
    require_committed(cluster, driver.topic, [0, 1, 2])


@pytest.mark.parametrize("is_answer_lost", [False, True], ids=["request is lost", "answer is lost"])
def test_a_driver_that_dies_at_any_request_leaves_all_of_the_batch_or_nothing(
    cluster: kreplica.Cluster,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_answer_lost: bool,
) -> None:
    """The next driver finds out which, whatever the number of the request."""
    ask, expected, outcomes = ClusterClient._ask, list[int](), set[bool]()
    for batch_id in range(100):
        asked = 0

        def dying(self: ClusterClient, address: Any, request: Any, last: int = batch_id) -> Any:
            nonlocal asked
            asked += 1
            if asked > last and not is_answer_lost:
                raise KeyboardInterrupt
            answer = ask(self, address, request)
            if asked > last:
                raise KeyboardInterrupt
            return answer

        staged = driver.task(batch_id, tmp_path, 2 * batch_id, 2 * batch_id + 1)
        with monkeypatch.context() as patch:
            patch.setattr(ClusterClient, "_ask", dying)
            try:
                driver.commit(batch_id, staged)
                break
            except KeyboardInterrupt:
                pass
        seen = committed(cluster, driver.topic)
        assert seen[0] in (expected, [*expected, 2 * batch_id, 2 * batch_id + 1])
        # The rows come in another order when the batch is repeated.
        outcomes.add(driver.commit(batch_id, driver.task(batch_id, tmp_path, 2 * batch_id, 2 * batch_id + 1)))
        expected += [2 * batch_id, 2 * batch_id + 1]
        require_committed(cluster, driver.topic, expected)
    assert batch_id >= 10
    assert outcomes == ({True, False} if is_answer_lost else {True})


def test_a_driver_that_was_thought_dead_is_fenced(
    cluster: kreplica.Cluster, driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    staged, produced = driver.task(0, tmp_path, 1, 2), []

    def meanwhile(request: Any) -> None:
        if isinstance(request, ProduceRequest):
            produced.append(request)
        if len(produced) == 2:
            monkeypatch.undo()
            monkeypatch.setattr(cluster_sink, "_name", lambda writer: f"{driver.topic}-{writer}")
            assert driver.commit(0, driver.task(0, tmp_path, 2, 1))

    before_each_request(monkeypatch, meanwhile)
    with pytest.raises(SinkError, match="was ended by another driver of this query, or took longer than"):
        driver.commit(0, staged)
    require_committed(cluster, driver.topic, [2, 1])


def test_a_batch_that_a_late_driver_repeats_is_not_written_again(
    cluster: kreplica.Cluster, driver: Driver, tmp_path: Path
) -> None:
    for batch_id in range(3):
        assert driver.commit(batch_id, driver.task(batch_id, tmp_path, batch_id))
    assert not driver.commit(1, driver.task(1, tmp_path, 1))
    assert not driver.commit(2, driver.task(2, tmp_path, 2))
    assert driver.commit(3, driver.task(3, tmp_path, 3))
    require_committed(cluster, driver.topic, [0, 1, 2, 3])


def test_rows_of_attempts_that_spark_does_not_take_are_not_written(
    cluster: kreplica.Cluster, driver: Driver, tmp_path: Path
) -> None:
    """A task that failed, and the slower one of two that ran at once, have staged rows, too."""
    taken = driver.task(0, tmp_path, 1)
    driver.task(0, tmp_path, 1)
    other = driver.task(0, tmp_path, 2)
    assert driver.commit(0, taken, other)
    require_committed(cluster, driver.topic, [1, 2])
    assert not list((tmp_path / "checkpoint").rglob("*.arrow"))


def test_rows_travel_with_the_messages_if_driver_and_tasks_share_no_directory(
    cluster: kreplica.Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(cluster, topic, None)
    assert driver.sink().staging("query", 0) is None
    assert not driver.sink().sends()
    staged = driver.task(0, tmp_path / "task", 1, 2)
    for file in (tmp_path / "task").iterdir():
        file.unlink()
    assert driver.commit(0, staged)
    assert not driver.commit(0, staged)
    require_committed(cluster, topic, [1, 2])
    monkeypatch.setattr(sink_rows, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(SinkError, match="shares no directory with the driver; the maximum is 100"):
        driver.task(1, tmp_path / "task", 3)


def test_a_batch_that_a_change_in_the_cluster_has_aborted_is_begun_again(
    cluster: kreplica.Cluster, driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests = []

    def refuse_one(request: Any) -> None:
        requests.append(request)
        if isinstance(request, EndTxnRequest) and sum(isinstance(r, EndTxnRequest) for r in requests) == 1:
            raise TransactionAbortable("for the test")

    before_each_request(monkeypatch, refuse_one)
    assert driver.commit(0, driver.task(0, tmp_path, 1, 2))
    require_committed(cluster, driver.topic, [1, 2])


def test_a_batch_that_the_cluster_refuses_holds_back_no_reader(
    cluster: kreplica.Cluster, driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    produced = []

    def refuse_second(request: Any) -> None:
        if isinstance(request, ProduceRequest):
            produced.append(request)
            if len(produced) == 2:
                raise MessageTooLarge("for the test")

    with monkeypatch.context() as patch:
        before_each_request(patch, refuse_second)
        with pytest.raises(MessageTooLarge):
            driver.commit(0, driver.task(0, tmp_path, 1, 2))
    require_committed(cluster, driver.topic, [])


def test_a_timeout_that_the_cluster_does_not_allow(driver: Driver, tmp_path: Path) -> None:
    staged = driver.task(0, tmp_path, 1)
    with pytest.raises(InvalidTransactionTimeout):
        driver.sink(timeout_ms=10_000_000).commit("query", 0, [staged])


# ---- which of the two ways -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exactly_once", "version", "uses"),
    [
        (None, 2, True),
        (None, 1, True),
        (None, 0, False),
        (None, None, False),
        (TRANSACTIONS, 0, True),
        (TRANSACTIONS, 2, True),
        (IDEMPOTENT, 2, False),
    ],
)
def test_the_option_decides_or_else_the_cluster(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    exactly_once: str | None,
    version: int | None,
    uses: bool,
) -> None:
    monkeypatch.setattr(ClusterClient, "transaction_version", lambda _: version)
    assert driver.sink(exactly_once=exactly_once).uses_transactions() is uses


def test_transactions_that_the_cluster_does_not_have(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterClient, "transaction_version", lambda _: None)
    with pytest.raises(SinkError, match=r"exactlyOnce=transactions: the cluster at .* has no transactions"):
        driver.sink(exactly_once=TRANSACTIONS).uses_transactions()


def test_the_clusters_own_version(cluster: kreplica.Cluster) -> None:
    client = ClusterClient(cluster.bootstrap_servers)
    assert client.transaction_version() == 2
    client.close()


def test_a_batch_is_written_once_when_the_query_changes_its_way(
    cluster: kreplica.Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint").mkdir()
    idempotent = Driver(cluster, topic, tmp_path / "checkpoint", IDEMPOTENT)
    transactions = Driver(cluster, topic, tmp_path / "checkpoint", TRANSACTIONS)
    assert idempotent.commit(0, idempotent.task(0, tmp_path, 0))
    # Spark repeats a batch that was written, but is not in its log of commits.
    assert not transactions.commit(0, transactions.task(0, tmp_path, 0))
    assert transactions.commit(1, transactions.task(1, tmp_path, 1))
    assert not idempotent.commit(1, idempotent.task(1, tmp_path, 1))
    # This one was cut off when it was half written.
    produce, produced = ClusterClient.produce, []

    def dying(self: ClusterClient, *given: Any) -> None:
        if produced:
            raise KeyboardInterrupt
        produced.append(given)
        produce(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ClusterClient, "produce", dying)
        with pytest.raises(KeyboardInterrupt):
            idempotent.commit(2, idempotent.task(2, tmp_path, 2, 3))
    assert transactions.commit(2, transactions.task(2, tmp_path, 3, 2))
    require_committed(cluster, topic, [0, 1, 2, 3])


# ---- batch writes ----------------------------------------------------------------------------------------


def test_machines_are_told_apart(tmp_path: Path) -> None:
    here = Scratch(str(tmp_path), this_machine())
    assert here.is_here()
    assert not Scratch(str(tmp_path), ("elsewhere", *this_machine()[1:])).is_here()
    assert Scratch(str(tmp_path)).is_here()
    assert not Scratch(str(tmp_path / "not mounted")).is_here()


def test_a_batch_write_is_one_transaction(
    spark: SparkSession,
    cluster: kreplica.Cluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "cast(id % 2 as int) as partition", "cast(id as string) value"
    )
    frame.write.format("kreplica").options(**servers).mode("append").save()
    read = spark.read.format("kreplica").options(subscribe=topic, **servers)
    del servers["topic"]
    read = spark.read.format("kreplica").options(subscribe=topic, **servers)
    found = read.option("kafka.isolation.level", "read_committed").load()
    assert sorted(int(bytes(row.value)) for row in found.collect()) == list(range(100))
    with kreplica.Log.open(log_of(cluster, topic), read_only=True) as log:
        data = [batch for batch in log.batches() if not batch.is_control]
        assert {batch.is_transactional for batch in data} == {True}
        assert len({(batch.producer_id, batch.producer_epoch) for batch in data}) == 1


def log_of(cluster: kreplica.Cluster, topic: str) -> Path:
    [*found] = Path(cluster.directory).rglob(f"{topic}-0")
    return found[0]


def test_a_batch_write_of_which_one_task_fails_writes_nothing(
    spark: SparkSession, cluster: kreplica.Cluster, topic: str
) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "cast(id % 2 as int) as partition",
        "if(id = 99, raise_error('for the test'), cast(id as string)) as value",
    )
    with pytest.raises(PySparkException, match="for the test"):
        frame.write.format("kreplica").option("topic", topic).option(
            "kafka.bootstrap.servers", cluster.bootstrap_servers
        ).mode("append").save()
    require_committed(cluster, topic, [])


@pytest.mark.kills
def test_rows_of_attempts_that_failed_are_not_written(
    cluster: kreplica.Cluster, topic: str, tmp_path: Path
) -> None:
    """Each task fails once in Spark, when the sink has taken all its rows."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.failing_tasks",
            cluster.bootstrap_servers,
            topic,
            str(tmp_path),
        ],
        env={**environment(), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = committed(cluster, topic)
    assert [sorted(each) for each in found] == [list(range(each, ROWS, 2)) for each in range(PARTITIONS)]
    assert list(temporary.glob("batch-*")) == []
