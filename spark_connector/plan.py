"""Plan a read: partitions from a subscription, offsets from positions, tasks from ranges.

Planning looks at indexes and published offsets, never at records. Thread rule: one thread, which owns the
source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kreplica.spark.log_source import Bounds, LogRange, LogSource, lost
from kreplica.spark.offsets import EARLIEST, LATEST, flat
from kreplica.spark.option_table import OptionError
from kreplica.spark.options import Position, ReadOptions, Subscription

from kreplica.common.types import TopicPartition

Offsets = dict[TopicPartition, int]


def subscribed(
    subscription: Subscription, source: LogSource, *, all_there: bool = True
) -> list[TopicPartition]:
    """Return the partitions to read, sorted.

    Raises OptionError for a missing topic or partition; with all_there=False it is left out.
    """
    known = list(source.partitions())
    topics = {at.topic for at in known}
    if not all_there:
        return [at for at in known if _is_wanted(subscription, at)]
    if subscription.kind == "assign":
        wanted = [TopicPartition(topic, n) for topic, each in subscription.partitions.items() for n in each]
        _require(topics, subscription.partitions, "assign", source)
        missing = [at for at in wanted if at not in known]
        if missing:
            raise OptionError(f"assign: partition {missing[0]} does not exist in {source}")
        return sorted(wanted)
    if subscription.kind == "subscribe":
        _require(topics, subscription.topics, "subscribe", source)
    return [at for at in known if _is_wanted(subscription, at)]


def _is_wanted(subscription: Subscription, at: TopicPartition) -> bool:
    if subscription.kind == "assign":
        return at.partition in subscription.partitions.get(at.topic, ())
    if subscription.kind == "subscribe":
        return at.topic in subscription.topics
    # Kafka's internal topics are read only if they are named.
    if at.topic.startswith("__"):
        return False
    # Found anywhere in the name, as in Spark's own source.
    return subscription.kind == "all" or re.search(subscription.pattern, at.topic) is not None


def _require(
    known: set[str], wanted: Sequence[str] | Mapping[str, object], option: str, source: LogSource
) -> None:
    for topic in wanted:
        if topic not in known:
            listed = ", ".join(sorted(known)[:20]) or "no topics"
            raise OptionError(f"{option}: topic {topic!r} does not exist in {source}; there are {listed}")


def resolve(
    position: Position,
    source: LogSource,
    bounds: Mapping[TopicPartition, Bounds],
    *,
    is_start: bool,
    options: ReadOptions,
) -> Offsets:
    """Return the offset of each partition in `bounds` that `position` stands for.

    Raises OptionError if it names partitions that are not read, omits some that are, or if a start time is
    later than every record; DataLossError for an offset that does not exist.
    """
    if position.offsets is not None:
        return _given_offsets(position, bounds, is_start=is_start, options=options)
    if position.timestamp is not None:
        times = dict.fromkeys(bounds, position.timestamp)
    elif position.timestamps is not None:
        times = flat(position.timestamps)
        _require_all(position, times, bounds)
    else:
        return {at: each.start if position.default == EARLIEST else each.end for at, each in bounds.items()}
    offsets = source.offsets_for_timestamps(times)
    found = {}
    for at, each in bounds.items():
        offset = offsets[at]
        if offset is None and is_start and not options.no_match_is_latest:
            raise OptionError(
                f"{position.option}: {at} has no record at or after {times[at]}; with "
                "startingOffsetsByTimestampStrategy=latest the read begins at the end"
            )
        found[at] = each.end if offset is None else min(offset, each.end)
    return found


def _given_offsets(
    position: Position, bounds: Mapping[TopicPartition, Bounds], *, is_start: bool, options: ReadOptions
) -> Offsets:
    """Return the offsets that the position names, within the bounds; one outside them counts as lost."""
    given = flat(position.offsets or {})
    _require_all(position, given, bounds)
    found = {}
    for at, each in bounds.items():
        offset = {EARLIEST: each.start, LATEST: each.end}.get(given[at], given[at])
        if not each.start <= offset <= each.end:
            text = f"{position.option}: {at} has offsets {each.start} to {each.end}, not {offset}"
            if is_start or offset > each.end:
                lost(options.fail_on_data_loss, text)
        found[at] = min(offset, each.end)
        if is_start:
            found[at] = max(each.start, found[at])
    return found


def check_order(
    start: Offsets, end: Offsets, bounds: Mapping[TopicPartition, Bounds], options: ReadOptions
) -> None:
    """Check that no partition starts after its end.

    If records before the start were lost and failOnDataLoss is false, that only means nothing to read. Raises
    OptionError.
    """
    for at, first in start.items():
        if first > end[at] and (options.fail_on_data_loss or first > bounds[at].start):
            names = f"{options.starting.option} and {options.ending.option}"
            raise OptionError(f"{names}: {at} would begin at {first} and end at {end[at]}")


def _require_all(position: Position, given: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> None:
    foreign = [at for at in given if at not in bounds]
    if foreign:
        raise OptionError(f"{position.option}: {min(foreign)} is not one of the partitions to read")
    missing = [at for at in bounds if at not in given]
    if missing:
        raise OptionError(f"{position.option}: {min(missing)} is missing; name all partitions")


def split(ranges: Sequence[LogRange], source: LogSource, options: ReadOptions) -> list[LogRange]:
    """Split the ranges into tasks at batch boundaries, without empty ones.

    A task has at most maxRecordsPerPartition records, and about maxBytesPerPartition at most; at least
    minPartitions tasks have about equal length.
    """
    ranges = [
        piece
        for each in ranges
        if each.start < each.stop
        for piece in _parts(each, source, _most_records(each, source, options))
    ]
    if options.min_partitions is None or len(ranges) >= options.min_partitions or not ranges:
        return ranges
    total = sum(each.stop - each.start for each in ranges)
    found = []
    for each in ranges:
        size = each.stop - each.start
        count = max(1, -(-size * options.min_partitions // total))
        found += _parts(each, source, -(-size // count))
    return found


def _most_records(wanted: LogRange, source: LogSource, options: ReadOptions) -> int:
    count = wanted.stop - wanted.start
    most = options.max_records_per_partition or count
    if options.max_bytes_per_partition is not None:
        tasks = -(-source.size(wanted.at, wanted.start, wanted.stop) // options.max_bytes_per_partition)
        most = min(most, -(-count // max(1, tasks)))
    return most


def _parts(wanted: LogRange, source: LogSource, limit: int) -> list[LogRange]:
    """Split the range at batch boundaries into parts of about `limit` records."""
    if wanted.stop - wanted.start <= limit:
        return [wanted]
    cuts = [wanted.start, *source.cuts(wanted.at, wanted.start, wanted.stop, limit), wanted.stop]
    return [wanted._replace(start=start, stop=stop) for start, stop in pairwise(cuts) if start < stop]
