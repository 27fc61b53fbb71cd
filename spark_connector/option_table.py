"""The table of the options of format("kreplica"): where each applies, and what it does.

Options are checked against it before a directory is listed or a connection is made. An option that would have
no effect is refused, so the user always gets what was asked for. The JVM reader has the table as a file in
its jar (`as_lines`); docs/SPARK_OPTIONS.md shows it (`as_markdown`). Thread rule: immutable values.

Names: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html, and
those of Kafka's clients behind "kafka."
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


class OptionError(ValueError):
    """An option of format("kreplica") is unknown, has no effect here, or has a wrong value."""


class Use(Enum):
    """What a data frame does."""

    BATCH = "batch read"
    STREAM = "stream read"
    WRITE = "write"


class Place(Enum):
    """Where the records are."""

    DIRECTORIES = "log directories"
    CLUSTER = "a cluster"


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name in any case, or a prefix followed by "*".

    `uses` and `places`: where it has an effect; it is refused elsewhere, and everywhere if `uses` is empty.
    `values`: the only values it accepts; a single value describes what happens in any case.
    `text`: what it does, or why it is refused.
    """

    name: str
    uses: tuple[Use, ...]
    places: tuple[Place, ...]
    text: str
    values: tuple[str, ...] = ()


_READ, _ALL = (Use.BATCH, Use.STREAM), tuple(Use)
_BATCH, _STREAM, _WRITE = (Use.BATCH,), (Use.STREAM,), (Use.WRITE,)
_ANYWHERE, _DIRECTORIES, _CLUSTER = tuple(Place), (Place.DIRECTORIES,), (Place.CLUSTER,)
_OTHER_SECURITY = "connections trust certificates in PEM, and log in by PLAIN or SCRAM"
_NO_GROUP = "no consumer group is joined, and a stream's offsets lie in its checkpoint"
_NO_CONSUMER = "Kafka's consumer is not used; a request is retried for 60 s"

OPTIONS = (
    Option(
        "path",
        _ALL,
        _DIRECTORIES,
        "a log directory with partitions, or a partition's directory; or a pattern such as /logs/{a,b}*",
    ),
    Option("paths", _READ, _DIRECTORIES, "several such directories, as a JSON array; load([...]) creates it"),
    Option(
        "reader",
        _ALL,
        _ANYWHERE,
        "what reads; python also writes, else the JVM writes what it can",
        ("auto", "jvm", "python"),
    ),
    Option("subscribe", _READ, _ANYWHERE, "topic names, separated by commas"),
    Option("subscribePattern", _READ, _ANYWHERE, "regular expression of Java's to find in topic names"),
    Option("assign", _READ, _ANYWHERE, 'partitions, as JSON: {"topic": [0, 1]}'),
    Option("startingOffsets", _READ, _ANYWHERE, 'earliest, latest, or JSON: {"topic": {"0": 23, "1": -2}}'),
    Option(
        *("startingTimestamp", _READ, _ANYWHERE),
        "a time in ms since 1970 for all partitions; comes before the other starts",
    ),
    Option("startingOffsetsByTimestamp", _READ, _ANYWHERE, "times by partition, as JSON"),
    Option(
        "startingOffsetsByTimestampStrategy",
        _READ,
        _ANYWHERE,
        "if no record is that late: fail, or start at the end",
        ("error", "latest"),
    ),
    Option("endingOffsets", _BATCH, _ANYWHERE, "as startingOffsets; a stream has no end"),
    Option("endingTimestamp", _BATCH, _ANYWHERE, "as startingTimestamp, for the end; a stream has none"),
    Option(
        "endingOffsetsByTimestamp", _BATCH, _ANYWHERE, "as startingOffsetsByTimestamp; a stream has no end"
    ),
    Option("minPartitions", _READ, _ANYWHERE, "minimum number of tasks"),
    Option("maxRecordsPerPartition", _READ, _ANYWHERE, "maximum number of records in a task"),
    Option(
        "maxBytesPerPartition",
        _READ,
        _DIRECTORIES,
        "about the maximum size of a task's records, such as 128m",
    ),
    Option("maxOffsetsPerTrigger", _STREAM, _ANYWHERE, "maximum number of records in a batch of a stream"),
    Option(
        *("minOffsetsPerTrigger", _STREAM, _ANYWHERE),
        "minimum number of records in a batch of a stream, except its first since a start",
    ),
    Option("maxTriggerDelay", _STREAM, _ANYWHERE, "maximum wait for minOffsetsPerTrigger; default 15m"),
    Option(
        "failOnDataLoss",
        _READ,
        _ANYWHERE,
        "if records or partitions are gone: fail, or warn and continue",
        ("true", "false"),
    ),
    Option("includeHeaders", _READ, _ANYWHERE, "add the column headers", ("true", "false")),
    Option(
        "skipDamaged",
        _READ,
        _DIRECTORIES,
        "skip damaged records with a warning, instead of failing",
        ("true", "false"),
    ),
    Option(
        "value.format",
        _READ,
        _ANYWHERE,
        "decode value; bytes that cannot be decoded are in the column undecoded; needs the jar",
        ("string", "json", "avro", "protobuf"),
    ),
    Option(
        "value.schema",
        _READ,
        _ANYWHERE,
        "schema of the values (JSON: id long, name string), or a file or URL that has it; that of JSON may be"
        " left out, and is inferred from the first records; of protobuf: what protoc --descriptor_set_out"
        " writes",
    ),
    Option(
        "value.message",
        _READ,
        _ANYWHERE,
        "full name of the protobuf message that values are; may be left out if the last file of value.schema"
        " has one message",
    ),
    Option(
        "value.registry",
        _READ,
        _ANYWHERE,
        "URL of a schema registry, or a JSON file of schemas by id, for values of Avro and protobuf that name"
        " theirs",
    ),
    Option("topic", _WRITE, _ANYWHERE, "topic for rows without a column topic"),
    Option("checkpointLocation", _WRITE, _ANYWHERE, "Spark's own: directory of a stream's checkpoint"),
    Option("queryName", _WRITE, _ANYWHERE, "Spark's own: name of a stream"),
    Option(
        "kafka.bootstrap.servers",
        _ALL,
        _CLUSTER,
        "addresses of a running cluster: host:port, separated by commas",
    ),
    Option(
        "kafka.isolation.level",
        _READ,
        _ANYWHERE,
        "read_committed leaves out records of open and aborted transactions",
        ("read_uncommitted", "read_committed"),
    ),
    Option(
        "kafka.compression.type",
        _WRITE,
        _CLUSTER,
        "compression of batches",
        ("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    Option(
        "exactlyOnce",
        _WRITE,
        _CLUSTER,
        "write each batch in one transaction, or without transactions; default: transactions if the cluster"
        " has transaction.version 1 or later",
        ("transactions", "idempotent"),
    ),
    Option(
        "kafka.transaction.timeout.ms",
        _WRITE,
        _CLUSTER,
        "how long the cluster waits for the end of a batch's transaction; default: 60000 and more for large"
        " batches, at most 900000",
    ),
    Option("kafka.acks", _WRITE, _CLUSTER, "a write always waits for all replicas in sync", ("all", "-1")),
    Option("kafka.enable.idempotence", _WRITE, _CLUSTER, "a write is always idempotent", ("true",)),
    Option(
        "kafka.security.protocol",
        _ALL,
        _CLUSTER,
        "whether to encrypt and to log in; default: plaintext",
        ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    ),
    Option("kafka.ssl.truststore.type", _ALL, _CLUSTER, "format of the trust store", ("pem", "pkcs12")),
    Option("kafka.ssl.truststore.password", _ALL, _CLUSTER, "password of a trust store in PKCS12"),
    Option("kafka.ssl.keystore.type", _ALL, _CLUSTER, "format of the key store", ("pem", "pkcs12")),
    Option(
        "kafka.ssl.keystore.location",
        _ALL,
        _CLUSTER,
        "file on every machine of the job with the job's key and certificate, for brokers that ask for one",
    ),
    Option("kafka.ssl.keystore.password", _ALL, _CLUSTER, "password of a key store in PKCS12"),
    Option("kafka.ssl.key.password", _ALL, _CLUSTER, "password of a key in PEM"),
    Option(
        "kafka.ssl.truststore.location",
        _ALL,
        _CLUSTER,
        "file on every machine of the job with the certificates to trust; default: those of the system",
    ),
    Option(
        "kafka.ssl.endpoint.identification.algorithm",
        _ALL,
        _CLUSTER,
        "https: a certificate has to name its host; none: it need not; default: https",
        ("https", "none"),
    ),
    Option(
        "kafka.sasl.mechanism", _ALL, _CLUSTER, "how to log in", ("plain", "scram-sha-256", "scram-sha-512")
    ),
    Option("kafka.sasl.jaas.config", _ALL, _CLUSTER, "the user and the password, as Kafka's clients take it"),
    Option("kafka.ssl.*", (), (), _OTHER_SECURITY),
    Option("kafka.sasl.*", (), (), _OTHER_SECURITY),
    Option("kafka.group.id", (), (), _NO_GROUP),
    Option("groupIdPrefix", (), (), _NO_GROUP),
    Option("kafkaConsumer.pollTimeoutMs", (), (), _NO_CONSUMER),
    Option("fetchOffset.numRetries", (), (), _NO_CONSUMER),
    Option("fetchOffset.retryIntervalMs", (), (), _NO_CONSUMER),
    Option("kafka.*", (), (), "it has no effect: Kafka's own clients are not used"),
)


def check(given: Mapping[str, str], use: Use, place: Place) -> None:
    """Check the options, named in any case.

    Raises OptionError for the first one that is unknown, has no effect here, or has a value it does not
    accept.
    """
    for name, value in sorted((name.lower(), value) for name, value in given.items()):
        option = option_of(name)
        if option is None:
            raise OptionError(f"{name}: format kreplica has no such option")
        if not option.uses:
            name = name if option.name.endswith("*") else option.name
            raise OptionError(f"{name}: not supported: {option.text}. Remove it")
        if use not in option.uses or place not in option.places:
            here = f"has no effect in a {use.value} of {place.value}, only in {_where(option)}"
            raise OptionError(f"{option.name}: {here}. Remove it")
        if not value.strip():
            raise OptionError(f"{option.name}: is empty")
        if option.values and value.strip().lower() not in option.values:
            raise OptionError(f"{option.name}: {value!r} {_is_wrong(option)}")


def option_of(name: str) -> Option | None:
    """Return the option of this name, in any case, or else the narrowest pattern that matches."""
    wanted = name.lower()
    fitting = [
        option
        for option in OPTIONS
        if option.name.lower() == wanted
        or (option.name.endswith("*") and wanted.startswith(option.name[:-1].lower()))
    ]
    return max(fitting, key=lambda option: (option.name.lower() == wanted, len(option.name)), default=None)


def as_lines() -> Iterator[str]:
    """Yield the table for the JVM reader, one line for each option, with tabs between the fields.

    Fields: name, uses, places, values, text, and uses and places in words.
    """
    for option in OPTIONS:
        uses = ",".join(use.name for use in option.uses)
        places = ",".join(place.name for place in option.places)
        where = _where(option) if option.uses else ""
        yield "\t".join((option.name, uses, places, ",".join(option.values), option.text, where))


def as_markdown() -> Iterator[str]:
    """Yield the lines of the table in docs/SPARK_OPTIONS.md."""
    yield "| option | in | values | |"
    yield "|---|---|---|---|"
    for option in OPTIONS:
        text = option.text if option.uses else f"refused: {option.text}"
        values = ", ".join(f"`{value}`" for value in option.values)
        where = _where(option) if option.uses else ""
        yield f"| `{option.name}` | {where} | {values} | {text} |"


def _where(option: Option) -> str:
    uses = "reads and writes"
    if option.uses != _ALL:
        uses = {_READ: "reads", _BATCH: "batch reads", _STREAM: "stream reads", _WRITE: "writes"}[option.uses]
    return uses if option.places == _ANYWHERE else f"{uses} of {option.places[0].value}"


def _is_wrong(option: Option) -> str:
    if len(option.values) == 1:
        return f"is not supported, only {option.values[0]}: {option.text}"
    if sorted(option.values) == ["false", "true"]:
        return "is neither true nor false"
    return f"is not one of {', '.join(option.values)}: {option.text}"
