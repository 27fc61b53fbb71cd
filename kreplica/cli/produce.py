"""`kreplica produce`: append lines of a file or of standard input to a topic of any Kafka-compatible cluster.

A line is a value; or a key and a value with a separator; or a JSON object as `kreplica consume --json` and
`kreplica export --to jsonl` write it (key, value, headers, timestamp, optionally partition; `key_base64` and
`value_base64` for bytes that are not text). The first error ends the command; its summary says how many
records were acknowledged before.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from kreplica.cli import stock_client
from kreplica.cli.output import print_json, row_progress
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import InvalidRecord, KreplicaError, NetworkException

# A multiple of librdkafka's own limit, so that it always has lines to send.
SERVE_EVERY = 1_000
FLUSH_S = 60.0
# librdkafka's defaults, except for larger batches and idempotence, which stores each line once.
DEFAULTS = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "batch.size": 1 << 20}


@dataclass(frozen=True, slots=True)
class Lines:
    """How to read a line: as JSON, or as a value, with a key if there is a separator."""

    json: bool = False
    key_separator: bytes | None = None
    keep_partitions: bool = False


def run(
    bootstrap: str,
    topic: str,
    source: IO[bytes],
    lines: Lines,
    properties: Mapping[str, str],
    partition: int | None,
    as_json: bool,
) -> int:
    """Append all lines of `source`; returns the exit code."""
    own = {**DEFAULTS}
    if "acks" in properties or "request.required.acks" in properties:
        # Idempotence needs acks=all.
        own["enable.idempotence"] = properties.get("acks", "all") in ("all", "-1")
    connected = stock_client.connect("Producer", bootstrap, own, properties, topic=topic)
    producer, sent = connected.client, _Sent()
    problem: KreplicaError | None = None
    with row_progress("produce", None, "records acknowledged") as sent.see:
        try:
            for number, line in enumerate(source, 1):
                _send(producer, topic, _record(line, lines, number), partition, sent)
                if sent.error is not None:
                    break
        except KreplicaError as error:
            problem = error
        with stock_client.errors():
            left = producer.flush(FLUSH_S)
    _summary(topic, sent, connected, as_json)
    if sent.error is not None:
        raise stock_client.typed(sent.error)
    if problem is not None:
        raise problem
    if left:
        text = f"{left} records were not acknowledged within {FLUSH_S:g} s: {connected.problems}"
        raise NetworkException(text)
    return 0


class _Sent:
    """Counts acknowledged records, for the bar and the summary."""

    def __init__(self) -> None:
        self.see: Callable[[int, int], None] = lambda *_: None
        self.records = self.bytes = self.queued = 0
        self.error: Any = None
        self.started = time.monotonic()

    def delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.error = self.error or error
            return
        self.records += 1
        self.bytes += len(message)
        if self.records % SERVE_EVERY == 0:
            self.see(self.records, self.bytes)


def _send(producer: Any, topic: str, record: dict[str, Any], partition: int | None, sent: _Sent) -> None:
    if partition is not None:
        record["partition"] = partition
    while sent.error is None:
        try:
            with stock_client.errors():
                producer.produce(topic, on_delivery=sent.delivered, **record)
        except BufferError:
            # Its queue is full until some records are acknowledged.
            producer.poll(1.0)
        else:
            break
    sent.queued += 1
    if sent.queued % SERVE_EVERY == 0:
        producer.poll(0)


def _record(line: bytes, lines: Lines, number: int) -> dict[str, Any]:
    line = line.removesuffix(b"\n")
    if lines.json:
        return _from_json(line, lines.keep_partitions, number)
    if lines.key_separator is None:
        return {"value": line}
    key, found, value = line.partition(lines.key_separator)
    return {"key": key, "value": value} if found else {"value": line}


def _from_json(line: bytes, keep_partition: bool, number: int) -> dict[str, Any]:
    try:
        fact = json.loads(line)
        if not isinstance(fact, dict):
            raise ValueError("it is not a JSON object")
        record: dict[str, Any] = {"key": _bytes(fact, "key"), "value": _bytes(fact, "value")}
        headers = fact.get("headers") or []
        if headers:
            record["headers"] = [(_text(each, "key"), _bytes(each, "value")) for each in headers]
        if isinstance(fact.get("timestamp"), int):
            record["timestamp"] = fact["timestamp"]
        if keep_partition:
            record["partition"] = int(fact["partition"])
    except (ValueError, TypeError, AttributeError, KeyError, binascii.Error) as error:
        raise InvalidRecord(f"line {number} is not a record: {error!r}") from error
    return record


def _bytes(fact: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fact:
        return base64.b64decode(fact[f"{name}_base64"], validate=True)
    value = fact.get(name)
    return None if value is None else _as_text(value).encode()


def _text(fact: Mapping[str, Any], name: str) -> str:
    return _as_text(fact[name])


def _as_text(value: object) -> str:
    # A value may be JSON itself.
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- what is shown ---------------------------------------------------------------------------------------


def _summary(topic: str, sent: _Sent, connected: stock_client.Connected, as_json: bool) -> None:
    seconds = max(time.monotonic() - sent.started, 1e-9)
    if as_json:
        fact = {"topic": topic, "records": sent.records, "bytes": sent.bytes, "seconds": round(seconds, 3)}
        missing = sent.queued - sent.records
        print_json({**fact, "unacknowledged": missing, "cluster_id": connected.metadata.cluster_id})
        return
    noun = "record" if sent.records == 1 else "records"
    text = f"{sent.records:,} {noun} acknowledged ({sent.records / seconds:,.0f}/s)"
    if sent.queued > sent.records:
        text += f", {sent.queued - sent.records:,} not"
    print(f"{text}, {topic} in {connected.cluster}", file=sys.stderr)
