"""SecurityProtocol: whether a listener encrypts, and whether its clients log in."""

from __future__ import annotations

import enum


class SecurityProtocol(enum.IntEnum):
    """Kafka's codes, as registrations of brokers have them."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def encrypts(self) -> bool:
        """Whether connections are encrypted by TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_login(self) -> bool:
        """Whether clients log in by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
