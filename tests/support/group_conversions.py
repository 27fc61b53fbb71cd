"""14 of the invariants of groups: what a change of protocol keeps, read from a log of groups' records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from kreplica._core.records import RecordBatch
from kreplica.coordinator.group_records import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    decode_key,
    decode_value,
)
from kreplica.sim.invariants.group_rules import violated


class _Seen:
    """What a log has said of a group so far. `number`: its generation, or its epoch."""

    def __init__(self) -> None:
        self.classic: set[str] | None = None
        self.modern: set[str] = set()
        self.number = 0


def check_14_conversions(found: Iterable[RecordBatch], left: Collection[str] = ()) -> None:
    """14. A group that changes its protocol keeps its members, and its generation does not fall.

    Such a change is one batch: it forgets the group of one kind and makes that of the other kind. `left`:
    members that have left. That a member has left a classic group is stored only with the next generation.
    """
    groups: dict[str, _Seen] = {}
    for batch in found:
        changes: dict[str, list[tuple[Any, Any]]] = {}
        for record in () if batch.is_control else batch:
            assert record.key is not None
            key = decode_key(bytes(record.key))
            value = None if key is None or record.value is None else decode_value(key, bytes(record.value))
            name = getattr(key, "group", None) or getattr(key, "group_id", None)
            if name is not None:
                changes.setdefault(name, []).append((key, value))
        for name, records in changes.items():
            _check_conversion(name, groups.setdefault(name, _Seen()), records, left)


def _check_conversion(name: str, seen: _Seen, records: list[tuple[Any, Any]], left: Collection[str]) -> None:
    before = seen.classic if seen.classic else set(seen.modern)
    number, kinds = seen.number, set[str]()
    for key, value in records:
        if isinstance(key, GroupMetadataKey):
            kinds.add("classic" if value is not None else "no classic")
            seen.classic = None if value is None else {each.member_id for each in value.members}
            seen.number = seen.number if value is None else value.generation
        elif isinstance(key, ConsumerGroupMetadataKey):
            kinds.add("modern" if value is not None else "no modern")
            if value is not None and "no classic" not in kinds and not seen.classic:
                # Several members whose sessions end at once are removed one after the other, in one batch.
                before = set(seen.modern)
            seen.number = seen.number if value is None else value.epoch
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            (seen.modern.discard if value is None else seen.modern.add)(key.member_id)
    is_upgrade, is_downgrade = {"no classic", "modern"} <= kinds, {"no modern", "classic"} <= kinds
    after = seen.modern if is_upgrade else seen.classic or set()
    # One that leaves now, or is replaced by another process of its instance, may be the reason.
    is_kept = len(before - after - set(left)) <= 1
    if before and (is_upgrade or is_downgrade) and not (is_kept and seen.number >= number):
        facts = f"the members {before} of generation {number} become {after} of {seen.number}"
        raise violated("14", f"{name}: {facts}")
