"""Mutants of the producer: each breaks a promise to one append of a batch that several share.

Thread rule: as in mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplica.client.producer import AppendFuture, Batch, PartitionSender, Sender
from kreplica.common.future import fail_all, finish_all
from tests.mutants.mutants import Mutant, Replacement

CLIENT_MUTANTS: dict[str, Mutant] = {}


def client_mutant(owner: Any, name: str) -> Callable[[Callable[[Replacement], Replacement]], Any]:
    """As mutants.mutant, for CLIENT_MUTANTS."""

    def register(make: Callable[[Replacement], Replacement]) -> Any:
        CLIENT_MUTANTS[make.__name__] = Mutant(owner, name, make, (make.__doc__ or "").strip())
        return make

    return register


@client_mutant(AppendFuture, "_metadata")
def give_each_the_offset_of_the_batch(metadata: Replacement) -> Replacement:
    """Every append of a batch gets the offset of the batch's first record."""

    def first(future: Any) -> Any:
        base_offset = future._result.base_offset
        return metadata(future)._replace(base_offset=base_offset)

    return first


@client_mutant(PartitionSender, "append")
def split_appends(append: Replacement) -> Replacement:
    """The records of an append may be in two batches."""

    def split(sender: Any, records: Any, now_ms: int, deadline_ms: int, acks: int, future: Any) -> bool:
        half = len(records) // 2
        if half:
            append(sender, records[:half], now_ms, deadline_ms, acks, AppendFuture())
        return append(sender, records[half:], now_ms, deadline_ms, acks, future)

    return split


@client_mutant(PartitionSender, "_give_up")
def answer_one_of_a_failed_batch(give_up: Replacement) -> Replacement:
    """The last append of a batch that failed is answered as if it had been appended."""

    def answer(sender: Any, batch: Any, error: BaseException) -> None:
        if len(batch.appends) > 1:
            batch.appends.base_offset = 0
            futures = batch.appends.release()
            finish_all(futures[-1:])
            fail_all(futures[:-1], error)
        give_up(sender, batch, error)

    return answer


@client_mutant(PartitionSender, "_too_late")
def expire_the_whole_batch(too_late: Replacement) -> Replacement:
    """When the deadline of one append has come, all appends of its batch fail."""

    def expire(sender: Any, batch: Any, *, is_unknown: bool = False) -> Any:
        error = too_late(sender, batch, is_unknown=is_unknown)
        for future in batch.appends.expire(1 << 62):
            future.set_exception(error)
        return error

    return expire


@client_mutant(PartitionSender, "_split")
def refuse_the_whole_batch(_: Replacement) -> Replacement:
    """A batch whose content is refused fails with all of its appends."""

    def refuse(sender: Any, batch: Any, outcome: Any) -> list[Any]:
        sender._give_up(batch, outcome.error)
        return []

    return refuse


@client_mutant(PartitionSender, "_take")
def send_what_has_expired(_: Replacement) -> Replacement:
    """An append that expired before it was sent is sent with the others of its batch."""

    def take(sender: Any) -> Any:
        sender._count += 1
        return Batch(sender._accumulator.take(), (sender._count,))

    return take


@client_mutant(Sender, "add")
def send_each_partition_alone(add: Replacement) -> Replacement:
    """Each batch is a request of its own."""

    def alone(sender: Any, leader: int, partition: Any, batch: Any) -> None:
        add(sender, leader, partition, batch)
        sender._send(leader)

    return alone


@client_mutant(PartitionSender, "_parts")
def number_parts_from_the_first(parts: Replacement) -> Replacement:
    """Every part of a batch that was refused is sent under the sequence number of the whole."""

    def same(sender: Any, batch: Any, groups: Any) -> Any:
        made = parts(sender, batch, groups)
        for each in made:
            each.sequence = batch.sequence
        return made

    return same
