"""The properties of `kreplica serve`: from a file, from --set, and from flags; later ones override earlier
ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kreplica.runtime.config_file import read_config_file


def from_config(path: str | None, settings: Sequence[str]) -> dict[str, object]:
    """Return the properties of the file, overridden by those of --set.

    Raises ValueError for a setting that is not NAME=VALUE, and as `read_config_file`.
    """
    properties: dict[str, object] = {} if path is None else read_config_file(path)
    for each in settings:
        name, separator, value = each.partition("=")
        if not name.strip() or not separator:
            raise ValueError(f"--set {each}: expected NAME=VALUE")
        properties[name.strip()] = value.strip()
    return properties


def from_flags(
    properties: Mapping[str, object],
    node_id: int | None,
    directories: Sequence[str],
    listen: str | None,
    controller_listen: str | None,
    quorum: str | None,
    advertise: str | None,
) -> dict[str, object]:
    """Return the properties, overridden by the flags. Raises ValueError if only one of two listeners is
    given."""
    if controller_listen is not None and listen is None and "listeners" not in properties:
        listen = "127.0.0.1:9092"
    if (listen is None) != (controller_listen is None) and "listeners" in properties:
        raise ValueError(
            "the configuration file has listeners: give --listen and --controller-listen together, or neither"
        )
    listeners = [f"PLAINTEXT://{listen}"] if listen is not None else []
    if controller_listen is not None:
        listeners.append(f"CONTROLLER://{controller_listen}")
    given = {
        "node.id": node_id,
        "log.dirs": list(directories) or None,
        "listeners": ",".join(listeners) or None,
        "controller.quorum.voters": quorum,
        "advertised.listeners": None if advertise is None else f"PLAINTEXT://{advertise}",
    }
    return {**properties, **{name: value for name, value in given.items() if value is not None}}
