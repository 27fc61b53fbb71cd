"""Commands of clients, and commands that show the state of the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from kreplica._core.batch_builder import BatchBuilder
from kreplica.common.errors import KreplicaError
from kreplica.sim import client
from kreplica.sim.transcript.network_commands import value_text
from kreplica.sim.transcript.runner import (
    Arguments,
    Transcript,
    command,
    error_name,
    listed,
    number_of,
    refused,
)

ACKS = {"all": -1, "1": 1, "0": 0}
PRODUCER_ID = 7
PRODUCED_AT_MS = 1_600_000_000_000


@command("produce [PARTITION] VALUE... [acks=all|1|0] [to=BROKER] [timeout=MS] [sequence=NUMBER]")
def produce(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Send a batch of values to the leader, or to the broker of `to`. Prints the answer when it comes.

    With `sequence` it is the batch of an idempotent producer, the same one in the whole script.
    """
    topic_partition = script.the_partition(arguments)
    acks = ACKS[arguments.option("acks", "all")]
    receiver = number_of(arguments.option("to", str(script.leader_of(topic_partition))), "a broker")
    timeout_ms = number_of(arguments.option("timeout", str(client.PATIENCE_MS)), "a timeout")
    sequence = arguments.option("sequence", "")
    words = arguments.words
    label = words[0] if len(words) == 1 else f"{words[0]}..{words[-1]}"
    cluster = script.cluster
    values, batch = [value.encode() for value in words], None
    if sequence:
        builder = BatchBuilder()
        builder.producer_id, builder.producer_epoch = PRODUCER_ID, 0
        builder.base_sequence = number_of(sequence, "a sequence number")
        batch = builder.build(values, now_ms=PRODUCED_AT_MS)
    request = client.ProduceRequest(topic_partition, values, acks, timeout_ms, batch)
    script.add_produce(label, cluster.send(receiver, request, timeout_ms=2 * client.PATIENCE_MS))
    cluster.settle()
    if script.is_waiting(label):
        yield f"{label}: pending"


@command("read [PARTITION] [at=BROKER] [from=OFFSET] [isolation=committed]")
def read(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Read as a consumer does, below the high watermark."""
    topic_partition = script.the_partition(arguments)
    broker_id = number_of(arguments.option("at", str(script.leader_of(topic_partition))), "a broker")
    offset = number_of(arguments.option("from", "0"), "an offset")
    read_committed = arguments.option("isolation", "") == "committed"
    arguments.end()
    topic_id = script.decided(topic_partition).topic_id
    request = client.fetch_request(topic_id, topic_partition.partition, offset, read_committed=read_committed)
    answer = script.cluster.send(broker_id, request, timeout_ms=client.PATIENCE_MS)
    script.cluster.settle()
    if not answer.done():
        yield "no answer"
        return
    got = client.consumed(answer, offset)
    if got.error is not None:
        yield error_name(got.error)
    else:
        yield " ".join(f"{at}={value_text(value)}" for at, _, value in got.records) or "nothing"


@command("delete-records [PARTITION] before=OFFSET")
def delete_records(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Delete the records before an offset (-1: the high watermark) on the leader, then on followers."""
    topic_partition = script.the_partition(arguments)
    offset = number_of(arguments.option("before", "-1"), "an offset")
    arguments.end()
    replica = script.replica(script.leader_of(topic_partition), topic_partition)
    try:
        script.cluster.do(partial(replica.delete_records_on_leader, offset))
    except KreplicaError as error:
        yield refused(error)


# ---- showing the state -----------------------------------------------------------------------------------


@command("status [PARTITION]")
def status(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the replicas: role, epoch, log start, HW, LEO; of leaders also the ISR and the maximal ISR."""
    topic_partition = script.the_partition(arguments)
    arguments.end()
    head = ("broker", "role", "epoch", "start", "HW", "LEO", "ISR", "maximal ISR")
    rows = [_row(script, broker_id, topic_partition) for broker_id in _brokers(script, topic_partition)]
    yield from table([head, *rows])


def _row(script: Transcript, broker_id: int, topic_partition: Any) -> Sequence[str]:
    if script.cluster.program(broker_id) is None:
        return (str(broker_id), "down")
    replica = script.replica(broker_id, topic_partition)
    if replica is None or replica.log is None:
        return (str(broker_id), "none")
    log = replica.log
    offsets = (str(log.log_start_offset), str(log.high_watermark), str(log.log_end_offset))
    if replica.is_leader:
        isr, maximal = listed(replica.isr), listed(replica.state.maximal_isr)
        return (str(broker_id), "leader", str(replica.leader_epoch), *offsets, isr, maximal)
    return (str(broker_id), "follower", str(replica.leader_epoch), *offsets)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format the rows as a table with aligned columns."""
    count = max(len(row) for row in rows)
    widths = [max(len(row[at]) for row in rows if at < len(row)) for at in range(count)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def _brokers(script: Transcript, topic_partition: Any) -> list[int]:
    return sorted(script.decided(topic_partition).replicas)


@command("records [PARTITION] [BROKER...]")
def records(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the records in the brokers' logs, by leader epoch."""
    topic_partition = script.the_partition(arguments)
    asked = [number_of(word, "a broker") for word in arguments.words]
    for broker_id in asked or _brokers(script, topic_partition):
        log = log_of(script, broker_id, topic_partition)
        yield f"{broker_id}  {_absent(script, broker_id) if log is None else _contents(log)}"


def log_of(script: Transcript, broker_id: int, topic_partition: Any) -> Any:
    """Return the partition's log on the broker, with or without a role; None if there is none, or it is
    down."""
    program = script.cluster.program(broker_id)
    return None if program is None else program.log_manager.get_log(topic_partition)


def _absent(script: Transcript, broker_id: int) -> str:
    return "down" if script.cluster.program(broker_id) is None else "no log"


def _contents(log: Any) -> str:
    parts: list[str] = []
    epoch = None
    for batch in log.batches(log.log_start_offset, isolation="log_end"):
        if batch.leader_epoch != epoch:
            epoch = batch.leader_epoch
            parts.append(f"e{epoch}:")
        parts += [f"{record.offset}={value_text(record.value)}" for record in batch]
    return " ".join(parts) or "empty"


@command("epochs [PARTITION] [BROKER...]")
def epochs(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print where each leader epoch begins in the brokers' logs."""
    topic_partition = script.the_partition(arguments)
    asked = [number_of(word, "a broker") for word in arguments.words]
    for broker_id in asked or _brokers(script, topic_partition):
        log = log_of(script, broker_id, topic_partition)
        known = () if log is None else log.epochs.entries
        shown = " ".join(f"e{entry.epoch}@{entry.start_offset}" for entry in known) or "none"
        yield f"{broker_id}  {_absent(script, broker_id) if log is None else shown}"


@command("recovery [PARTITION] BROKER...")
def recovery(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print what a broker had to recover when it opened the log; nothing after a clean shutdown."""
    topic_partition = script.the_partition(arguments)
    for broker_id in [number_of(word, "a broker") for word in arguments.words]:
        log = log_of(script, broker_id, topic_partition)
        yield f"{broker_id}  {_absent(script, broker_id) if log is None else _recovered(log.recovered)}"


def _recovered(recovery: Any) -> str:
    return "nothing" if recovery.clean else f"{recovery.scanned_bytes} bytes read through"


@command("why [PARTITION] BROKER")
def why(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print why a replica is not in the ISR, according to its leader."""
    topic_partition = script.the_partition(arguments)
    broker_id = arguments.number("a broker")
    arguments.end()
    leader = script.replica(script.leader_of(topic_partition), topic_partition)
    out = leader.why_not_in_isr(broker_id)
    if out is None:
        yield f"{broker_id} is in the ISR"
        return
    yield f"{broker_id} is out: {out.reason}; {out.keeps_out}"
    yield f"  its LEO {out.log_end_offset}, the leader's {out.leader_log_end_offset}, HW {out.high_watermark}"


@command("history [PARTITION]")
def history(script: Transcript, arguments: Arguments) -> Iterator[str]:
    """Print the changes of the ISR that the leader has recorded."""
    topic_partition = script.the_partition(arguments)
    arguments.end()
    leader = script.replica(script.leader_of(topic_partition), topic_partition)
    for change in leader.isr_history:
        ends = f"LEO {change.log_end_offset} of {change.leader_log_end_offset}"
        offsets = f"{ends}, HW {change.high_watermark}"
        sign = "+" if change.kind == "expand" else "-"
        epoch = change.partition_epoch
        yield f"{sign}{change.broker_id} {change.reason} ({offsets}, partition epoch {epoch})"
