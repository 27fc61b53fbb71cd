"""RevocableStorage: a Storage whose use can be revoked.

A node of this process is killed by revoking its storage first: from then on it refuses every change, from any
thread. Reads are refused, too. Open regions are released by the node's logs, which are no longer used. Thread
rule: any thread.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from kreplica.common.errors import KafkaStorageError
from kreplica.common.ports import Storage

# Calls that stay allowed after a revocation, because they touch no file.
HARMLESS = frozenset({"boot_id", "process_id"})


class RevocableStorage:
    """Implements `kreplica.common.ports.Storage` by delegating to another one, until `revoke`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reason: str | None = None

    def revoke(self, reason: str) -> None:
        """Refuse every call from now on, with a KafkaStorageError that names the reason."""
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)
        if name in HARMLESS:
            return method

        @wraps(method)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if self._reason is not None:
                raise KafkaStorageError(f"{name}: {self._reason}")
            return method(*arguments, **named)

        # The next access finds the wrapper directly.
        setattr(self, name, guarded)
        return guarded
