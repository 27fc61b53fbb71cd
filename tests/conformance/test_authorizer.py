"""Rights beside Kafka's own StandardAuthorizer, and Kafka's tool for rules against our nodes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.runtime.listener import PLAIN, Login
from kreplica.security.acl import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from kreplica.security.distinguished_name import name_text
from kreplica.security.peer import USER, KafkaPrincipal, Peer, host_text
from kreplica.security.sasl import Secret
from kreplica.security.standard_authorizer import StandardAuthorizer
from tests.conformance.kafka_peer import HERE, PeerError, run_java
from tests.support.tcp_cluster import TcpCluster
from tests.unit.security.test_ssl_principal_mapper import CASES

pytestmark = pytest.mark.conformance

SOURCES = (HERE / "java" / "Authorizer.java",)
SETS, QUESTIONS = 10_000, 8
NAMES = ("*", "a", "ab", "abc", "b", "ba", "a.b", "hardcode")
HOSTS = ("10.0.0.1", "10.0.0.2", "::1", "::ffff:10.0.0.1")
PRINCIPALS = ("User:alice", "User:bob", "User:*")
OPERATIONS = [each for each in AclOperation if each >= AclOperation.READ]
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def case(random: random.Random) -> dict[str, Any]:
    """A set of rules that meet often, and questions about them."""
    some = random.sample(OPERATIONS, 3)
    rules = [
        [
            random.choice(TYPES[: random.randint(1, 3)]),
            random.choice(NAMES),
            random.choice([PatternType.LITERAL, PatternType.PREFIXED]),
            random.choice(PRINCIPALS),
            random.choice(["*", "*", "10.0.0.1", host_text("::1")]),
            random.choice([AclOperation.ALL, *some, *OPERATIONS]),
            random.choice([AclPermissionType.ALLOW, AclPermissionType.ALLOW, AclPermissionType.DENY]),
        ]
        for _ in range(random.randint(0, 8))
    ]
    questions = [
        [
            random.choice(["alice", "bob", "root"]),
            random.choice(HOSTS),
            random.choice([*some, AclOperation.DESCRIBE, *OPERATIONS]),
            random.choice(TYPES[: random.randint(1, 3)]),
            random.choice([*NAMES, None]),
        ]
        for _ in range(QUESTIONS)
    ]
    return {
        "super": "User:root;User:other",
        "everyone": random.random() < 0.5,
        # Kafka's class refuses a rule that it has.
        "rules": [list(each) for each in dict.fromkeys(map(tuple, rules))],
        "questions": questions,
    }


def ours(asked: dict[str, Any]) -> list[bool]:
    authorizer = StandardAuthorizer(
        [AclBinding(*rule) for rule in asked["rules"]],
        frozenset(asked["super"].split(";")),
        allow_everyone_if_no_acl_found=asked["everyone"],
    )
    answers = []
    for name, host, operation, kind, resource in asked["questions"]:
        peer = Peer("/" + host_text(host), KafkaPrincipal(USER, name))
        if resource is None:
            answers.append(authorizer.authorize_by_resource_type(peer, operation, kind))
        else:
            answers.append(authorizer.authorize(peer, operation, kind, resource))
    return answers


def test_questions_are_answered_as_kafkas_class_does() -> None:
    seeded = random.Random(23)
    asked = [case(seeded) for _ in range(SETS)]
    lines = "".join(f"{json.dumps(each)}\n" for each in asked)
    said = run_java("Authorizer", sources=SOURCES, timeout_s=600, standard_input=lines)
    theirs = [json.loads(line) for line in said.splitlines()]
    allowed = 0
    for each, answers in zip(asked, theirs, strict=True):
        assert ours(each) == answers, json.dumps(each)
        allowed += sum(answers)
    # Both answers are frequent.
    assert SETS * QUESTIONS / 5 < allowed < SETS * QUESTIONS * 4 / 5


# ---- Kafka's tool ----------------------------------------------------------------------------------------

ACLS = "org.apache.kafka.tools.AclCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpCluster]:
    users = {name: Secret(name) for name in ("admin", "alice")}
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin;User:ANONYMOUS"}
    login = Login(mechanisms=(PLAIN,), passwords=users)
    with TcpCluster(tmp_path_factory.mktemp("nodes"), 2, login, settings=settings) as made:
        yield made


def tool(cluster: TcpCluster, directory: Path, user: str, main: str, *arguments: str, **more: Any) -> str:
    """What a tool prints that `user` runs."""
    config = directory / f"{user}.properties"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="{user}" password="{user}";'
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
    option = more.pop("option", "--command-config")
    arguments = ("--bootstrap-server", cluster.bootstrap_servers, option, str(config), *arguments)
    return run_java(main, *arguments, **more)


def test_kafkas_tool_adds_lists_and_removes_rules(cluster: TcpCluster, tmp_path: Path) -> None:
    def acls(*arguments: str) -> str:
        return tool(cluster, tmp_path, "admin", ACLS, *arguments)

    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    topics = "org.apache.kafka.tools.TopicCommand"
    tool(cluster, tmp_path, "admin", topics, "--create", "--topic", "orders", "--partitions", "2")
    assert tool(cluster, tmp_path, "alice", topics, "--list").strip() == ""
    with pytest.raises(PeerError, match=r"AuthorizationException|not authorized|may not"):
        tool(cluster, tmp_path, "alice", topics, "--create", "--topic", "other")
    acls("--add", "--allow-principal", "User:alice", "--producer", "--topic", "orders")
    acls("--add", "--allow-principal", "User:alice", "--consumer", "--topic", "orders", "--group", "readers")
    listed = acls("--list", "--topic", "orders")
    for operation in ("READ", "WRITE", "DESCRIBE", "CREATE"):
        assert f"operation={operation}, permissionType=ALLOW" in listed
    producer = "org.apache.kafka.tools.ConsoleProducer"
    tool(
        cluster,
        tmp_path,
        "alice",
        producer,
        "--topic",
        "orders",
        standard_input="one\ntwo\n",
    )
    read = tool(
        cluster,
        tmp_path,
        "alice",
        consumer,
        *("--topic", "orders", "--group", "readers", "--from-beginning", "--max-messages", "2"),
    )
    assert sorted(read.split()) == ["one", "two"]
    removed = acls("--remove", "--force", "--topic", "orders")
    assert "READ" not in acls("--list", "--topic", "orders", "--principal", "User:alice"), removed
    assert tool(cluster, tmp_path, "alice", topics, "--list").strip() == ""


# ---- names in certificates -------------------------------------------------------------------------------

NAME_SOURCES = (HERE / "java" / "Principals.java",)
OIDS = [
    *(NameOID.COMMON_NAME, NameOID.COUNTRY_NAME, NameOID.LOCALITY_NAME, NameOID.STATE_OR_PROVINCE_NAME),
    *(NameOID.STREET_ADDRESS, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME),
    *(NameOID.DOMAIN_COMPONENT, NameOID.USER_ID, NameOID.EMAIL_ADDRESS, NameOID.SERIAL_NUMBER),
    *(NameOID.GIVEN_NAME, x509.ObjectIdentifier("1.3.6.1.4.1.4711.1.300")),
]
LETTERS = 'ab Z0,=+<>#;"\\/@.ä中\r-'


def java(cases: list[dict[str, str]]) -> list[str | None]:
    lines = "".join(f"{json.dumps(each)}\n" for each in cases)
    said = run_java("Principals", sources=NAME_SOURCES, timeout_s=300, standard_input=lines)
    return [json.loads(line) for line in said.splitlines()]


def test_names_in_certificates_are_read_as_java_reads_them() -> None:
    seeded = random.Random(23)
    names = []
    for _ in range(5_000):
        parts = []
        for _ in range(seeded.randint(1, 5)):
            values = {}
            for oid in seeded.sample(OIDS, seeded.choice([1, 1, 1, 2])):
                text = "".join(seeded.choice(LETTERS) for _ in range(seeded.randint(1, 12)))
                text = "DE" if oid == NameOID.COUNTRY_NAME else text
                is_ascii = oid in (NameOID.EMAIL_ADDRESS, NameOID.DOMAIN_COMPONENT, NameOID.SERIAL_NUMBER)
                values[oid] = (
                    "".join(filter(str.isalnum, text.encode().decode("ascii", "ignore"))) + "x"
                    if is_ascii
                    else text
                )
            attributes = [x509.NameAttribute(oid, value) for oid, value in values.items()]
            parts.append(x509.RelativeDistinguishedName(attributes))
        names.append(x509.Name(parts).public_bytes())
    theirs = java([{"der": each.hex()} for each in names])
    for der, text in zip(names, theirs, strict=True):
        assert name_text(der) == text, der.hex()


def test_principals_are_made_of_names_as_kafka_makes_them() -> None:
    cases = [{"rules": rules or "DEFAULT", "name": name} for rules, name, _ in CASES]
    assert java(cases) == [principal for _, _, principal in CASES]
