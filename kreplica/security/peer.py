"""Peer: who is at the other end of a connection. No state; any thread may read."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

USER = "User"


class KafkaPrincipal(NamedTuple):
    """An authenticated identity, such as User:alice. `token_authenticated`: by a delegation token."""

    type: str
    name: str
    token_authenticated: bool = False

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# The principal of a client that has not authenticated because its listener does not ask for it.
ANONYMOUS = KafkaPrincipal(USER, "ANONYMOUS")


def host_text(address: str) -> str:
    """Return an IP address as rules name it, in Java's form: IPv6 in full, an IPv4 address never within IPv6.

    Text that is no address is returned as it is.
    """
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in found.exploded.split(":"))


class Peer(NamedTuple):
    """The other end of a connection, as its listener knows it.

    `host`: its address after a slash, as Kafka shows it. `principal`: fixed once the client has
    authenticated. `listener`: the name of the listener that it is connected to.
    """

    host: str
    principal: KafkaPrincipal = ANONYMOUS
    listener: str = ""


# This process itself, which may do everything. To be compared by identity, so that no client can claim it.
THIS_PROCESS = Peer("", KafkaPrincipal("Process", ""))
