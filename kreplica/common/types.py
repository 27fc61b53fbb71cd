"""Basic values used by every layer: topic partitions, Kafka's ids, and the numbers that mean "none".

Everything here is immutable and may be shared between threads.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
from operator import index
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidRequest, InvalidTopic

if TYPE_CHECKING:
    from kreplica.common.ports import Random

INT16_MAX = (1 << 15) - 1
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

# Kafka's values for an unset field.
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_OFFSET = -1

# What a producer waits for: nothing, the leader's append, or all in-sync replicas.
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1

MAX_TOPIC_NAME_LENGTH = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


class TopicPartition(NamedTuple):
    """One partition of a topic. Its text form `topic-partition` is also the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return the argument `name` as an int from `least` to `most`; accepts integer-like values (numpy's).

    Raises TypeError for a non-integer, ValueError if out of range. Public functions check with this before
    they change anything, because native code would truncate a value that does not fit, and files would store
    it.
    """
    try:
        number = int(index(value))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r:.80}") from None
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {bounds}, not {number if number.bit_length() <= 128 else 'that'}")
    return number


def seconds(name: str, value: object) -> float:
    """Return the argument `name`, a time of at least 0 seconds. Raises TypeError, ValueError."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {value!r:.80}")
    if not value >= 0:
        raise ValueError(f"{name}={value} must be at least 0 seconds")
    return value


def check_topic_name(name: str) -> str:
    """Return the name if Kafka allows it. Raises InvalidTopic.

    Allowed are 1 to 249 ASCII letters, digits, `.`, `_`, `-`.
    """
    if not 0 < len(name) <= MAX_TOPIC_NAME_LENGTH:
        raise InvalidTopic(f"a topic's name has 1 to {MAX_TOPIC_NAME_LENGTH} characters, not {len(name)}")
    if name in (".", "..") or not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopic(f"{name!r} is not a topic name: letters, digits, '.', '_', '-', not '.' or '..'")
    return name


@dataclass(frozen=True, slots=True)
class Uuid:
    """Kafka's id of a topic, directory or cluster: 16 bytes; as text 22 characters of URL-safe base64."""

    raw: bytes

    SIZE: ClassVar[int] = 16
    TEXT_LENGTH: ClassVar[int] = 22
    ZERO: ClassVar[Uuid]
    METADATA_TOPIC: ClassVar[Uuid]

    def __init__(self, raw: bytes) -> None:
        if len(raw) != self.SIZE:
            raise InvalidRequest(f"a Uuid has {self.SIZE} bytes, not {len(raw)}")
        object.__setattr__(self, "raw", raw)

    # Equivalent to a dataclass's own methods, at a third of the cost.
    def __hash__(self) -> int:
        return hash(self.raw)

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, Uuid) else NotImplemented

    def __lt__(self, other: Uuid) -> bool:
        return self.raw < other.raw

    @classmethod
    def parse(cls, text: str) -> Uuid:
        """Parse a Uuid written by `str()`. Raises InvalidRequest for any other text."""
        if len(text) == cls.TEXT_LENGTH and text.isascii():
            try:
                uuid = cls(base64.b64decode(text + "==", altchars=b"-_", validate=True))
            except binascii.Error:
                uuid = cls.ZERO
            if str(uuid) == text:
                return uuid
        raise InvalidRequest(f"{text[:40]!r} is not a Uuid: {cls.TEXT_LENGTH} characters of URL-safe base64")

    @classmethod
    def generate(cls, random: Random) -> Uuid:
        """Return a random id (RFC 9562, version 4); its text never starts with '-', like an option."""
        while True:
            raw = bytearray(random.randbytes(cls.SIZE))
            raw[6] = raw[6] & 0x0F | 0x40
            raw[8] = raw[8] & 0x3F | 0x80
            uuid = cls(bytes(raw))
            if not str(uuid).startswith("-"):
                return uuid

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.raw).decode("ascii").rstrip("=")


Uuid.ZERO = Uuid(bytes(16))
Uuid.METADATA_TOPIC = Uuid(bytes(15) + b"\x01")
METADATA_TOPIC = "__cluster_metadata"


class AppendOrigin(enum.Enum):
    """The origin of an append, which decides what checks a batch must pass.

    COORDINATOR_TV2: a coordinator with transaction version 2, whose markers raise the epoch (KIP-890).
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    COORDINATOR_TV2 = "coordinator, transaction version 2"
    REPLICATION = "replication"
    RAFT_LEADER = "raft leader"
