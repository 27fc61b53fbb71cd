"""`kreplica dump`: every kind of file, for people and for programs."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kreplica
from kreplica.cli.app import app
from kreplica.cli.output import moment
from kreplica.coordinator import share_records
from kreplica.metadata.records import NoOpRecord
from kreplica.metadata.serde import encode
from kreplica.record import RecordBatch
from tests.support.coordinator_records import examples

KAFKA = Path(__file__).resolve().parents[2] / "data" / "kafka-4.3" / "clean" / "logs"


def dump(*arguments: str | Path, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["dump", *map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return result.stdout


def facts(*arguments: str | Path, exit_code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump("--json", *arguments, exit_code=exit_code).splitlines()]


def without(fact: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fact.items() if name not in names}


def test_batches() -> None:
    path = KAFKA / "transactions-0" / "00000000000000000000.log"
    found = facts(path)
    assert [fact["position"] for fact in found[:5]] == [0, 154, 277, 373, 477]
    batch = RecordBatch(path.read_bytes(), 477)
    assert without(found[4], "file") == {
        "what": "batch",
        "position": 477,
        "base_offset": 7,
        "last_offset": 7,
        "records": 1,
        "size": 78,
        "leader_epoch": batch.leader_epoch,
        "crc": batch.crc,
        "codec": "none",
        "timestamp_type": "create",
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "delete_horizon_timestamp": None,
        "producer_id": batch.producer_id,
        "producer_epoch": 1,
        "base_sequence": -1,
        "transactional": True,
        "control": "commit",
    }
    shown = dump(path)
    assert "commit" in shown
    assert moment(batch.max_timestamp) in shown


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records(codec: str) -> None:
    path = KAFKA / f"codec-{codec}-0" / "00000000000000000000.log"
    records = [fact for fact in facts("--deep", path) if fact["what"] == "record"]
    assert [record["offset"] for record in records] == list(range(50))
    assert (records[0]["key"], records[0]["value"]) == ("key", "value")
    assert records[1]["key"] is None
    assert records[7]["headers"][:2] == [{"name": "plain", "value": "1"}, {"name": "plain", "value": "2"}]
    assert "tombstone" in dump("--deep", path)


def test_records_of_the_metadata_log() -> None:
    path = KAFKA / "__cluster_metadata-0" / "00000000000000000000.log"
    records = [fact for fact in facts("--deep", path) if fact["what"] == "record"]
    assert [record["offset"] for record in records] == list(range(len(records)))
    assert without(records[0], "file", "timestamp") == {
        "what": "record",
        "position": 0,
        "offset": 0,
        "control": "leader_change",
        "version": 0,
        "data": {"version": 0, "leaderId": 1, "voters": [{"voterId": 1}], "grantingVoters": [{"voterId": 1}]},
    }
    assert without(records[2], "file", "position", "timestamp") == {
        "what": "record",
        "offset": 2,
        "type": "FEATURE_LEVEL_RECORD",
        "version": 0,
        "data": {"name": "metadata.version", "featureLevel": 30},
    }
    assert '{"name": "metadata.version", "featureLevel": 30}' in dump("--deep", path)
    snapshot = [fact.get("type") for fact in facts("--deep", KAFKA / "bootstrap.checkpoint")]
    assert snapshot.count("FEATURE_LEVEL_RECORD") == 6
    assert '{"version": 0, "lastContainedLogTimestamp": 0}' in dump("--deep", KAFKA / "bootstrap.checkpoint")


def test_what_is_no_metadata_record_is_shown_and_the_rest_too(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "__cluster_metadata-0") as log:
        log.append([encode(NoOpRecord(), 0), b"\x01\x06\x00\x00", None, encode(NoOpRecord(), 0)])
    path = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    records = [fact for fact in facts("--deep", path, exit_code=1) if fact["what"] == "record"]
    assert [(fact.get("type"), "problem" in fact) for fact in records] == [
        ("NO_OP_RECORD", False),
        (None, True),
        (None, True),
        ("NO_OP_RECORD", False),
    ]
    assert "api key 6" in dump("--deep", path, exit_code=1)


def test_bytes_that_are_no_text() -> None:
    headers = facts("--deep", KAFKA / "codec-none-0" / "00000000000000000000.log")
    named = {name for fact in headers for header in fact.get("headers", ()) for name in header}
    assert named == {"name", "value", "value_base64"}
    for header in (header for fact in headers for header in fact.get("headers", ())):
        if "value_base64" in header:
            with pytest.raises(UnicodeDecodeError):
                base64.b64decode(header["value_base64"]).decode()


@pytest.mark.parametrize(
    ("name", "entry", "names"),
    [
        ("segments-0/00000000000000000000.index", ">ii", ["offset", "position"]),
        ("segments-0/00000000000000000000.timeindex", ">qi", ["timestamp", "offset"]),
        (
            "transactions-0/00000000000000000027.txnindex",
            ">2xqqqq",
            ["producer_id", "first_offset", "last_offset", "last_stable_offset"],
        ),
    ],
)
def test_indexes(name: str, entry: str, names: list[str]) -> None:
    entries = [
        dict(zip(names, e, strict=True)) for e in struct.iter_unpack(entry, (KAFKA / name).read_bytes())
    ]
    assert [without(fact, "file") for fact in facts(KAFKA / name)] == entries
    assert f" {entries[-1][names[-1]]} " in dump(KAFKA / name)


def test_offsets_in_an_index_are_whole() -> None:
    """Not relative to the file's name, as the file has them."""
    for suffix in (".index", ".timeindex"):
        offsets = [fact["offset"] for fact in facts(KAFKA / "segments-0" / f"{36:020d}{suffix}")]
        assert offsets == [41, 44, 47]


def test_zeros_behind_an_index_are_no_entries() -> None:
    (index,) = (KAFKA / ".." / ".." / "unclean" / "logs" / "unclean-0").glob("*84.index")
    assert len(facts(index)) < index.stat().st_size / 8


def test_small_files() -> None:
    (fact,) = facts(KAFKA / "segments-0" / "partition.metadata")
    assert len(fact["topic_id"]) == 22
    assert facts(KAFKA / "epochs-0" / "leader-epoch-checkpoint")[0]["start_offset"] == 0
    (fact,) = facts(KAFKA / "meta.properties")
    assert fact["node_id"] == 1
    (fact,) = facts(KAFKA / "__cluster_metadata-0" / "quorum-state")
    assert fact["leader_id"] == 1


def test_the_state_of_a_log(tmp_path: Path) -> None:
    with kreplica.Log.open(tmp_path / "orders-0") as log:
        log.append([b"v", b"w"])
        path = tmp_path / "orders-0" / "kreplica.state.deleted"
        (fact,) = facts(path)
        assert (fact["log_end_offset"], fact["clean"]) == (2, False)
    (fact,) = facts(path)
    assert (fact["high_watermark"], fact["clean"]) == (2, True)
    assert "high watermark" in dump(path)
    path.write_bytes(path.read_bytes()[:200])
    (fact,) = facts(path, exit_code=1)
    assert "no whole state" in fact["problem"]


def test_the_marker_of_a_clean_stop(tmp_path: Path) -> None:
    path = tmp_path / ".kafka_cleanshutdown"
    path.write_text('{"version":0,"brokerEpoch":17}')
    assert facts(path) == [{"file": str(path), "broker_epoch": 17}]


def test_a_directory_with_everything_in_it() -> None:
    found = facts(KAFKA)
    files = {fact["file"].removeprefix(f"{KAFKA}/") for fact in found}
    assert {
        *("meta.properties", "replication-offset-checkpoint", "bootstrap.checkpoint"),
        *("__cluster_metadata-0/quorum-state", "epochs-0/partition.metadata"),
        *("idempotent-0/00000000000000000021.snapshot", "segments-0/00000000000000000012.log"),
    } <= files
    assert not [fact for fact in found if "problem" in fact]


def test_damage_is_shown_and_the_rest_too(tmp_path: Path) -> None:
    path = Path(shutil.copy(KAFKA / "segments-0" / "00000000000000000000.log", tmp_path))
    data = bytearray(path.read_bytes())
    data[350 + 61] ^= 1
    data[1029 + 16] = 7
    path.write_bytes(data)
    found = facts(path, exit_code=1)
    assert [(fact["position"], "problem" in fact) for fact in found] == [
        (0, False),
        (343, True),
        (686, False),
        (1029, True),
    ]
    assert "BAD_CRC" in dump(path, exit_code=1)


def test_a_small_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("version=9\n")
    (fact,) = facts(path, exit_code=1)
    assert fact.keys() == {"file", "problem"}
    assert "meta.properties" in dump(path, exit_code=1)


def test_an_unknown_file_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    dump(tmp_path / "notes.txt", exit_code=2)
    dump(tmp_path / "missing.log", exit_code=2)
    assert dump(tmp_path) == ""


def test_offsets_of_groups_show_what_they_say() -> None:
    path = KAFKA / "__consumer_offsets-0" / "00000000000000000000.log"
    found = [fact for fact in facts("--deep", path) if fact["what"] == "record"]
    assert found[0]["type"] == "OffsetCommit"
    assert found[0]["version"] == 4
    assert found[0]["key"] == {"group": "group", "topic": "codec-none", "partition": 0}
    assert found[0]["data"]["offset"] == 3
    assert found[0]["data"]["metadata"] == "three"
    assert found[0]["data"].keys() >= {"leaderEpoch", "commitTimestamp", "topicId"}
    assert "control" not in found[0]
    assert "commitTimestamp" in dump("--deep", path)


def test_states_of_transactional_ids_show_what_they_say() -> None:
    path = KAFKA / "__transaction_state-0" / "00000000000000000000.log"
    found = [fact for fact in facts("--deep", path) if fact["what"] == "record"]
    assert (found[0]["type"], found[0]["version"]) == ("TransactionLog", 1)
    assert found[0]["key"] == {"transactionalId": "transactions-one"}
    assert found[0]["data"]["transactionStatus"] == 0
    assert found[0]["data"]["transactionPartitions"] is None


def test_share_state_shows_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "__share_group_state-0"
    with kreplica.Log.open(path) as log:
        log.append([(each.key_bytes, each.value_bytes) for each in examples() if each.serde is share_records])
    found = [fact for fact in facts("--deep", path) if fact.get("what") == "record"]
    assert [fact["type"] for fact in found] == ["ShareSnapshot", "ShareUpdate"] * 2
    assert found[0]["data"]["stateBatches"] == []
    assert found[2]["data"]["stateBatches"][0].keys() == {
        *("firstOffset", "lastOffset", "deliveryState", "deliveryCount")
    }


def test_a_record_that_says_nothing_of_groups_is_shown_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "__consumer_offsets-0"
    with kreplica.Log.open(path) as log:
        log.append([(b"\0\x09\0\1x", b"of a later kind"), (b"\0\1", b"cut short"), (b"\0\2\0\1g", None)])
    found = [fact for fact in facts("--deep", path, exit_code=1) if fact.get("what") == "record"]
    later, short, gone = found
    assert later["value"] == "of a later kind"
    assert "bytes expected" in short["problem"]
    assert (gone["type"], gone["key"], gone["data"]) == ("GroupMetadata", {"group": "g"}, None)
