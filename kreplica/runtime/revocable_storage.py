"""RevocableStorage: a Storage that can be taken away from whoever has it.

A node of this process is killed by taking its storage first: from then on every change that it asks for is
refused, whichever of its threads asks. Reads are refused, too: nobody is there to need them. Regions that it
has open are let go by its logs, which nobody calls any more. Thread rule: any thread.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from kreplica.common.errors import KafkaStorageError
from kreplica.common.ports import Storage

# What a node may still do when its storage is gone: nothing of this changes a file.
HARMLESS = frozenset({"boot_id", "process_id"})


class RevocableStorage:
    """Implements `kreplica.common.ports.Storage` by another one, until `revoke`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reason: str | None = None

    def revoke(self, reason: str) -> None:
        """Refuse everything from now on, with a KafkaStorageError that tells the reason."""
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

        # The next look finds it without a detour.
        setattr(self, name, guarded)
        return guarded
