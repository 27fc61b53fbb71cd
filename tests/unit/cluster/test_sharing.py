"""Share groups of a cluster in this process: a durable queue for several workers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kreplica import aio
from kreplica.cluster import Cluster
from kreplica.common import errors

PATIENCE = 30
IDLE = 1.0
CONFIG = {
    "offsets.topic.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
    "group.share.min.record.lock.duration.ms": 1_000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(3, tmp_path_factory.mktemp("share") / "data", config=CONFIG) as cluster:
        yield cluster
        assert cluster.failures == []


@pytest.fixture
def topic(cluster, request):
    name = request.node.name.replace("[", "-").replace("]", "")
    cluster.create_topic(name, partitions=2)
    return name


def put(cluster, topic, *values):
    for number, value in enumerate(values):
        cluster.append(topic, [value], partition=number % 2).result(PATIENCE)


def taken(cluster, topic, **options):
    return sorted(message.value for message in cluster.share(topic, topic, timeout=IDLE, **options))


def test_every_message_is_processed_once(cluster, topic):
    put(cluster, topic, b"a", b"b", b"c")
    assert taken(cluster, topic) == [b"a", b"b", b"c"]
    put(cluster, topic, b"d")
    assert taken(cluster, topic) == [b"d"]


def test_a_message_at_which_a_program_fails_is_delivered_again(cluster, topic):
    put(cluster, topic, b"a")

    def work():
        with cluster.share(topic, topic) as messages:
            for message in messages:
                raise InterruptedError(message.value)

    with pytest.raises(InterruptedError):
        work()
    (again,) = cluster.share(topic, topic, timeout=IDLE)
    assert (again.value, again.delivery_count) == (b"a", 2)


def test_messages_are_released_rejected_and_renewed(cluster, topic):
    put(cluster, topic, b"good", b"bad")
    seen = []
    with cluster.share(topic, topic, timeout=IDLE) as messages:
        for message in messages:
            seen.append((message.value, message.delivery_count))
            if message.value == b"bad":
                message.reject().result(PATIENCE)
            elif message.delivery_count == 1:
                message.release().result(PATIENCE)
            else:
                message.renew().result(PATIENCE)
                message.accept().result(PATIENCE)
    assert sorted(seen) == [(b"bad", 1), (b"good", 1), (b"good", 2)]
    assert taken(cluster, topic) == []


def test_two_workers_share_a_partition(cluster, topic):
    count = 40
    put(cluster, topic, *(b"%d" % number for number in range(count)))
    seen: list[tuple[int, bytes]] = []
    both = threading.Barrier(2)

    of_workers = [cluster.share(topic, topic, timeout=PATIENCE, max_records=1) for _ in range(2)]

    def work(worker):
        for message in of_workers[worker]:
            is_first = all(who != worker for who, _ in seen)
            seen.append((worker, message.value))
            if is_first:
                both.wait(PATIENCE)
            if len(seen) == count:
                for each in of_workers:
                    each.close()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(PATIENCE)
    assert {who for who, _ in seen} == {0, 1}
    assert sorted(int(value) for _, value in seen) == list(range(count))


def test_lists_of_messages(cluster, topic):
    put(cluster, topic, b"a", b"b", b"c", b"d")
    lists = list(cluster.share(topic, topic, timeout=IDLE).batches())
    assert sorted(message.value for each in lists for message in each) == [b"a", b"b", b"c", b"d"]
    assert taken(cluster, topic) == []


def test_lists_do_not_skip_messages_that_a_loop_has_left(cluster, topic):
    cluster.append(topic, [b"a", b"b", b"c"], partition=0).result(PATIENCE)
    with cluster.share(topic, topic, max_records=3) as messages:
        assert next(messages).value == b"a"
        with pytest.raises(errors.InvalidRequest, match="one by one"):
            next(messages.batches())
        assert next(messages).value == b"b"  # the member is still one


def test_a_group_may_begin_at_the_end(cluster, topic):
    put(cluster, topic, b"early")
    assert taken(cluster, topic, start="latest") == []
    put(cluster, topic, b"late")
    assert taken(cluster, topic) == [b"late"]


@pytest.mark.parametrize("wrong", [{"max_records": 0}, {"start": "middle"}])
def test_arguments_that_make_no_sense(cluster, topic, wrong):
    with pytest.raises(ValueError, match="must be"):
        cluster.share(topic, topic, **wrong)
    assert taken(cluster, topic) == []
    # Also where the group has its setting.
    with pytest.raises(ValueError, match="must be"):
        cluster.share(topic, topic, **wrong)


def test_a_number_that_is_no_number_is_refused(cluster, topic):
    with pytest.raises(TypeError, match="max_records must be a number"):
        cluster.share(topic, topic, max_records="5")


@pytest.mark.parametrize("read", ["consume", "share"])
def test_a_group_without_a_name_is_refused(cluster, topic, read):
    with pytest.raises(errors.InvalidGroupId):
        list(getattr(cluster, read)(topic, "", timeout=IDLE))


@pytest.mark.parametrize("read", ["consume", "share"])
@pytest.mark.parametrize(
    ("named", "group", "error"),
    [
        ("no topic!", "g", errors.InvalidTopic),
        (["orders", ""], "g", errors.InvalidTopic),
        (["orders", 1], "g", TypeError),
        (None, "g", TypeError),
        (b"orders", "g", TypeError),
        ([], "g", ValueError),
        ("orders", "\ud800", ValueError),
        ("orders", 1, TypeError),
        ("orders", "g" * 40_000, ValueError),
    ],
)
def test_names_that_no_topic_or_group_can_have_are_refused_at_once(cluster, read, named, group, error):
    with pytest.raises(error):
        getattr(cluster, read)(named, group)


def test_a_consumer_group_is_no_share_group(cluster, topic):
    records = cluster.consume(topic, topic)
    put(cluster, topic, b"a")
    next(records)
    with pytest.raises(errors.GroupIdNotFound):
        taken(cluster, topic)
    records.close()


def test_in_asyncio(cluster, topic):
    put(cluster, topic, b"a", b"b")

    async def work():
        seen = []
        async with aio.Cluster(cluster).share(topic, topic, timeout=IDLE) as messages:
            async for message in messages:
                if message.delivery_count == 1:
                    await message.release()
                else:
                    seen.append(message.value)
        return seen

    assert sorted(asyncio.run(work())) == [b"a", b"b"]
    assert taken(cluster, topic) == []


def test_another_thread_ends_a_loop_that_waits(cluster, topic):
    put(cluster, topic, b"a")
    messages = cluster.share(topic, topic)
    seen, is_waiting = [], threading.Event()

    def work():
        for message in messages:
            seen.append(message.value)
            message.accept().result(PATIENCE)
            is_waiting.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert is_waiting.wait(PATIENCE)
    messages.close()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    assert seen == [b"a"]
    assert list(messages) == []


def test_a_loop_that_closes_its_messages_gets_no_other(cluster, topic):
    put(cluster, topic, b"a", b"b", b"c")
    messages = cluster.share(topic, topic)
    for message in messages:
        seen = message.value
        message.accept().result(PATIENCE)
        messages.close()
    assert taken(cluster, topic) == sorted({b"a", b"b", b"c"} - {seen})
