"""ScramCredential: what a cluster stores of a user's password, and for which mechanism.

UnknownUsers: what it shows of users who do not exist. No state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384


class ScramMechanism(Enum):
    """A mechanism: its code in Kafka's records, and its hash."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name that clients use."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The hash, as hashlib names it."""
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()

    @property
    def digest_bytes(self) -> int:
        """The size of the hash."""
        return int(self.digest.removeprefix("sha")) // 8


class ScramCredential(NamedTuple):
    """What a server stores of a user's password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"<credential of {self.iterations} iterations>"


class UnknownUsers(NamedTuple):
    """What a login shows of users who do not exist: the same on every node, and like that of users who do.

    `key`: makes their salts. `shapes`: sizes of salts with iterations.
    """

    key: bytes
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def like(cls, credentials: Mapping[str, ScramCredential]) -> UnknownUsers | None:
        """Return those among users with these credentials, by name; None without users."""
        if not credentials:
            return None
        shapes = {(len(each.salt), each.iterations) for each in credentials.values()}
        # A secret that all nodes have, and that few changes of users change.
        return cls(credentials[min(credentials)].server_key, tuple(sorted(shapes)))

    def __repr__(self) -> str:
        return "<unknown users>"

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Return a credential for which there is no password."""
        import hashlib  # it takes long, and a node without logins does not need it

        made = hashlib.shake_256(self.key + user.encode())
        salt_bytes, iterations = self.shapes[made.digest(1)[0] % len(self.shapes)]
        empty = bytes(mechanism.digest_bytes)
        return ScramCredential(made.digest(1 + salt_bytes)[1:], empty, empty, iterations)
