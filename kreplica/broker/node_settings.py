"""Reads and shows a node's settings under Kafka's names, with values as text or numbers.

An unknown name is refused, with the nearest known one. A property of Kafka's that tunes something that works
differently here is logged and ignored, if it is in Kafka's range. A property that would promise something
that does not exist here is refused. No state; any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from kreplica.broker.node_config import NodeConfig
from kreplica.common.config import BROKERS_NAMES
from kreplica.common.dataclass import fields, replace
from kreplica.common.errors import InvalidConfig
from kreplica.common.settings import (
    BOOLEAN,
    TEXT,
    Kind,
    as_text,
    checked,
    int32,
    int64,
    nearest,
    number,
)

LOGGER = logging.getLogger(__name__)

# ---- properties that no part of a node uses ----------------------------------------------------------------

# The properties that runtime.kafka_config reads: the identity of a node, its listeners and its quorum.
OF_PROCESS: Mapping[str, str] = {
    "node.id": "Id of the node, 0 or more, unique in the cluster.",
    "process.roles": "broker, controller, or both. Default: derived from the voters and the listeners.",
    "log.dir": "Log directory, if log.dirs is not given.",
    "log.dirs": "Log directories.",
    "metadata.log.dir": "Directory of the metadata log. Default: the first of log.dirs.",
    "listeners": "Listeners, NAME://host:port. The port 0 is a free one; without a host, all interfaces.",
    "advertised.listeners": (
        "Addresses that clients and nodes connect to; listeners that are not named here are not advertised."
        " Default: those of listeners."
    ),
    "listener.security.protocol.map": (
        "Protocol of each listener, NAME:PROTOCOL: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Listeners"
        " named as a protocol need no entry, nor do those for controllers where nothing is secured."
    ),
    "early.start.listeners": (
        "Listeners that open before the node knows the access rules. Those for controllers always do."
    ),
    "ssl.keystore.type": "PEM or PKCS12, for a listener that encrypts. No default.",
    "ssl.keystore.location": "File with the key and certificates of a listener; read again when it changes.",
    "ssl.keystore.password": "Password of a key store in PKCS12.",
    "ssl.keystore.key": "The key itself, in PEM, instead of a file.",
    "ssl.keystore.certificate.chain": "The certificates of ssl.keystore.key, in PEM.",
    "ssl.key.password": "Password of a key in PEM, if it is encrypted.",
    "ssl.allow.dn.changes": "Whether a renewed certificate may have another name. Default: false.",
    "ssl.allow.san.changes": (
        "Whether a renewed certificate may lack an address that the previous one had. Default: false."
    ),
    "ssl.cipher.suites": (
        "What TLS may use, by Java's names. The suites of TLS 1.3 can only be enabled all together. Default:"
        " those of OpenSSL."
    ),
    "ssl.enabled.protocols": "TLSv1.2, TLSv1.3, or both, which is the default.",
    "ssl.client.auth": (
        "Whether clients have certificates: none, requested or required. A SASL_SSL listener takes this only"
        " with its prefix. Default: none."
    ),
    "ssl.principal.mapping.rules": (
        "Rules that make the principal of an SSL client of the name in its certificate. Default: DEFAULT, the"
        " name itself."
    ),
    "ssl.truststore.type": "PEM, which is the default, or PKCS12.",
    "ssl.truststore.password": "Password of a trust store in PKCS12, if it has one.",
    "ssl.truststore.certificates": "The trusted certificates themselves, in PEM, instead of a file.",
    "ssl.truststore.location": (
        "File with the certificates that a node trusts when it connects to others; read again when it"
        " changes. Default: those that the system trusts."
    ),
    "ssl.endpoint.identification.algorithm": (
        "https: another node's certificate has to name its host. Empty: it need not. Default: https."
    ),
    "sasl.mechanism.inter.broker.protocol": (
        "How nodes log in to the listener for brokers; one of its sasl.enabled.mechanisms. No default."
    ),
    "sasl.mechanism.controller.protocol": (
        "How nodes log in to the listener for controllers; one of its sasl.enabled.mechanisms. No default."
    ),
    "sasl.enabled.mechanisms": (
        "How clients log in to a SASL listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. No default."
    ),
    "sasl.oauthbearer.jwks.endpoint.url": (
        "URL of the keys that sign tokens for OAUTHBEARER: http, https or file. No default."
    ),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "How often the keys are fetched again. Default: 3600000.",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": (
        "Pause after a failed fetch of keys, doubled after each further one. Default: 100."
    ),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "Longest of these pauses. Default: 10000.",
    "sasl.oauthbearer.allowed.urls": (
        "*Ours.* The URLs from which keys and tokens may be fetched. Kafka has a property of Java's for this."
    ),
    "sasl.oauthbearer.expected.issuer": "Issuer that a token has to name.",
    "sasl.oauthbearer.any.issuer.enable": (
        "*Ours.* Take tokens of any issuer, if one of the keys has signed them. Default: false."
    ),
    "sasl.oauthbearer.expected.audience": "Audiences; a token has to name one of them.",
    "sasl.oauthbearer.any.audience.enable": "*Ours.* Take tokens for any audience. Default: false.",
    "sasl.oauthbearer.sub.claim.name": "Claim of a token with the name of the user. Default: sub.",
    "sasl.oauthbearer.scope.claim.name": "Claim of a token with its scope. Default: scope.",
    "sasl.oauthbearer.clock.skew.seconds": "How far the clock of the issuer may differ. Default: 30.",
    "sasl.oauthbearer.unsecured.tokens.enable": (
        "*Ours.* Take tokens without a signature, which everyone can make: only for tests. Default: false."
    ),
    "sasl.oauthbearer.token.endpoint.url": (
        "Where a node gets the token with which it logs in to others: an endpoint for client credentials, or"
        " the file URL of a token. No default."
    ),
    "sasl.oauthbearer.client.credentials.client.id": "Client id of the node at that endpoint.",
    "sasl.oauthbearer.client.credentials.client.secret": "Client secret of the node at that endpoint.",
    "sasl.oauthbearer.scope": "Scope of the tokens that the node asks for.",
    "sasl.server.max.receive.size": "Maximum size of a request before the login. Default: 32768.",
    "connection.failed.authentication.delay.ms": "Pause before a failed login is answered. Default: 100.",
    "connections.max.reauth.ms": "A client has to log in again after this long. Default: 0, never.",
    "inter.broker.listener.name": (
        "Listener for other brokers only. Default: that named as security.inter.broker.protocol."
    ),
    "security.inter.broker.protocol": (
        "Listener for other brokers, which clients use as well. Default: PLAINTEXT, or the only listener."
    ),
    "controller.listener.names": (
        "Names of the listeners for controllers; nodes connect to the first. Default: CONTROLLER."
    ),
    "controller.quorum.bootstrap.servers": (
        "Controllers, host:port, from which a node learns the leader until its own log names voters."
    ),
    "controller.quorum.voters": "Voters, id@host:port. If empty, the metadata log names them (KIP-853).",
}

THREADS = "A node has one event loop, and one thread for each disk."
SOCKETS = "The system sizes the buffers of its sockets."
PURGATORY = "The purgatory removes an entry when it is done."

# Kafka's properties that have no effect here: their type and range, and the reason.
IGNORED: Mapping[str, tuple[Kind, str]] = {
    "num.network.threads": (int32(1), THREADS),
    "num.io.threads": (int32(1), THREADS),
    "background.threads": (int32(1), THREADS),
    "num.recovery.threads.per.data.dir": (int32(1), THREADS),
    "num.replica.alter.log.dirs.threads": (int32(1), THREADS),
    "log.cleaner.threads": (int32(0), THREADS),
    "queued.max.requests": (int32(1), "queued.max.request.bytes limits waiting requests."),
    "socket.send.buffer.bytes": (int32(1, also=-1), SOCKETS),
    "socket.receive.buffer.bytes": (int32(1, also=-1), SOCKETS),
    "socket.listen.backlog.size": (int32(1), SOCKETS),
    "replica.socket.receive.buffer.bytes": (int32(1, also=-1), SOCKETS),
    "socket.connection.setup.timeout.ms": (
        int64(1),
        "A connection attempt lasts as long as its request waits.",
    ),
    "socket.connection.setup.timeout.max.ms": (
        int64(1),
        "A connection attempt lasts as long as its request waits.",
    ),
    "fetch.purgatory.purge.interval.requests": (int32(0), PURGATORY),
    "producer.purgatory.purge.interval.requests": (int32(0), PURGATORY),
    "delete.records.purgatory.purge.interval.requests": (int32(0), PURGATORY),
    "log.cleaner.dedupe.buffer.load.factor": (
        number(0, 1),
        "The map of the cleaner has a fixed load factor.",
    ),
    "controlled.shutdown.enable": (BOOLEAN, "A node always hands over before it exits."),
    "controlled.shutdown.max.retries": (int32(0), "A node hands over once, within its time to exit."),
    "controlled.shutdown.retry.backoff.ms": (int64(0), "A node hands over once, within its time to exit."),
    "offsets.commit.timeout.ms": (int32(1), "A commit of offsets has the timeout of its request."),
    "request.timeout.ms": (int32(1), "The timeout of each kind of request has its own property."),
    "group.coordinator.threads": (int32(1), THREADS),
    "share.coordinator.threads": (int32(1), THREADS),
    "ssl.protocol": (TEXT, "ssl.enabled.protocols names the versions."),
    "group.share.initialize.retry.interval.ms": (
        int32(1),
        "The next heartbeat of a share group repeats an initialization that failed.",
    ),
    "share.coordinator.append.linger.ms": (int32(-1), "Records are appended when the append before is done."),
    "share.coordinator.write.timeout.ms": (int32(1), "An append of a coordinator may take 5 s."),
    "share.coordinator.state.topic.compression.codec": (int32(0, 4), "State is stored uncompressed."),
    "group.coordinator.append.linger.ms": (int32(-1), "A group's records are appended at once."),
    "metrics.num.samples": (int32(1), "Metrics have windows of their own."),
    "metrics.sample.window.ms": (int64(1), "Metrics have windows of their own."),
    "metrics.recording.level": (TEXT, "All metrics are recorded."),
}

NO_SSL = "OpenSSL encrypts, and not Java; leave it out"
NO_SASL = "clients and nodes log in only by PLAIN, SCRAM and OAUTHBEARER; leave it out"
NO_TIERS = "there is no tiered storage; leave it out"
NO_ZOOKEEPER = "there is no ZooKeeper; name the quorum by controller.quorum.voters"

# Kafka's properties that a node cannot fulfil: by name, or by prefix if the key ends with a dot.
REFUSED: Mapping[str, str] = {
    "ssl.provider": NO_SSL,
    "ssl.engine.factory.class": NO_SSL,
    "ssl.keymanager.algorithm": NO_SSL,
    "ssl.trustmanager.algorithm": NO_SSL,
    "ssl.secure.random.implementation": NO_SSL,
    "sasl.kerberos.": "GSSAPI (Kerberos) is not supported: use SCRAM-SHA-512, OAUTHBEARER or mutual TLS",
    "sasl.jaas.config": (
        "give each mechanism of a listener its own, as listener.name.NAME.MECHANISM.sasl.jaas.config, both in"
        " lower case"
    ),
    "sasl.mechanism": NO_SASL,
    "sasl.login.": NO_SASL,
    "sasl.client.callback.handler.class": NO_SASL,
    "sasl.server.callback.handler.class": NO_SASL,
    "principal.builder.class": "classes of Java cannot be loaded",
    "remote.log.": NO_TIERS,
    "log.local.retention.ms": NO_TIERS,
    "log.local.retention.bytes": NO_TIERS,
    "zookeeper.": NO_ZOOKEEPER,
    "broker.id": "a node's id is node.id",
    "broker.id.generation.enable": "a node's id is node.id; none is generated",
    "delete.topic.enable": "topics can always be deleted",
    "create.topic.policy.class.name": "classes of Java cannot be loaded",
    "alter.config.policy.class.name": "classes of Java cannot be loaded",
    "metric.reporters": "classes of Java cannot be loaded; `--metrics-listen` serves Prometheus",
    "client.quota.callback.class": "classes of Java cannot be loaded",
    "quota.producer.default": "set a default with `kreplica quota set`",
    "quota.consumer.default": "set a default with `kreplica quota set`",
    "inter.broker.protocol.version": "use the feature metadata.version instead",
    "log.message.format.version": "records have the format of Kafka 0.11 and later",
    "log.message.downconversion.enable": "records are never converted to older formats",
    "log.message.timestamp.difference.max.ms": (
        "Kafka 4 has log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms instead"
    ),
}


def refusal(name: str) -> str | None:
    """Return why a property of Kafka's is refused, None if it is not."""
    for refused, reason in REFUSED.items():
        if name == refused or (refused.endswith(".") and name.startswith(refused)):
            return reason
    return None


def check_ignored(name: str, value: object) -> None:
    """Raise InvalidConfig if an ignored property is out of its range in Kafka."""
    checked(name, value, IGNORED[name][0])


def check_known(name: str) -> None:
    """Raise InvalidConfig, with the reason, if a property cannot be given to a node."""
    reason = refusal(name)
    if reason is not None:
        raise InvalidConfig(f"{name} is not supported: {reason}")
    if name in OF_PROCESS:
        raise InvalidConfig(f"{name} is set by the cluster for each node; leave it out")


# ---- settings of a node ------------------------------------------------------------------------------------

# The parts of a NodeConfig that are searched for a name, in this order. `log`: the defaults of topics.
PARTS = (
    "raft",
    "controller",
    "broker",
    "replica",
    "group",
    "transaction",
    "share_coordinator",
    "log_manager",
    "cleaner",
    "metadata_log",
    "server",
    "quota",
    "authorizer",
    "delegation_token",
    "log",
)

# Times that Kafka also has in larger units, with the milliseconds of each. The smallest unit given counts.
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
COARSER = {
    "log.retention.ms": {"log.retention.minutes": MINUTE_MS, "log.retention.hours": HOUR_MS},
    "log.roll.ms": {"log.roll.hours": HOUR_MS},
    "log.roll.jitter.ms": {"log.roll.jitter.hours": HOUR_MS},
}
COARSE = int32(-1)
LOG_RETENTION_MS = int64(-1)


def with_settings(config: NodeConfig, settings: Mapping[str, object]) -> NodeConfig:
    """Return the configuration with these properties changed.

    Raises InvalidConfig if a name is unknown or refused, or a value out of its range.
    """
    if not isinstance(settings, Mapping):
        raise InvalidConfig(f"settings must be a mapping of names to values, not {settings!r}")
    changes: dict[str, dict[str, object]] = {}
    ignored = []
    for given, value in _in_milliseconds(settings).items():
        if not isinstance(given, str):
            raise InvalidConfig(f"the name of a setting must be text, not {given!r}")
        dotted = given.replace("_", ".")
        if dotted in IGNORED:
            check_ignored(dotted, value)
            ignored.append(dotted)
            continue
        name = BROKERS_NAMES.get(dotted, dotted)
        part = next((part for part in PARTS if name in getattr(config, part).property_names()), None)
        if part is None:
            check_known(dotted)
            near = nearest(dotted, known_names(config))
            raise InvalidConfig(f"there is no setting {given!r}" + (f"; is it {near[0]!r}?" if near else ""))
        _check_of_brokers(dotted, value)
        changes.setdefault(part, {})[name] = value
    if ignored:
        LOGGER.warning("ignored, see docs/SETTINGS.md: %s", ", ".join(ignored))
    return replace(config, **{part: getattr(config, part).replace(new) for part, new in changes.items()})


def _check_of_brokers(name: str, value: object) -> None:
    # As in KafkaConfig.validateValues: a topic's retention.ms may be 0, but not the default of all topics.
    if name == "log.retention.ms" and checked(name, value, LOG_RETENTION_MS) == 0:
        raise InvalidConfig(
            "log.retention.ms=0 would delete every record; give 1 or more, or -1 for no limit"
        )


def _in_milliseconds(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings with times in hours or minutes converted to the names in milliseconds."""
    dotted = {str(name).replace("_", "."): name for name in settings}
    found = dict(settings)
    for name, coarser in COARSER.items():
        is_given = name in dotted or BROKERS_NAMES[name] in dotted
        for other, unit_ms in coarser.items():
            if other in dotted:
                count = checked(other, found.pop(dotted[other]), COARSE)
                if not is_given:
                    found[name] = max(count * unit_ms, -1)
                is_given = True
    return found


class Setting(NamedTuple):
    """A setting of a node: its value as text that can be read back, and ConfigDef's name of its type."""

    name: str
    text: str
    type: str


def settings_of(config: NodeConfig) -> list[Setting]:
    """Return all settings of a node, each under its first name. Defaults of topics have topics' names."""
    own: dict[str, tuple[Any, str]] = {
        "node.id": (config.node_id, "int"),
        "process.roles": (tuple(sorted(config.roles)), "list"),
        "log.dirs": (config.directories, "list"),
        "metadata.log.dir": (config.metadata_directory, "string"),
        "advertised.listeners": (
            tuple(f"{each.name}://{each.host}:{each.port}" for each in config.endpoints),
            "list",
        ),
    }
    found = {name: Setting(name, as_text(value), kind) for name, (value, kind) in own.items() if value != ()}
    for part in PARTS:
        values = getattr(config, part)
        for field in fields(values):
            name, value = values.property_name(field.name), getattr(values, field.name)
            if value is not None:
                found.setdefault(name, Setting(name, as_text(value), field.metadata["kind"].type))
    return list(found.values())


def known_names(config: NodeConfig) -> list[str]:
    """Return every property that `with_settings` accepts."""
    names = {name for part in PARTS for name in getattr(config, part).property_names()}
    return sorted(names.union(BROKERS_NAMES, IGNORED, *COARSER.values()))
