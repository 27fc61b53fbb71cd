"""Write all flights through three nodes; kill one node midway and restart it.

The main thread acts on the cluster at given numbers of acknowledged flights; a producer and a watch run in
their own threads. The result is a Course, whose times are seconds since the first flight was sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import pyarrow
from confluent_kafka.admin import AdminClient, NewTopic

from bench.demo.flights import messages
from bench.demo.producing import LIBRDKAFKA, FlightProducer, Silence
from bench.demo.telling import Teller
from bench.demo.watching import Event, IsrChange, Offsets, Watch
from tests.support.node_processes import NodeProcesses

TOPIC = "flights"
PARTITIONS = 4
REPLICAS = 3
MIN_IN_SYNC = 2
CREATE_SECONDS = 30.0
# The shares of all flights at which the stream begins, the leader is killed, the node restarts, and the
# stream must have read something.
STREAM_AT, KILL_AT, RESTART_AT, STREAMED_AT = 0.25, 0.5, 0.7, 0.95
STREAM_SECONDS = 180.0
# Longer than an election takes with the defaults of `kreplica serve`, even on a busy machine.
FAILOVER_SECONDS = 60.0


class Killed(NamedTuple):
    """The killed node, the partitions that it led, and the time."""

    node: int
    partitions: tuple[int, ...]
    seconds: float


class Course(NamedTuple):
    """The history of the cluster during the run.

    `ends`: for each partition, the offset after the last acknowledged one. `is_exact`: whether the number of
    acknowledgements equals the number of offsets below. `silence`: the longest time after the kill in which a
    partition had no acknowledgement. `acknowledged`: counts by partition and interval number of
    producing.INTERVAL_SECONDS.
    """

    offsets: Sequence[Offsets]
    isr_history: Sequence[IsrChange]
    events: Sequence[Event]
    ends: Sequence[int]
    is_exact: bool
    killed: Killed
    silence: Silence
    acknowledged: Mapping[tuple[int, int], int]
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Whether at the end all replicas were in sync, and their logs ended where the acknowledgements
        do."""
        states, ends = self.isr_history[-1].states, self.offsets[-1].ends
        return all(len(state.isr) == REPLICAS for state in states) and all(
            tuple(each) == tuple(self.ends) for each in ends.values()
        )

    def is_out(self, node: int) -> bool:
        """Return whether at some time after the kill the node was in no ISR."""
        return any(
            all(node not in state.isr for state in change.states)
            for change in self.isr_history
            if change.seconds > self.killed.seconds
        )


def create_topic(bootstrap: str) -> None:
    """Create the topic of the flights. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=LIBRDKAFKA)
    topic = NewTopic(TOPIC, PARTITIONS, REPLICAS, config={"min.insync.replicas": str(MIN_IN_SYNC)})
    admin.create_topics([topic])[TOPIC].result(CREATE_SECONDS)


def write_flights(
    nodes: NodeProcesses,
    table: pyarrow.Table,
    teller: Teller,
    *,
    rate: float,
    begin_stream: Callable[[Sequence[int]], object],
    is_streaming: Callable[[], bool],
    done: Callable[[], object],
) -> Course:
    """Send all flights to the existing topic, with the kill and the restart in between.

    When STREAM_AT of them are acknowledged, `begin_stream` is called with the offsets after them. The last
    flights wait until the stream has read some (`is_streaming`). `done` is called as soon as all are
    acknowledged. Raises ProducingFailed, NotInTime.
    """
    total = table.num_rows
    with teller.bar(total) as show:
        producer = FlightProducer(
            nodes.bootstrap,
            TOPIC,
            PARTITIONS,
            messages(table),
            total,
            rate=rate,
            holds=[int(total * STREAM_AT), int(total * STREAMED_AT)],
            show=show,
        )
        directories = {node: nodes.node_directory(node) for node in nodes.ids}
        with closing(producer):
            producer.start()
            with Watch(directories, nodes.bootstrap, TOPIC, PARTITIONS, producer.started) as watch:
                producer.wait_for(int(total * STREAM_AT))
                watch.record("Spark's stream begins")
                begin_stream(tuple(producer.acknowledged.ends))
                producer.go_on()
                producer.wait_for(int(total * KILL_AT))
                killed = _kill_a_leader(nodes, producer, watch, teller)
                silence = _wait_for_new_leaders(producer, watch, killed, teller)
                producer.wait_for(int(total * RESTART_AT))
                _restart(nodes, killed.node, producer, watch, teller)
                watch.wait_until("the stream has read flights", is_streaming, STREAM_SECONDS)
                producer.go_on()
                producer.wait_until_done()
                done()
                _wait_until_equal(nodes, producer, watch, teller)
                return _course(producer, watch, killed, silence)


def _kill_a_leader(nodes: NodeProcesses, producer: FlightProducer, watch: Watch, teller: Teller) -> Killed:
    """Send SIGKILL to the node that leads most partitions."""
    watch.wait_until("the cluster reports its leaders", lambda: bool(watch.isr_history))
    leaders = [state.leader for state in watch.states]
    victim = Counter(leader for leader in leaders if leader >= 0).most_common(1)[0][0]
    led = tuple(partition for partition, leader in enumerate(leaders) if leader == victim)
    acknowledged = producer.acknowledged.count
    producer.acknowledged.forget_silences()
    event = watch.record(f"kill -9 of node {victim}")
    nodes.kill(victim)
    teller.say(
        f"[bold red]kill -9[/] of node {victim}, leader of {_names(led)}, "
        f"after {acknowledged:,} acknowledged flights"
    )
    return Killed(victim, led, event.seconds)


def _wait_for_new_leaders(producer: FlightProducer, watch: Watch, killed: Killed, teller: Teller) -> Silence:
    """Wait until all partitions acknowledge again; return the longest time without an acknowledgement."""

    def moved() -> bool:
        return all(watch.states[partition].leader not in (-1, killed.node) for partition in killed.partitions)

    watch.wait_until("the dead node's partitions have new leaders", moved, FAILOVER_SECONDS)
    leaders = ", ".join(f"{TOPIC}-{p} by node {watch.states[p].leader}" for p in killed.partitions)
    teller.say(f"new leaders: {leaders}")
    before = list(producer.acknowledged.counts)

    def goes_on() -> bool:
        counts = producer.acknowledged.counts
        return all(counts[p] > before[p] for p in killed.partitions)

    watch.wait_until(
        "the new leaders acknowledge", lambda: producer.has_nothing_under_way or goes_on(), FAILOVER_SECONDS
    )
    silences = producer.acknowledged.silences
    longest = max(silences, key=_seconds)
    each = ", ".join(f"{silence.seconds * 1000:,.0f}" for silence in silences)
    teller.say(
        f"the longest time without an ack: [bold]{longest.seconds * 1000:,.0f} ms[/], "
        f"in {TOPIC}-{silences.index(longest)} (of each partition: {each} ms)"
    )
    return longest


def _restart(nodes: NodeProcesses, node: int, producer: FlightProducer, watch: Watch, teller: Teller) -> None:
    behind = sum(watch.offsets[-1].high_watermarks) - sum(watch.offsets[-1].ends[node])
    watch.record(f"node {node} started again")
    nodes.start(node)
    teller.say(f"node {node} started again on its directories, {behind:,} records behind")
    watch.wait_until("the restarted node is in sync again", lambda: watch.all_in_sync(nodes.ids))
    back = watch.isr_history[-1].seconds
    watch.events.append(Event(back, "all in sync again"))
    teller.say(
        f"caught up and in sync in all partitions {back - watch.events[-2].seconds:.1f} s later, "
        f"with {producer.acknowledged.count:,} flights acknowledged"
    )


def _wait_until_equal(nodes: NodeProcesses, producer: FlightProducer, watch: Watch, teller: Teller) -> None:
    """Wait until every replica ends where the acknowledgements do."""
    acknowledged = producer.acknowledged
    teller.say(
        f"{acknowledged.count:,} flights acknowledged in {producer.seconds:.1f} s, "
        f"by partition: {', '.join(f'{end:,}' for end in acknowledged.ends)}; "
        f"never more than {max(acknowledged.silences, key=_seconds).seconds * 1000:,.0f} ms without an ack "
        f"since the kill"
    )
    watch.wait_until("all replicas are in sync", lambda: watch.all_in_sync(nodes.ids))
    watch.wait_until("all replicas end where the flights do", lambda: watch.all_at(acknowledged.ends))


def _course(producer: FlightProducer, watch: Watch, killed: Killed, silence: Silence) -> Course:
    acknowledged = producer.acknowledged
    return Course(
        tuple(watch.offsets),
        tuple(watch.isr_history),
        tuple(watch.events),
        tuple(acknowledged.ends),
        acknowledged.is_exact,
        killed,
        silence,
        dict(acknowledged.intervals),
        watch.now(),
    )


def _seconds(silence: Silence) -> float:
    return silence.seconds


def _names(partitions: Sequence[int]) -> str:
    return " and ".join(f"{TOPIC}-{partition}" for partition in partitions)
