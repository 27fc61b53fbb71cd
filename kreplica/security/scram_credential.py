"""ScramCredential: what a cluster stores of a user's password, and for which mechanism. No state."""

from __future__ import annotations

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
