"""Commands about brokers, topics, leaders, and faults of machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

from kreplica.common.config import LogConfig
from kreplica.common.errors import KreplicaError, StorageFull, StorageIOError
from kreplica.common.leader_and_isr import LeaderAndIsr, LeaderRecoveryState
from kreplica.common.types import TopicPartition
from kreplica.sim.transcript.runner import (
    Arguments,
    Transcript,
    brokers_of,
    command,
    error_name,
    listed,
    number_of,
)
from kreplica.sim.transcript.script import ScriptError

# Logs in scripts are small; other settings have Kafka's defaults.
SCRIPT_LOG = {"segment.bytes": "65536", "segment.index.bytes": "4096"}
DISK_FAULTS = {"full": StorageFull, "broken": StorageIOError}


@command("brokers ID... [SETTING=VALUE...]")
def brokers(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Start brokers with empty disks. Settings are Kafka's settings of replication."""
    cluster = script.begin(arguments.options)
    for word in arguments.words:
        broker_id = number_of(word, "a broker")
        cluster.add_broker(broker_id)
        cluster.start(broker_id)
    yield from ()


@command("topic NAME REPLICAS [partitions=N] [SETTING=VALUE...]")
def topic(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Create a topic. Its first replica leads, and all are in sync."""
    name = arguments.word("a name")
    replicas = brokers_of(arguments.word("the replicas"))
    count = number_of(arguments.option("partitions", "1"), "the number of partitions")
    config = LogConfig.parse({**SCRIPT_LOG, **arguments.options})
    cluster = script.cluster
    cluster.controller.add_topic(name, config)
    for broker_id in replicas:
        set_config(script, broker_id, name, config)
    states = [cluster.controller.create(TopicPartition(name, index), replicas) for index in range(count)]
    script.partition = script.partition or states[0].topic_partition
    for broker_id in replicas:
        yield from hand_out(script, broker_id, states)


@command("config TOPIC SETTING=VALUE...")
def config(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Change a topic's settings."""
    name = arguments.word("a topic")
    controller = script.cluster.controller
    changed = controller.topics[name].config.replace(arguments.options)
    controller.topics[name] = controller.topics[name]._replace(config=changed)
    for state in controller.partitions.values():
        for broker_id in state.replicas if state.topic_partition.topic == name else ():
            set_config(script, broker_id, name, changed)
    yield from ()


def set_config(script: Transcript, broker_id: int, name: str, config: LogConfig) -> None:
    program = script.cluster.program(broker_id)
    if program is not None:
        script.cluster.do(partial(program.log_manager.configs.change, {name: config}))


def hand_out(script: Transcript, broker_id: int, states: list[LeaderAndIsr]) -> Iterator[str]:
    """Send the broker its roles; prints what it refuses."""
    cluster = script.cluster
    program = cluster.program(broker_id)
    if program is None:
        return
    become = partial(program.become_leader_or_follower, states, cluster.controller.epoch)
    try:
        results = cluster.do(become)
    except KreplicaError as error:
        yield f"{broker_id}: {error_name(error)}"
        return
    for topic_partition, refusal in results.items():
        if refusal is not None:
            yield f"{broker_id}: {error_name(refusal)} for {topic_partition}"


@command("lead [PARTITION] BROKER [isr=IDS] [to=IDS] [unclean=yes]")
def lead(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Elect a leader in a new leader epoch, and notify all running replicas, or those of `to`.

    `isr` is as before unless given; `unclean=yes` is an election of a replica out of sync.
    """
    topic_partition = script.the_partition(arguments)
    leader = arguments.number("the leader")
    before = script.decided(topic_partition)
    unclean = arguments.option("unclean", "no") == "yes"
    isr = arguments.brokers_option("isr", [leader] if unclean else before.isr)
    receivers = arguments.brokers_option("to", before.replicas)
    arguments.end()
    state = script.cluster.controller.elect(topic_partition, leader, isr, unclean=unclean)
    for broker_id in receivers:
        yield from hand_out(script, broker_id, [state])
    yield f"{topic_partition}: leader {leader} in epoch {state.leader_epoch}, ISR {listed(isr)}"


@command("tell [PARTITION] BROKER... [leader=ID] [epoch=N] [isr=IDS] [partition.epoch=N]")
def tell(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Send brokers the controller's current decision, or the given one, as a late message would."""
    topic_partition = script.the_partition(arguments)
    state = script.decided(topic_partition)
    state = dataclasses.replace(
        state,
        leader=number_of(arguments.option("leader", str(state.leader)), "a leader"),
        leader_epoch=number_of(arguments.option("epoch", str(state.leader_epoch)), "an epoch"),
        isr=tuple(arguments.brokers_option("isr", state.isr)),
        partition_epoch=number_of(
            arguments.option("partition.epoch", str(state.partition_epoch)), "a partition epoch"
        ),
    )
    for word in arguments.words:
        yield from hand_out(script, script.broker(word, runs=True), [state])


@command("assign [PARTITION] IDS [isr=IDS]")
def assign(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Change the assigned replicas in the same leader epoch, without notifying brokers (see tell)."""
    topic_partition = script.the_partition(arguments)
    replicas = brokers_of(arguments.word("the replicas"))
    before = script.decided(topic_partition)
    isr = arguments.brokers_option("isr", [each for each in before.isr if each in replicas])
    arguments.end()
    recovered = LeaderRecoveryState.RECOVERED
    state = script.cluster.controller.decide(
        topic_partition, replicas=tuple(replicas), isr=tuple(isr), leader_recovery_state=recovered
    )
    yield f"{topic_partition}: replicas {listed(replicas)}, ISR {listed(isr)}, " + (
        f"partition epoch {state.partition_epoch}"
    )


@command("stop-replica [PARTITION] BROKER [delete=yes]")
def stop_replica(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Make a broker give up its replica; with delete also its log."""
    topic_partition = script.the_partition(arguments)
    program = script.cluster.program(script.broker(arguments.word("a broker"), runs=True))
    delete = arguments.option("delete", "no") == "yes"
    arguments.end()
    results = script.cluster.do(partial(program.replica_manager.stop_replicas, {topic_partition: delete}))
    if results[topic_partition] is not None:
        yield f"{error_name(results[topic_partition])}"


# ---- machines --------------------------------------------------------------------------------------------


@command("start BROKER...")
def start(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Start brokers on their disks as they are. They have no roles until lead or tell."""
    for word in arguments.words:
        broker_id = script.broker(word, runs=False)
        try:
            script.cluster.start(broker_id)
        except KreplicaError as error:
            yield f"{broker_id}: {error_name(error)}"


@command("stop BROKER")
def stop(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Shut a broker down cleanly."""
    script.cluster.stop(script.broker(arguments.word("a broker"), runs=True))
    yield from ()


@command("kill BROKER...")
def kill(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Kill brokers, as kill -9 does: nothing that was written is lost."""
    for word in arguments.words:
        script.cluster.kill(script.broker(word, runs=True))
    yield from ()


@command("power-cut BROKER... [names=kept]")
def power_cut(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Cut a machine's power: unflushed data is lost; `names=kept` keeps the names of files."""
    names = arguments.option("names", "lost")
    if names not in ("kept", "lost"):
        raise ScriptError(f"names are kept or lost, not {names!r}")
    for word in arguments.words:
        script.cluster.power_cut(script.broker(word, runs=True), keeps_names=names == "kept")
    yield from ()


@command("pause BROKER")
def pause(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Pause a broker, as a long garbage collection does."""
    script.cluster.pause(script.broker(arguments.word("a broker"), runs=True))
    yield from ()


@command("resume BROKER")
def resume(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Resume a paused broker."""
    script.cluster.resume(script.broker(arguments.word("a broker"), runs=True))
    yield from ()


@command("fence BROKER")
def fence(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Make the controller consider a broker dead."""
    script.cluster.controller.fenced.add(arguments.number("a broker"))
    yield from ()


@command("unfence BROKER")
def unfence(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Make the controller consider a broker alive."""
    script.cluster.controller.fenced.discard(arguments.number("a broker"))
    yield from ()


@command("disk BROKER full|broken|well [FILES]")
def disk(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Make a broker's disk refuse changes and flushes, of all files or of those with FILES in their path."""
    broker_id = script.broker(arguments.word("a broker"))
    state = arguments.word("the disk's state")
    named = arguments.word("files") if arguments.words else ""
    arguments.end()
    if state == "well":
        script.cluster.set_disk_fault(broker_id, None)
    elif state in DISK_FAULTS:
        script.cluster.set_disk_fault(broker_id, partial(_refuse, DISK_FAULTS[state], named))
    else:
        raise ScriptError(f"a disk is full, broken or well, not {state!r}")
    yield from ()


def _refuse(error: type[KreplicaError], named: str, operation: str, path: str) -> None:
    if named in path:
        raise error(f"{operation} of {path}")


@command("flush [PARTITION] BROKER...")
def flush(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Flush a broker's log of the partition to its disk, and write its checkpoints."""
    topic_partition = script.the_partition(arguments)
    for word in arguments.words:
        program = script.cluster.program(script.broker(word, runs=True))
        script.cluster.do(program.log_manager.get_log(topic_partition).flush)
        script.cluster.do(program.log_manager.checkpoint)
    yield from ()


@command("checkpoint BROKER...")
def checkpoint(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Write a broker's high watermarks to its disk."""
    for word in arguments.words:
        program = script.cluster.program(script.broker(word, runs=True))
        script.cluster.do(program.replica_manager.checkpoint_high_watermarks)
    yield from ()
