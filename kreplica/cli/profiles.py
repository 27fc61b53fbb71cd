"""The profiles of a user: under a name, the addresses of a cluster and the file that says how to log in.

They are in `kreplica/profiles.json` below the user's configuration directory, which only the user may read or
write. The file with the passwords is named there, and never copied. Thread rule: any thread; two commands
that write at the same time keep what one of them wrote.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from kreplica.common.errors import InvalidConfig, InvalidFile, ResourceNotFound
from kreplica.common.json_file import parse_object, string

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Profile(NamedTuple):
    """A cluster: its bootstrap servers, and a file of properties as --command-config takes it."""

    bootstrap: str
    command_config: str | None


class Profiles(NamedTuple):
    """All profiles, and the name of the one that commands use; empty for none."""

    current: str
    named: Mapping[str, Profile]

    def get(self, name: str) -> Profile:
        """Return the profile. Raises ResourceNotFound."""
        if name in self.named:
            return self.named[name]
        if not name:
            raise ResourceNotFound("no profile is in use: kreplica profile use NAME")
        missing = f"there is no profile {name[:64]!r}"
        near = get_close_matches(name, self.named, 1, 0.0)
        if near:
            raise ResourceNotFound(f"{missing}: there is {near[0]!r}; `kreplica profile list` shows all")
        raise ResourceNotFound(f"{missing}: kreplica profile add {name[:64]} -b HOST:PORT,...")


def profiles_path() -> Path:
    """Return the file of the profiles, which need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "kreplica" / "profiles.json"


def read_profiles() -> Profiles:
    """Read the profiles. Raises InvalidFile, also if others may write the file."""
    path = profiles_path()
    try:
        data, mode = path.read_bytes(), path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Profiles("", {})
    if mode & OF_OTHERS:
        raise InvalidFile(f"{path}: others may write this file, and so choose where you log in: chmod 600")
    fields = parse_object(data, str(path))
    if fields.get("version") != VERSION:
        raise InvalidFile(f"{path}: the version is {fields.get('version')!r} and not {VERSION}")
    named = fields.get("profiles")
    if not isinstance(named, dict):
        raise InvalidFile(f"{path}: profiles is not an object")
    return Profiles(
        string(fields, "current", str(path)),
        {name: _profile(fields, f"{path}: {name}") for name, fields in named.items()},
    )


def _profile(fields: object, where: str) -> Profile:
    if not isinstance(fields, dict):
        raise InvalidFile(f"{where}: is not an object")
    config = fields.get("command_config")
    if config is not None and not isinstance(config, str):
        raise InvalidFile(f"{where}: command_config is neither a string nor null")
    return Profile(string(fields, "bootstrap", where), config)


def write_profiles(profiles: Profiles) -> None:
    """Replace the file, for this user only. Raises OSError."""
    path = profiles_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fields = {
        "version": VERSION,
        "current": profiles.current,
        "profiles": {name: each._asdict() for name, each in sorted(profiles.named.items())},
    }
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(fields, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def check_name(name: str) -> str:
    """Return the name of a profile. Raises InvalidConfig."""
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{name[:80]!r} is no name of a profile: use letters, digits, '.', '_' and '-'")
    return name
