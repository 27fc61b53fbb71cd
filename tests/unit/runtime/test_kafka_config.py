"""Kafka's properties for a node: what they mean, what they default to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplica.broker.api_versions import Scope
from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.broker.node_settings import IGNORED
from kreplica.common.errors import InvalidConfig, InvalidFile, KafkaStorageError
from kreplica.runtime.kafka_config import KafkaConfig, directories_of, parse_address, read_config_file
from kreplica.runtime.key_store import TrustStore
from kreplica.runtime.listener import Listener, ListenerProperties, Login
from kreplica.runtime.tcp_transport import Address
from kreplica.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from kreplica.security.protocol import SecurityProtocol

AMONG_NODES = Scope.CONTROLLERS | Scope.BROKERS
QUORUM = "1@a:9093,2@b:9093,3@[::1]:9093"
LEAST = {"node.id": 1, "log.dirs": "/d", "controller.quorum.voters": QUORUM}


def parse(**changes: object) -> KafkaConfig:
    changed = {name.replace("_", "."): value for name, value in changes.items()}
    return KafkaConfig.parse({**LEAST, **changed}, "cluster")


def scopes(config: KafkaConfig) -> dict[Address, Scope]:
    return {each.address: each.scope for each in config.listeners}


def test_a_voter_is_broker_and_controller_on_this_machine_alone() -> None:
    config = parse()
    assert config.node.roles == {"broker", "controller"}
    assert scopes(config) == {("127.0.0.1", 9092): Scope.CLIENTS, ("a", 9093): AMONG_NODES}
    assert [(each.name, each.host, each.port) for each in config.node.endpoints] == [
        ("PLAINTEXT", "127.0.0.1", 9092)
    ]
    assert config.voters == {1: ("a", 9093), 2: ("b", 9093), 3: ("::1", 9093)}
    assert (config.node.node_id, config.node.cluster_id, config.node.directories) == (1, "cluster", ("/d",))


def test_one_that_is_no_voter_is_a_broker() -> None:
    assert parse(node_id="7").node.roles == {"broker"}


def test_voters_that_the_metadata_log_names_need_no_setting() -> None:
    listeners = "PLAINTEXT://:9092,CONTROLLER://:9093"
    config = parse(controller_quorum_voters="", listeners=listeners)
    assert (config.voters, config.node.voters) == ({}, None)
    assert config.node.roles == {"broker", "controller"}
    assert parse(controller_quorum_voters="").node.roles == {"broker"}


def test_bootstrap_servers_stand_for_voters_that_are_not_known() -> None:
    config = parse(controller_quorum_voters="", controller_quorum_bootstrap_servers="a:9093,b:9094")
    assert config.voters == {-2: ("a", 9093), -3: ("b", 9094)}
    assert (config.node.voters, config.node.bootstrap_ids) == (None, (-2, -3))


def test_listeners_of_brokers_and_controllers_and_advertised_ones() -> None:
    config = parse(
        listeners="PLAINTEXT://0.0.0.0:9092, CONTROLLER://10.0.0.1:9093",
        advertised_listeners="PLAINTEXT://a.example.org:19092",
    )
    assert scopes(config) == {("0.0.0.0", 9092): Scope.CLIENTS, ("10.0.0.1", 9093): AMONG_NODES}
    assert [(each.host, each.port) for each in config.node.endpoints] == [("a.example.org", 19092)]


def test_a_listener_without_a_host_is_on_all_interfaces_and_advertised_by_the_machines_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "node.example.org")
    config = parse(controller_quorum_voters="", listeners="PLAINTEXT://:9092,CONTROLLER://:9093")
    assert [each.address for each in config.listeners] == [("", 9092), ("", 9093)]
    assert [(each.host, each.port) for each in config.node.endpoints] == [("node.example.org", 9092)]
    assert [(each.host, each.port) for each in config.node.controller_endpoints] == [
        ("node.example.org", 9093)
    ]
    advertised = parse(listeners="PLAINTEXT://:9092", advertised_listeners="PLAINTEXT://:19092")
    assert [(each.host, each.port) for each in advertised.node.endpoints] == [("node.example.org", 19092)]


def test_a_controller_alone_listens_as_such() -> None:
    config = parse(process_roles="controller", listeners="CONTROLLER://:9093")
    assert (config.listen, scopes(config)) == (("", 9093), {("", 9093): AMONG_NODES})
    assert config.node.endpoints == ()


def test_a_controllers_listener_may_have_another_name() -> None:
    config = parse(listeners="PLAINTEXT://:1,QUORUM://:2", controller_listener_names="QUORUM")
    assert [each.address for each in config.listeners] == [("", 1), ("", 2)]


def test_a_port_that_the_voters_know_and_clients_use_is_for_all() -> None:
    config = parse(listeners="PLAINTEXT://0.0.0.0:9093", advertised_listeners="PLAINTEXT://a:9093")
    assert scopes(config) == {("0.0.0.0", 9093): Scope.ALL}


def test_where_other_nodes_may_find_a_broker_only_at_its_clients_port_they_are_answered_there() -> None:
    both = Scope.CLIENTS | Scope.BROKERS
    assert scopes(parse(node_id=7)) == {("127.0.0.1", 9092): both}
    # No voter by the configuration, so maybe none.
    listeners = "PLAINTEXT://:9092,CONTROLLER://:9093"
    found = scopes(parse(controller_quorum_voters="", listeners=listeners))
    assert list(found.values()) == [both, AMONG_NODES]


def test_brokers_have_a_listener_of_their_own_where_it_is_named() -> None:
    listeners = "INNER://:9094,PLAINTEXT://:9092"
    protocols = "INNER:PLAINTEXT,CONTROLLER:PLAINTEXT"
    config = parse(
        node_id=7,
        listeners=listeners,
        inter_broker_listener_name="INNER",
        listener_security_protocol_map=protocols,
    )
    assert scopes(config) == {("", 9092): Scope.CLIENTS, ("", 9094): Scope.BROKERS}
    assert [each.name for each in config.node.endpoints] == ["PLAINTEXT", "INNER"]


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="se\\"same" user_bob=b;'
SASL = {
    "node_id": 7,
    "listeners": "CLIENTS://a:1,INNER://a:2",
    "inter_broker_listener_name": "INNER",
    "listener_security_protocol_map": "CLIENTS:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl_enabled_mechanisms": "SCRAM-SHA-256",
}


INNER_TLS = {
    "listener_security_protocol_map": "CLIENTS:SASL_PLAINTEXT,INNER:SSL,CONTROLLER:PLAINTEXT",
    "ssl_keystore_type": "PEM",
    "ssl_keystore_location": "/etc/node.pem",
}
INNER_LOGIN = {
    "listener_security_protocol_map": "CLIENTS:SASL_PLAINTEXT,INNER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
}
TLS_ALONE = {
    "listener_security_protocol_map": "CLIENTS:SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "ssl_keystore_type": "PEM",
    "ssl_keystore_location": "/etc/node.pem",
}
TLS = {
    "listener_security_protocol_map": "CLIENTS:SASL_SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "ssl_keystore_type": "PEM",
    "ssl_keystore_location": "/etc/node.pem",
}


def test_a_listener_for_clients_encrypts() -> None:
    own = {"listener.name.clients.ssl.key.password": "sesame", "ssl.enabled.protocols": "TLSv1.3"}
    config = parse(**{**SASL, **TLS, **own})
    clients, inner = config.listeners
    assert (clients.protocol, inner.tls) == (SecurityProtocol.SASL_SSL, None)
    tls = clients.tls
    assert tls is not None
    assert (tls.keystore.type, tls.keystore.location) == ("PEM", "/etc/node.pem")
    assert tls.suites.versions == ("TLSv1.3",)
    assert tls.keystore.key_password is not None
    assert tls.keystore.key_password.value == "sesame"
    assert "sesame" not in repr(config)


def test_certificates_count_where_no_one_logs_in_otherwise() -> None:
    own = {"ssl_client_auth": "required", "ssl_truststore_location": "/ca.pem"}
    clients = parse(**{**SASL, **TLS_ALONE, **own}).listeners[0]
    assert clients.tls is not None
    assert clients.tls.truststore == TrustStore("PEM", "/ca.pem")
    assert clients.tls.client_auth == "required"
    assert clients.principals is not None
    assert clients.principals.name("CN=a,O=b") == "CN=a,O=b"
    # KIP-684: a SASL_SSL listener asks for certificates only by its own property, and SASL says who it is.
    with_login = parse(**{**SASL, **TLS, **own}).listeners[0]
    assert with_login.tls is not None
    assert (with_login.tls.client_auth, with_login.principals) == ("none", None)
    prefixed = {"listener.name.clients.ssl.client.auth": "requested"}
    asking = parse(**{**SASL, **TLS, **own, **prefixed}).listeners[0]
    assert asking.tls is not None
    assert (asking.tls.client_auth, asking.principals) == ("requested", None)


def test_clients_log_in_where_nodes_do_not() -> None:
    own = {
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN, SCRAM-SHA-512",
        "listener.name.clients.plain.sasl.jaas.config": JAAS,
        "connections.max.reauth.ms": 60_000,
        "listener.name.clients.plain.connections.max.reauth.ms": 5_000,
        "listener.name.clients.scram-sha-256.connections.max.reauth.ms": 1,
    }
    config = parse(**{**SASL, **own})
    clients, inner = config.listeners
    assert inner == Listener("INNER", Scope.BROKERS, address=("a", 2), starts_early=False)
    login = clients.login
    assert login is not None
    assert (clients.name, clients.protocol) == ("CLIENTS", SecurityProtocol.SASL_PLAINTEXT)
    assert (login.mechanisms, login.max_reauth_ms) == (("PLAIN", "SCRAM-SHA-512"), 60_000)
    # That of a mechanism comes before that of the listener; one that is off has no effect.
    assert login.reauth_ms_of == {"PLAIN": 5_000}
    assert {user: secret.value for user, secret in login.passwords.items()} == {
        "alice": 'se"same',
        "bob": "b",
    }
    assert "same" not in repr(config)
    assert [each.security_protocol for each in config.node.endpoints] == [2, 0]
    assert Login(mechanisms=("SCRAM-SHA-256",)) == parse(**SASL).listeners[0].login


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl_enabled_mechanisms": ""}, "sasl.enabled.mechanisms: nothing for listener CLIENTS.*GSSAPI"),
        ({"sasl_enabled_mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms: GSSAPI"),
        ({"sasl_enabled_mechanisms": "PLAIN"}, "listener.name.clients.plain.sasl.jaas.config is missing"),
        (
            {"sasl_enabled_mechanisms": "PLAIN", "listener.name.clients.plain.sasl.jaas.config": "se same"},
            "must be a module",
        ),
        ({"listener.name.others.sasl.enabled.mechanisms": "PLAIN"}, "there is no such listener, but CLIENTS"),
        ({"listener.name.clients.ssl.provider": "x"}, "is not a property of a listener"),
        (
            {"listener.name.clients.scram-sha-256.sasl.jaas.config": "com.sun.JndiLoginModule required;"},
            "the login module com.sun.JndiLoginModule is not one of",
        ),
        ({"inter_broker_listener_name": "CLIENTS"}, "sasl.mechanism.inter.broker.protocol= must be one of"),
        (
            {"listener_security_protocol_map": "CLIENTS:SASL_SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT"},
            "ssl.keystore.location is missing for listener CLIENTS",
        ),
        (
            {
                "listener_security_protocol_map": "CLIENTS:SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "ssl_keystore_type": "PEM",
            },
            "ssl.keystore.location is missing for listener CLIENTS",
        ),
        ({**TLS_ALONE, "ssl_client_auth": "always"}, "ssl.client.auth=always must be one of none, requested"),
        (
            {**TLS_ALONE, "ssl_client_auth": "required"},
            "ssl.truststore.location is missing for listener CLIENTS",
        ),
        (
            {
                **TLS_ALONE,
                "ssl_client_auth": "requested",
                "ssl_truststore_location": "/t",
                "ssl_principal_mapping_rules": "RULE:(.*)/$1",
            },
            "is neither DEFAULT nor RULE",
        ),
        ({**TLS, "ssl_enabled_protocols": "TLSv1.1"}, "ssl.enabled.protocols: TLSv1.1 is not one of"),
        (
            {**INNER_TLS, "ssl_truststore_location": "/t"},
            "ssl.keystore.location=/etc/node.pem: No such file",
        ),
        (
            {**INNER_TLS, "ssl_truststore_type": "JKS"},
            "ssl.truststore.type=JKS for listener INNER must be PEM or PKCS12. Convert a JKS with `keytool",
        ),
        ({**INNER_TLS, "ssl_endpoint_identification_algorithm": "LDAPS"}, "must be https, or empty"),
        ({"listener_security_protocol_map": "CLIENTS:KERBEROS"}, "must be NAME:PROTOCOL"),
        ({"security_inter_broker_protocol": "SASL_PLAINTEXT"}, "exclude each other"),
        ({"connection_failed_authentication_delay_ms": 600_000}, "must be below connections.max.idle.ms"),
        ({"sasl_server_max_receive_size": 5}, "sasl.server.max.receive.size=5"),
        (
            {"listener.name.clients.plain.connections.max.reauth.ms": "-1"},
            "listener.name.clients.plain.connections.max.reauth.ms=-1",
        ),
        (INNER_LOGIN, "sasl.mechanism.inter.broker.protocol= must be one of"),
        (
            {**INNER_LOGIN, "sasl_mechanism_inter_broker_protocol": "PLAIN"},
            "must be one of sasl.enabled.mechanisms of listener INNER, SCRAM-SHA-256",
        ),
        (
            {**INNER_LOGIN, "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256"},
            "listener.name.inner.scram-sha-256.sasl.jaas.config is missing",
        ),
        (
            {
                **INNER_LOGIN,
                "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-256",
                "listener.name.inner.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required username=a;",
            },
            "username or password is missing",
        ),
        ({"sasl_mechanism": "PLAIN"}, "clients and nodes log in only by PLAIN, SCRAM and OAUTHBEARER"),
        ({"sasl_jaas_config": "x"}, "listener.name.NAME.MECHANISM.sasl.jaas.config"),
        ({"ssl_client_auht": "required"}, "is it 'ssl.client.auth'"),
        ({"listener.name.clients.ssl.client.auht": "x"}, r"is it listener.name.clients.ssl.client.auth\?"),
        (
            {
                "sasl_enabled_mechanisms": "PLAIN",
                "listener.name.clients.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_bob="";',
            },
            "user 'bob' has no password",
        ),
        (
            {"super_users": "User:a,User:b", "authorizer_class_name": STANDARD_AUTHORIZER},
            "semicolons separate",
        ),
        ({"super_users": "user:a", "authorizer_class_name": STANDARD_AUTHORIZER}, "every client is a User"),
        ({"authorizer_class_name": "x"}, "authorizer.class.name=x is not one of nothing, org.apache.kafka"),
    ],
)
def test_what_makes_no_login_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as refused:
        parse(**{**SASL, **changes})
    assert "same" not in str(refused.value)


@pytest.mark.parametrize(
    ("properties", "is_ignored"),
    [
        ({}, False),
        ({"ssl.client.auth": "none"}, False),
        ({"ssl.client.auth": "required"}, True),
        ({"ssl.client.auth": "required", "listener.name.clients.ssl.client.auth": "none"}, False),
    ],
)
def test_whether_a_setting_asks_for_certificates_and_does_not_count(
    properties: dict[str, object], is_ignored: bool
) -> None:
    assert ListenerProperties("CLIENTS", properties).ignores_client_auth == is_ignored


def test_every_part_of_a_node_takes_its_settings() -> None:
    config = parse(
        num_partitions="6",
        log_retention_ms=1000,
        broker_heartbeat_interval_ms="50",
        controller_quorum_election_timeout_ms=300,
        group_max_size=5,
        max_connections="17",
        connections_max_idle_ms=5,
    )
    node = config.node
    assert node.controller.num_partitions == 6
    assert node.log.retention_ms == 1000
    assert node.broker.broker_heartbeat_interval_ms == 50
    assert node.raft.quorum_election_timeout_ms == 300
    assert node.group.group_max_size == 5
    assert (node.server.max_connections, node.server.connections_max_idle_ms) == (17, 5)


def test_times_may_be_given_in_the_units_that_kafka_has_for_them() -> None:
    assert parse(log_retention_hours="168", log_roll_hours=2).node.log.retention_ms == 168 * 3_600_000
    assert parse(log_roll_hours=2, log_roll_jitter_hours=1).node.log.segment_ms == 2 * 3_600_000
    assert parse(log_roll_hours=2, log_roll_jitter_hours=1).node.log.segment_jitter_ms == 3_600_000
    # The finest counts.
    assert parse(log_retention_hours=1, log_retention_minutes=3).node.log.retention_ms == 180_000
    assert parse(log_retention_hours=1, log_retention_ms=5).node.log.retention_ms == 5
    assert parse(log_retention_hours=-1).node.log.retention_ms == -1


def test_the_cleaner_has_kafkas_names() -> None:
    node = parse(
        log_cleaner_enable="false", log_cleaner_min_cleanable_ratio="0.1", log_cleaner_delete_retention_ms=5
    ).node
    assert not node.cleaner.enable
    assert (node.log.min_cleanable_dirty_ratio, node.log.delete_retention_ms) == (0.1, 5)


def test_directories_come_with_that_of_the_metadata_first() -> None:
    properties = {"log.dirs": "/a, /b,/a", "metadata.log.dir": "/m"}
    assert directories_of(properties) == ("/m", "/a", "/b")
    assert directories_of({"log.dir": "/a"}) == ("/a",)
    assert directories_of({"log.dirs": ["/with,comma"]}) == ("/with,comma",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_partitons": 3}, "no setting 'num.partitons'; is it 'num.partitions'"),
        ({"listener": ":1"}, "is it 'listeners'"),
        ({"max_connection": 1}, "is it 'max.connections'"),
        ({"zookeeper_connect": "z"}, "zookeeper.connect is not supported: there is no ZooKeeper"),
        ({"controller_quorum_bootstrap_servers": "a"}, "bootstrap.servers: 'a' is not host:port"),
        ({"node_id": "one"}, "node.id="),
        ({"node_id": -1}, "node.id="),
        ({"node_id": ""}, "node.id="),
        ({"log_dirs": ""}, "log.dirs"),
        ({"process_roles": "broker"}, "no controller by process.roles"),
        ({"process_roles": "controller", "node_id": 7}, "a controller by process.roles"),
        ({"process_roles": "broker,controller,zebra"}, "process.roles"),
        (
            {"process_roles": "controller", "listeners": "PLAINTEXT://:1"},
            "a controller needs only the listener CONTROLLER",
        ),
        ({"controller_quorum_voters": "1@a"}, "'1@a' is not id@host:port"),
        ({"controller_quorum_voters": "1@a:1,1@b:2"}, "node ids must be unique"),
        ({"listeners": "9092"}, "'9092' is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:99999"}, "'a:99999' is not host:port"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "its name is repeated"),
        ({"listeners": "OTHER://b:2"}, "listener.security.protocol.map has no protocol for listener OTHER"),
        ({"inter_broker_listener_name": "INNER"}, "INNER is not one of the broker's listeners"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "clients cannot connect to 0.0.0.0"),
        ({"advertised_listeners": "SSL://a:1"}, "no listener SSL"),
        ({"log_retention_hours": "long"}, "log.retention.hours=long is not an integer"),
        ({"log_retention_hour": 1}, "is it 'log.retention.hours'"),
        ({"max_connections": "many"}, "max.connections=many is not an integer"),
        ({"queued_max_request_bytes": 1}, "queued.max.request.bytes"),
        ({"broker_heartbeat_interval_ms": "soon"}, "broker.heartbeat.interval.ms=soon is not an integer"),
    ],
)
def test_what_makes_no_node_is_refused_with_its_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        parse(**changes)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:-1", "host:70000", "host:９"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--listen"):
        parse_address("--listen", text)


def test_addresses() -> None:
    assert parse_address("", "[::1]:80") == ("::1", 80)
    assert parse_address("", ":0") == ("127.0.0.1", 0)


# What the files have that come with Kafka 4, for each of the three kinds of node.
OF_ALL_FILES = {
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
    "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "2",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
BROKERS_NAME = {"inter.broker.listener.name": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("roles", "own"),
    [
        (
            "broker,controller",
            {
                **BROKERS_NAME,
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
                "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            },
        ),
        (
            "broker",
            {
                **BROKERS_NAME,
                "listeners": "PLAINTEXT://localhost:9092",
                "advertised.listeners": "PLAINTEXT://localhost:9092",
            },
        ),
        (
            "controller",
            {
                "listeners": "CONTROLLER://:9093",
                "advertised.listeners": "CONTROLLER://localhost:9093",
            },
        ),
    ],
    ids=["server", "broker", "controller"],
)
def test_the_files_that_come_with_kafka_are_taken_whole_and_what_is_ignored_is_said_once(
    caplog: pytest.LogCaptureFixture, roles: str, own: dict[str, str]
) -> None:
    config = KafkaConfig.parse({"node.id": "1", "process.roles": roles, **OF_ALL_FILES, **own}, "cluster")
    assert ",".join(sorted(config.node.roles)) == roles
    (message,) = caplog.messages
    assert message.startswith("ignored, see docs/SETTINGS.md: num.network.threads, num.io.threads, ")
    assert set(message.partition(": ")[2].split(", ")) == {name for name in OF_ALL_FILES if name in IGNORED}


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
