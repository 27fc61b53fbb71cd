"""Configuration files: TOML with quoted and nested names, and Kafka's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.common.errors import InvalidConfig, InvalidFile, KafkaStorageError
from kreplica.runtime.config_file import read_config_file


def read(tmp_path: Path, name: str, text: str | bytes) -> dict[str, object]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_config_file(str(path))


def test_names_in_toml_are_quoted_or_nested(tmp_path: Path) -> None:
    text = """
        "node.id" = 1
        listeners = ["PLAINTEXT://:9092", "CONTROLLER://:9093"]
        num.partitions = 3
        [log]
        dirs = "/data"
        [log.cleaner]
        threads = 1
    """
    assert read(tmp_path, "node.toml", text) == {
        "node.id": 1,
        "listeners": ["PLAINTEXT://:9092", "CONTROLLER://:9093"],
        "num.partitions": 3,
        "log.dirs": "/data",
        "log.cleaner.threads": 1,
    }


def test_kafkas_own_file_needs_no_end_of_its_last_line(tmp_path: Path) -> None:
    text = "# a comment\nnode.id=1\nlisteners = PLAINTEXT\\://\\:9092"
    assert read(tmp_path, "server.properties", text) == {"node.id": "1", "listeners": "PLAINTEXT://:9092"}


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        ("node.toml", "node.id = ", InvalidFile, "Invalid value"),
        ("node.toml", b"\xff", InvalidFile, "node.toml"),
        ("node.toml", '"log.dirs" = "a"\n[log]\ndirs = "b"\n', InvalidConfig, "log.dirs is repeated"),
        ("node.toml", "a=" + "[" * 50_000, InvalidFile, "node.toml"),
        ("node.properties", "node.id=1\nnode.id=2", InvalidFile, "node.id comes twice"),
        ("node.yaml", "node.id: 1", InvalidConfig, ".toml or .properties"),
        ("node.toml", b"#" * ((1 << 20) + 1), InvalidFile, "bytes"),
    ],
)
def test_what_is_no_configuration(
    tmp_path: Path, name: str, text: str | bytes, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        read(tmp_path, name, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KafkaStorageError):
        read_config_file(str(tmp_path / "node.toml"))
