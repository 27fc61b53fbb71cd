"""SmallFile: a small file beside the logs that is read and replaced as a whole.

Thread rule: the objects hold only the path. The file's owner reads and writes from one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from kreplica.common.ports import Storage

C = TypeVar("C")


class SmallFile(ABC, Generic[C]):
    """The file NAME in a directory. A subclass formats and parses its content.

    `directory`: follows when it is renamed.
    """

    __slots__ = ("_storage", "directory")

    NAME: ClassVar[str]

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.directory = directory

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.NAME}"

    def exists(self) -> bool:
        return self._storage.exists(self.path)

    def read(self) -> C | None:
        """Return the content; None without a file. Raises InvalidFile, KafkaStorageError."""
        return self.parse(self._storage.read_file(self.path), self.path) if self.exists() else None

    def write(self, content: C, *, flush_name: bool = True) -> None:
        """Replace the file durably. With `flush_name=False`, the caller flushes the directory."""
        self._storage.write_file_atomically(self.path, self.format(content), flush_name=flush_name)

    @staticmethod
    @abstractmethod
    def format(content: C) -> bytes:
        """Return the file's bytes."""

    @staticmethod
    @abstractmethod
    def parse(data: bytes, path: str) -> C:
        """Parse the file's bytes. Raises InvalidFile, which names `path`."""
