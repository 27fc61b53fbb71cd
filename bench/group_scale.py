"""Measure large groups and many offsets against three `serve` processes: `python -m bench.group_scale`.

The members are light clients in this process: they send the heartbeats of the consumer protocol (KIP-848)
over a few connections and do what a heartbeat's answer asks for, without reading records. Prints each figure
with its goal, and writes build/bench-groups.json.

 --rounds N     rounds of each row (3)
 --rows a,b     only these rows
 --scale F      share of members, groups and offsets (1.0)
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench.peers.librdkafka import WAIT_S, SilentCluster, create_topic
from bench.peers.rows import OURS, Row, asked_for, print_figure, table_of, write
from bench.peers.work import cpu_s, process_s
from kreplica.common.error_code import ErrorCode
from kreplica.common.message import Message, at, in_version
from kreplica.common.message_reader import MessageReader, read_message
from kreplica.common.message_writer import request_frame
from kreplica.common.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kreplica.common.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from kreplica.coordinator.shard_store import partition_for
from kreplica.runtime.event_loop import new_event_loop
from tests.support.node_processes import NodeProcesses

BUILD = Path(__file__).parents[1] / "build"
DIRECTORY, RESULT = BUILD / "bench-groups", BUILD / "bench-groups.json"
CONNECTIONS = 16
MEMBERS, PARTITIONS, GROUPS = 1_000, 1_000, 2_000
OFFSET_GROUPS, OFFSETS = 100, 100_000
# Partitions of __consumer_offsets, by default.
SHARDS = 50
# How long an idle group is measured.
IDLE_S = 20.0
POLL_S = 0.005
# Kafka's timeouts: on a busy machine the shorter ones of kreplica add false alarms to the figures.
PATIENT = {
    "broker_session_timeout_ms": 9_000,
    "controller_quorum_election_timeout_ms": 1_000,
    "controller_quorum_fetch_timeout_ms": 2_000,
}

A = TypeVar("A", bound=Message)
RETRIABLE = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


class Connection:
    """A connection with any number of requests in flight."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[MessageReader]] = {}
        self._task = asyncio.ensure_future(self._read())

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Connection:
        return cls(*await asyncio.open_connection(*address))

    async def ask(self, request: Message, version: int, answer: type[A]) -> A:
        """Return the answer. Raises ConnectionError if the node is gone."""
        if self._task.done():
            raise ConnectionResetError("the node has closed the connection")
        self._number += 1
        number, future = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._writer.write(b"".join(request_frame(in_version(request, version), number, b"bench")))
        reader = await future
        kind = at(answer, version)
        if kind.__flexible__:
            reader.skip_tags()
        result: A = read_message(kind, reader)
        return result

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                reader = MessageReader(await self._reader.readexactly(size))
                self._waiting.pop(reader.int32()).set_result(reader)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            for each in self._waiting.values():
                each.set_exception(ConnectionResetError(str(error)))

    def close(self) -> None:
        self._task.cancel()
        self._writer.close()


class Member:
    """A member of a group. `owned`: its partitions, by topic id; `is_settled`: it has reported them."""

    def __init__(self, connection: Connection, group: str, number: int, topic: str) -> None:
        self._connection, self._group, self._topic = connection, group, topic
        self._id, self._epoch = f"member-{number:05}", 0
        self._interval_s = 5.0
        self.owned: dict[Any, tuple[int, ...]] = {}
        self.is_settled = False

    @property
    def partitions(self) -> int:
        """The number of its partitions."""
        return sum(map(len, self.owned.values()))

    async def join(self) -> None:
        """Send the first heartbeat."""
        await self._beat(
            rebalance_timeout=timedelta(minutes=5), subscribed_topic_names=(self._topic,), topic_partitions=()
        )

    async def run(self) -> None:
        """Send heartbeats until cancelled, at once after each new assignment."""
        while True:
            if self.is_settled:
                await asyncio.sleep(self._interval_s)
                await self._beat()
            else:
                owned = tuple(TopicPartitions(topic_id=t, partitions=n) for t, n in self.owned.items())
                self.is_settled = True
                await self._beat(topic_partitions=owned)

    async def _beat(self, **fields: Any) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group, member_id=self._id, member_epoch=self._epoch, **fields
        )
        while True:
            answer = await self._connection.ask(request, 1, ConsumerGroupHeartbeatResponse)
            if answer.error_code not in RETRIABLE:
                break
            await asyncio.sleep(0.1)
        if answer.error_code is not ErrorCode.none:
            raise RuntimeError(f"{self._id} was answered {answer.error_code!r}: {answer.error_message}")
        self._epoch, self._interval_s = answer.member_epoch, answer.heartbeat_interval.total_seconds()
        if answer.assignment is not None:
            found = {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}
            self.is_settled, self.owned = self.is_settled and found == self.owned, found


class Bench:
    """The cluster and the rows."""

    def __init__(self, rounds: int, scale: float, names: list[str]) -> None:
        self._rounds, self._scale, self._names = rounds, scale, names
        self._nodes = NodeProcesses(DIRECTORY, min_insync_replicas=2, **PATIENT)
        self._topics = 0
        self.rows: list[Row] = []

    def run(self) -> None:
        """Measure the requested rows."""
        members, groups, offsets = (max(1, int(each * self._scale)) for each in (MEMBERS, GROUPS, OFFSETS))
        with self._nodes:
            self._measure(
                [
                    below(f"a group of {members:,} members, all have joined", "s", 5.0),
                    below("... each has its partition", "s"),
                    below("... nodes' CPU until then", "s"),
                    below("... idle, nodes' CPU", "% of a core", 100.0),
                ],
                lambda: self._members(1, members, PARTITIONS),
            )
            self._measure(
                [
                    below(f"{groups:,} groups of one member, all have joined", "s"),
                    below("... each has its partition", "s"),
                    below("... nodes' CPU until then", "s"),
                    below("... idle, nodes' CPU", "% of a core", 100.0),
                ],
                lambda: self._members(groups, groups, 1),
            )
            self._measure(
                [
                    below(f"{offsets:,} offsets, loaded by the next coordinator", "s", 2.0),
                    below("... its CPU", "s"),
                ],
                lambda: self._fail_over(offsets),
            )

    def _measure(self, rows: list[Row], measure: Callable[[], Awaitable[Sequence[float]]]) -> None:
        if self._names and not any(name in rows[0].name for name in self._names):
            return
        self.rows += rows
        for _ in range(self._rounds):
            loop = new_event_loop()
            try:
                figures = loop.run_until_complete(measure())
            finally:
                loop.close()
            for row, each in zip(rows, figures, strict=True):
                row.add(OURS, each)
                print_figure(row, OURS)

    def _new_topic(self, partitions: int) -> str:
        self._topics += 1
        name = f"groups-{self._topics}"
        create_topic(self._nodes.bootstrap, name, partitions)
        return name

    # ---- members ------------------------------------------------------------------------------------------

    async def _members(self, groups: int, count: int, partitions: int) -> Sequence[float]:
        topic = self._new_topic(partitions)
        names = [f"{topic}-{number}" for number in range(groups)]
        connections = await self._connections(names)
        members = [
            Member(pool[number % len(pool)], names[number % groups], number, topic)
            for number in range(count)
            for pool in (connections[names[number % groups]],)
        ]
        began, used = time.perf_counter(), cpu_s(self._nodes)
        await asyncio.gather(*(each.join() for each in members))
        joined_s = time.perf_counter() - began
        tasks = [asyncio.ensure_future(each.run()) for each in members]
        try:
            await self._settled(members, tasks, groups * partitions // count)
            settled_s, settling_s = time.perf_counter() - began, cpu_s(self._nodes) - used
            # Every member has sent a heartbeat of the settled group.
            await asyncio.sleep(5.0)
            used = cpu_s(self._nodes)
            await asyncio.sleep(IDLE_S)
            idle = 100 * (cpu_s(self._nodes) - used) / IDLE_S
            return joined_s, settled_s, settling_s, idle
        finally:
            for task in tasks:
                task.cancel()
            for connection in {each for pool in connections.values() for each in pool}:
                connection.close()

    async def _settled(self, members: list[Member], tasks: list[asyncio.Future[None]], share: int) -> None:
        """Wait until each member has its share of the partitions, and has reported it."""
        until = time.monotonic() + WAIT_S
        while not all(each.is_settled and each.partitions == share for each in members):
            for task in tasks:
                if task.done():
                    task.result()
            if time.monotonic() > until:
                raise SilentCluster(f"{len(members)} members have not settled after {WAIT_S:.0f} s")
            await asyncio.sleep(0.02)

    # ---- coordinators -------------------------------------------------------------------------------------

    async def _coordinators(self, groups: Sequence[str]) -> dict[str, int]:
        """Return the node that coordinates each group, once all have one."""
        connection = await Connection.open(self._nodes.addresses[self._nodes.live[0]])
        until = time.monotonic() + WAIT_S
        while True:
            asked = FindCoordinatorRequest(coordinator_keys=tuple(groups))
            answer = await connection.ask(asked, 4, FindCoordinatorResponse)
            if all(each.error_code is ErrorCode.none for each in answer.coordinators):
                connection.close()
                return {each.key: each.node_id for each in answer.coordinators}
            if time.monotonic() > until:
                raise SilentCluster(f"groups have no coordinator after {WAIT_S:.0f} s")
            await asyncio.sleep(0.05)

    async def _connections(self, groups: Sequence[str]) -> dict[str, list[Connection]]:
        coordinators = await self._coordinators(groups)
        pools = {
            node: [await Connection.open(self._nodes.addresses[node]) for _ in range(CONNECTIONS)]
            for node in set(coordinators.values())
        }
        return {group: pools[node] for group, node in coordinators.items()}

    async def _fail_over(self, offsets: int) -> Sequence[float]:
        """Commit offsets to one partition of __consumer_offsets, and kill its leader."""
        count = max(1, offsets // OFFSET_GROUPS)
        topic = self._new_topic(count)
        shard = partition_for(topic, SHARDS)
        every = (f"{topic}-{number}" for number in itertools.count())
        names = list(islice((name for name in every if partition_for(name, SHARDS) == shard), OFFSET_GROUPS))
        leader = (await self._coordinators(names[:1]))[names[0]]
        connection = await Connection.open(self._nodes.addresses[leader])
        for name in names:
            await _commit(connection, name, topic, count)
        connection.close()
        self._nodes.kill(leader)
        try:
            return await self._loaded(names[-1], topic, count)
        finally:
            self._nodes.start(leader)

    async def _loaded(self, group: str, topic: str, count: int) -> Sequence[float]:
        """Ask the living nodes until one has the group's last offset.

        Return the time since none of them was about to coordinate the group, and their CPU since then.
        """
        live = self._nodes.live
        connections = [await Connection.open(self._nodes.addresses[node]) for node in live]
        began, used = time.perf_counter(), self._cpu_s(live)
        asked = OffsetFetchRequest(
            groups=(
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=(OffsetFetchRequestTopics(name=topic, partition_indexes=(count - 1,)),),
                ),
            )
        )
        try:
            until = time.monotonic() + WAIT_S
            while time.monotonic() < until:
                answers = [await each.ask(asked, 8, OffsetFetchResponse) for each in connections]
                errors = {answer.groups[0].error_code for answer in answers}
                now = time.perf_counter()
                if ErrorCode.none in errors:
                    offsets = [
                        each.groups[0].topics[0].partitions[0] for each in answers if each.groups[0].topics
                    ]
                    assert [each.committed_offset for each in offsets] == [count - 1]
                    return now - began, self._cpu_s(live) - used
                if errors == {ErrorCode.not_coordinator}:
                    began, used = now, self._cpu_s(live)
                await asyncio.sleep(POLL_S)
        finally:
            for each in connections:
                each.close()
        raise SilentCluster(f"{group} has no coordinator after {WAIT_S:.0f} s")

    def _cpu_s(self, nodes: Sequence[int]) -> float:
        return sum(process_s(self._nodes.pid(node)) for node in nodes)


async def _commit(connection: Connection, group: str, topic: str, count: int) -> None:
    """Commit an offset for each partition of the topic: the partition's number."""
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=n, committed_offset=n, committed_metadata="")
        for n in range(count)
    )
    asked = OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=(OffsetCommitRequestTopic(name=topic, partitions=partitions),),
    )
    answer = await connection.ask(asked, 8, OffsetCommitResponse)
    errors = {each.error_code for each in answer.topics[0].partitions}
    if errors != {ErrorCode.none}:
        raise RuntimeError(f"commits of {group} were answered {errors}")


def below(name: str, unit: str, reach: float | None = None) -> Row:
    return Row(name, unit, reach, is_absolute=True, more_is_better=False)


def main() -> None:
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    bench = Bench(*asked_for(__doc__))
    try:
        bench.run()
    finally:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    Console(width=120).print(table_of(bench.rows))
    write(RESULT, bench.rows)


if __name__ == "__main__":
    main()
