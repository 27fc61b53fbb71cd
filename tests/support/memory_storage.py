"""A Storage in memory for unit tests, which knows what a power cut would leave.

It tracks each unflushed write, so a test can cut the power (`crash`) and look at the rest. It has neither
regions nor locks; the simulator's Storage has.
"""

from __future__ import annotations

from kreplica.common.errors import InvalidFile, KafkaStorageError


class MemoryStorage:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.durable: dict[str, bytes] = {}  # names and contents that survive a power cut
        self.unflushed: set[str] = set()  # files with unflushed contents
        self.calls: list[tuple[str, str]] = []  # (method, path) of every change
        self.fail: type[KafkaStorageError] | None = None  # raised by the next change, if set

    def crash(self) -> None:
        """Cut the power: files and names return to their flushed state."""
        self.files = dict(self.durable)
        self.unflushed.clear()

    def read_file(self, path: str, limit: int = 64 << 20) -> bytes:
        if path not in self.files:
            raise KafkaStorageError(f"no such file: {path}")
        if len(self.files[path]) > limit:
            raise InvalidFile(f"{path} is larger than {limit} bytes")
        return self.files[path]

    def write_file_atomically(self, path: str, data: bytes, *, flush_name: bool = True) -> None:
        self._change("write_file_atomically", path)
        self.files[path] = data
        self.unflushed.discard(path)
        if flush_name:
            self.durable[path] = data

    def write_file(self, path: str, data: bytes) -> None:
        self._change("write_file", path)
        self.files[path] = data
        self.unflushed.add(path)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        self._change("write_at", path)
        old = self.files.get(path, b"").ljust(position, b"\0")
        self.files[path] = old[:position] + data + old[position + len(data) :]
        self.unflushed.add(path)

    def sync_file(self, path: str) -> None:
        self._change("sync_file", path)
        self.unflushed.discard(path)
        if path in self.durable:
            self.durable[path] = self.files[path]

    def exists(self, path: str) -> bool:
        return path in self.files or any(name.startswith(path + "/") for name in self.files)

    def size(self, path: str) -> int:
        return len(self.files[path])

    def list_directory(self, path: str) -> list[str]:
        inside = (name[len(path) + 1 :] for name in self.files if name.startswith(path + "/"))
        return sorted({name.split("/")[0] for name in inside})

    def rename(self, source: str, target: str) -> None:
        self._change("rename", source)
        self.files[target] = self.files.pop(source)

    def remove(self, path: str) -> None:
        self._change("remove", path)
        self.files.pop(path, None)

    def sync_directory(self, path: str) -> None:
        self._change("sync_directory", path)
        for name in [name for name in self.durable if name.rpartition("/")[0] == path]:
            if name not in self.files:
                del self.durable[name]
        for name, data in self.files.items():
            if name.rpartition("/")[0] == path and name not in self.durable:
                self.durable[name] = b"" if name in self.unflushed else data

    def boot_id(self) -> str:
        return "00000000-0000-0000-0000-000000000001"

    def _change(self, method: str, path: str) -> None:
        if self.fail is not None:
            raise self.fail(f"{method} {path}")
        self.calls.append((method, path))
