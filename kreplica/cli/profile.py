"""`kreplica profile`: keep the addresses and logins of clusters under names."""

from __future__ import annotations

from kreplica.cli.kafka_connection import parse_bootstrap
from kreplica.cli.output import Fact, print_facts, print_json, say
from kreplica.cli.profiles import Profile, check_name, profiles_path, read_profiles, write_profiles
from kreplica.common.errors import DuplicateResource

COLUMNS = ("name", "current", "bootstrap", "command_config")


def add(name: str, profile: Profile, *, use: bool, replace: bool, as_json: bool) -> int:
    """Add a profile; the first one becomes the current one. Returns the exit code.

    Raises InvalidConfig, also if the file with the login cannot be used, DuplicateResource, ValueError for
    addresses.
    """
    parse_bootstrap(profile.bootstrap)
    if profile.command_config is not None:
        _check_config(profile.command_config)
    known = read_profiles()
    if check_name(name) in known.named and not replace:
        raise DuplicateResource(f"there is a profile {name} already: --replace changes it")
    current = name if use or not known.named else known.current
    write_profiles(known._replace(current=current, named={**known.named, name: profile}))
    if as_json:
        print_json(_fact(name, profile, current))
    else:
        say(f"added {name} to {profiles_path()}" + (", and commands use it" if current == name else ""))
    return 0


def _check_config(path: str) -> None:
    from kreplica.cli import client_config
    from kreplica.runtime.kafka_config import read_config_file

    client_config.parse(read_config_file(path))


def list_profiles(as_json: bool) -> int:
    """Print the profiles; returns the exit code."""
    known = read_profiles()
    facts = [_fact(name, each, known.current) for name, each in sorted(known.named.items())]
    if facts or as_json:
        print_facts(f"profiles in {profiles_path()}", COLUMNS, facts, as_json)
    else:
        say("there are no profiles yet: kreplica profile add NAME -b HOST:PORT,...")
    return 0


def use(name: str, as_json: bool) -> int:
    """Make a profile the current one; returns the exit code. Raises ResourceNotFound."""
    known = read_profiles()
    profile = known.get(name)
    write_profiles(known._replace(current=name))
    if as_json:
        print_json(_fact(name, profile, name))
    else:
        say(f"commands use {name}, at {profile.bootstrap}")
    return 0


def show(name: str | None, as_json: bool) -> int:
    """Print a profile, or the current one; returns the exit code. Raises ResourceNotFound."""
    known = read_profiles()
    fact = _fact(name or known.current, known.get(name or known.current), known.current)
    print_facts(f"profile {fact['name']}", COLUMNS, [fact], as_json)
    return 0


def remove(name: str, as_json: bool) -> int:
    """Remove a profile; returns the exit code. The file with its login stays. Raises ResourceNotFound."""
    known = read_profiles()
    profile = known.get(name)
    current = "" if known.current == name else known.current
    named = {each: found for each, found in known.named.items() if each != name}
    write_profiles(known._replace(current=current, named=named))
    if as_json:
        print_json(_fact(name, profile, current))
    else:
        say(f"removed {name}" + ("; no profile is in use now" if not current else ""))
    return 0


def _fact(name: str, profile: Profile, current: str) -> Fact:
    return {
        "name": name,
        "current": name == current,
        "bootstrap": profile.bootstrap,
        "command_config": profile.command_config,
    }
