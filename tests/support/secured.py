"""One switch for all tests with nodes: `KREPLICA_SECURED=1` starts them with TLS, logins and access rules.

The nodes of `NodeProcesses` and `TcpCluster` then have SASL_SSL listeners and an authorizer, and their
addresses are noted here. Each client and tool gets from this module what it needs to connect. For nodes that
are not secured, such as those of Kafka itself, that is their address alone. Clients log in as an ordinary
user. Rules allow this user everything, so that rules decide each request.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kreplica.broker.node_config import STANDARD_AUTHORIZER
from kreplica.runtime.key_store import PEM, KeyStore, TrustStore
from kreplica.runtime.listener import PLAIN, Login
from kreplica.runtime.tcp_transport import IN_PLAIN, NodeSecurity
from kreplica.runtime.tls import ClientTls, TlsSettings, TrustSettings
from kreplica.security.client_login import ClientLogin
from kreplica.security.jaas import PLAIN_MODULE
from kreplica.security.sasl import Secret

IS_ON = os.environ.get("KREPLICA_SECURED", "") not in ("", "0")
WAIT_S = 60.0
ADMIN, CLIENT, NODE = "admin", "client", "node"
PASSWORDS = {name: f"password of {name}" for name in (ADMIN, CLIENT, NODE)}
Address = tuple[str, int]

# The addresses of secured nodes, as host:port.
_secured: set[str] = set()


@functools.cache
def _directory() -> Path:
    """The directory with the certificates of all secured nodes of this process."""
    made = Path(tempfile.mkdtemp(prefix="secured-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(made / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(made / "node.pem"))
    return made


def trusted() -> str:
    """Return the file with the authority of the nodes' certificates."""
    return str(_directory() / "ca.pem")


def keys() -> str:
    """Return the file with the nodes' key and certificate."""
    return str(_directory() / "node.pem")


# ---- nodes -----------------------------------------------------------------------------------------------


def add(addresses: Iterable[Address]) -> None:
    """Note that nodes at these addresses are secured."""
    _secured.update(f"{host}:{port}" for host, port in addresses)


def forget(addresses: Iterable[Address]) -> None:
    """Note that these nodes are gone: others may get their addresses."""
    _secured.difference_update(f"{host}:{port}" for host, port in addresses)


def node_properties(clients: Address, controllers: Address) -> dict[str, object]:
    """Return the properties of a node that listens for clients and controllers at these addresses."""
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    jaas = f'{PLAIN_MODULE} required username="{NODE}" password="{PASSWORDS[NODE]}" {users};'
    listeners = {"CLIENTS": clients, "CONTROLLER": controllers}
    return {
        "listeners": ",".join(f"{name}://{host}:{port}" for name, (host, port) in listeners.items()),
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keys(),
        "ssl.truststore.location": trusted(),
        "sasl.enabled.mechanisms": PLAIN,
        "sasl.mechanism.inter.broker.protocol": PLAIN,
        "sasl.mechanism.controller.protocol": PLAIN,
        **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas for name in listeners},
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{NODE};User:{ADMIN}",
    }


def login() -> Login:
    """Return how clients log in to nodes of this process."""
    return Login(mechanisms=(PLAIN,), passwords={name: Secret(text) for name, text in PASSWORDS.items()})


def tls() -> TlsSettings:
    """Return how nodes of this process encrypt."""
    return TlsSettings(KeyStore(PEM, keys()))


# Nodes of one process do not log in to each other.
SETTINGS: Mapping[str, object] = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{ADMIN};User:ANONYMOUS",
}


def allow_everything(bootstrap: str) -> None:
    """Let the user that the clients are do everything, by rules."""
    admin = AdminClient(librdkafka(bootstrap, ADMIN))
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    names = [*((kind, "*") for kind in kinds), (ResourceType.BROKER, "kafka-cluster")]
    allowed = (AclOperation.ALL, AclPermissionType.ALLOW)
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{CLIENT}", "*", *allowed)
        for kind, name in names
    ]
    for made in admin.create_acls(rules).values():
        made.result(WAIT_S)


# ---- clients ---------------------------------------------------------------------------------------------


def is_secured(bootstrap: str) -> bool:
    """Return whether the nodes at these addresses are secured."""
    return not _secured.isdisjoint(bootstrap.split(","))


def librdkafka(bootstrap: str, user: str = CLIENT) -> dict[str, Any]:
    """Return the properties with which clients of librdkafka connect."""
    if not is_secured(bootstrap):
        return {"bootstrap.servers": bootstrap}
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": trusted(),
        "sasl.mechanism": PLAIN,
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }


def kafka_python(bootstrap: str) -> dict[str, Any]:
    """Return the arguments with which clients of kafka-python connect."""
    more = {"ssl_cafile": trusted(), **_python()} if is_secured(bootstrap) else {}
    return {"bootstrap_servers": bootstrap, **more}


def aiokafka(bootstrap: str) -> dict[str, Any]:
    """Return the arguments with which clients of aiokafka connect."""
    if not is_secured(bootstrap):
        return {"bootstrap_servers": bootstrap}
    context = ssl.create_default_context(cafile=trusted())
    return {"bootstrap_servers": bootstrap, "ssl_context": context, **_python()}


def _python() -> dict[str, str]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": PLAIN,
        "sasl_plain_username": CLIENT,
        "sasl_plain_password": PASSWORDS[CLIENT],
    }


def java(bootstrap: str) -> dict[str, str]:
    """Return the properties with which clients in Java connect, without the address."""
    if not is_secured(bootstrap):
        return {}
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": trusted(),
        "sasl.mechanism": PLAIN,
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{CLIENT}" password="{PASSWORDS[CLIENT]}";',
    }


def java_file(bootstrap: str) -> str | None:
    """Return a file with the properties for clients in Java and `kreplica`; None without any."""
    if not is_secured(bootstrap):
        return None
    path = _directory() / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in java(bootstrap).items()))
    return str(path)


def kreplica_environment(bootstrap: str) -> dict[str, str]:
    """Return the environment in which the commands of `kreplica` connect."""
    file = java_file(bootstrap)
    more = {} if file is None else {"KREPLICA_COMMAND_CONFIG": file}
    return {"KREPLICA_BOOTSTRAP": bootstrap, **more}


def foreign_environment(bootstrap: str) -> dict[str, str]:
    """Return the environment in which the programs in Go and JavaScript connect."""
    if not is_secured(bootstrap):
        return {}
    return {
        "CLIENT_CA": trusted(),
        "CLIENT_MECHANISM": PLAIN,
        "CLIENT_USER": CLIENT,
        "CLIENT_PASSWORD": PASSWORDS[CLIENT],
    }


def transport(addresses: Iterable[Address]) -> NodeSecurity:
    """Return how our own client connects to nodes at these addresses."""
    if not is_secured(",".join(f"{host}:{port}" for host, port in addresses)):
        return IN_PLAIN
    return NodeSecurity(
        ClientTls(TrustSettings(TrustStore(PEM, trusted()))),
        ClientLogin(PLAIN, CLIENT, Secret(PASSWORDS[CLIENT])),
    )
