"""The flags of `kreplica serve` as the Kafka properties that they stand for."""

from __future__ import annotations

from collections.abc import Sequence


def from_flags(
    *,
    node_id: int | None,
    directories: Sequence[str],
    listen: str | None,
    controller_listen: str | None,
    quorum: str | None,
    advertise: str | None,
    settings: Sequence[str],
) -> dict[str, object]:
    """The properties. Raises ValueError for a setting that is no NAME=VALUE."""
    properties: dict[str, object] = {}
    for each in settings:
        name, separator, value = each.partition("=")
        if not name or not separator:
            raise ValueError(f"--set {each}: no NAME=VALUE")
        properties[name.strip()] = value.strip()
    listeners = [f"PLAINTEXT://{listen}"] if listen is not None else []
    if controller_listen is not None:
        listeners.append(f"CONTROLLER://{controller_listen}")
    given = {
        "node.id": node_id,
        "log.dirs": ",".join(directories) or None,
        "listeners": ",".join(listeners) or None,
        "controller.quorum.voters": quorum,
        "advertised.listeners": None if advertise is None else f"PLAINTEXT://{advertise}",
    }
    return properties | {name: value for name, value in given.items() if value is not None}
