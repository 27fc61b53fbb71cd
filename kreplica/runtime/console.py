"""The console of a node in the browser: one page, and a read-only JSON API beside it.

    browser ──▶ MetricsListener ──▶ Console ──▶ ConsoleViews ──▶ Node

`/console` is the page; it holds its script and its styles, and loads nothing from other hosts. `/api/...`
answers with JSON. A request is refused if its Host header names another machine (a page of an attacker whose
name resolves to this address), or if it lacks the password that the console wants.

Thread rule: each request runs in a thread of the MetricsListener, never in the node's loop. At most
MOST_AT_ONCE requests run at a time; each reads a bounded number of bytes and rows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from kreplica.broker.node import Node
from kreplica.common.dataclass import dataclass
from kreplica.common.errors import (
    BrokerNotAvailable,
    GroupIdNotFound,
    InvalidConfig,
    InvalidRequest,
    KreplicaError,
    UnknownTopicOrPartition,
)
from kreplica.runtime.console_messages import messages
from kreplica.runtime.console_views import ConsoleViews
from kreplica.runtime.listener import Listener
from kreplica.runtime.partition_history import PartitionHistory

MOST_AT_ONCE = 4
MOST_ARGUMENTS = 20
PAGE = Path(__file__).with_name("console.html")
_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)
_STATUS = {
    InvalidRequest: "400 Bad Request",
    UnknownTopicOrPartition: "404 Not Found",
    GroupIdNotFound: "404 Not Found",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleAccess:
    """Who may see the console.

    `hosts`: the names, in lower case, by which browsers may ask for it; addresses are always allowed.
    `passwords`: those of its users by name; empty if it asks for none.
    """

    hosts: frozenset[str]
    passwords: Mapping[str, str]

    def admits_host(self, header: str) -> bool:
        """Return whether the Host header names this machine: an address, localhost or one of `hosts`."""
        host = header.rpartition("]")[0].lstrip("[") or header.partition(":")[0]
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host.lower().rstrip(".") in {"localhost", *self.hosts}
        return True

    def admits_login(self, header: str) -> bool:
        """Return whether the Authorization header has a right name and password; compared in equal time."""
        if not self.passwords:
            return True
        kind, _, encoded = header.partition(" ")
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        known = self.passwords.get(name)
        is_same = hmac.compare_digest((known or "").encode(), password.encode())
        return kind.lower() == "basic" and known is not None and is_same


def console_access(
    *,
    wanted: bool | None,
    host: str,
    names: Iterable[str],
    password_file: Path | None,
    listeners: Iterable[Listener],
    has_authorizer: bool,
) -> ConsoleAccess | None:
    """Return who may see the console; None if it is off.

    `wanted`: None means on for a loopback `host` of a node that protects nothing. `names`: more
    names of this machine. Raises InvalidConfig if the console would show without a password what logins,
    encryption or access rules protect, and for a bad password file.
    """
    passwords = {} if password_file is None else read_passwords(password_file)
    protected = has_authorizer or any(each.login is not None or each.tls is not None for each in listeners)
    if wanted is None:
        wanted = bool(passwords) or (not protected and is_loopback(host))
    if not wanted:
        return None
    if protected and not passwords:
        raise InvalidConfig(
            "--console would show to everyone what logins, encryption or access rules of this node protect: "
            "give it --console-password-file"
        )
    return ConsoleAccess(
        hosts=frozenset(each.lower().rstrip(".") for each in (host, socket.gethostname(), *names)),
        passwords=passwords,
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a listener at the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_passwords(path: Path) -> dict[str, str]:
    """Read a file with a line NAME:PASSWORD for each user. Raises InvalidConfig."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"--console-password-file {path}: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            name, colon, password = line.partition(":")
            if not (name and colon and password):
                raise InvalidConfig(f"--console-password-file {path}: line {number} is not NAME:PASSWORD")
            found[name] = password
    if not found:
        raise InvalidConfig(f"--console-password-file {path} has no line NAME:PASSWORD")
    return found


class Console:
    """Answers the requests of the page and of other programs, as a WSGI application."""

    def __init__(self, node: Node, access: ConsoleAccess) -> None:
        self._node = node
        self._access = access
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._page = PAGE.read_bytes()
        views = ConsoleViews(node)
        history = PartitionHistory(lambda: node.raft.log)
        self._views: dict[str, Callable[[Arguments], Any]] = {
            "overview": lambda _: views.overview(),
            "topics": lambda asked: views.topics(asked.text("search"), asked.number("from", 0)),
            "topic": lambda asked: views.topic(asked.required("name"), asked.number("from", 0)),
            "history": lambda asked: views.history(history, asked.required("topic"), asked.partition()),
            "messages": lambda asked: messages(
                views.replica(asked.required("topic"), asked.partition()),
                offset=asked.optional_number("offset"),
                timestamp=asked.optional_number("time"),
                last=asked.optional_number("last"),
                limit=asked.number("limit", 50),
                contains=asked.text("contains"),
                isolation="high_watermark" if asked.text("uncommitted") == "1" else "txn_committed",
            ),
            "groups": lambda _: views.groups(),
            "group": lambda asked: views.group(asked.required("id")),
            "quorum": lambda _: views.quorum(),
            "configs": lambda asked: views.configs(asked.required("type"), asked.required("name")),
            "acls": lambda _: views.acls(),
            "damage": lambda _: views.damage(),
        }

    def takes(self, path: str) -> bool:
        """Return whether the path is one of the console's."""
        return path in ("/", "/console") or path.startswith("/api/")

    def answer(self, environ: Mapping[str, Any], start: Any) -> Iterable[bytes]:
        """Answer a request, by the rules of WSGI."""
        if not self._access.admits_host(environ.get("HTTP_HOST", "")):
            what = "the Host header does not name this machine: use its address, or --console-host"
            return _sent(start, "421 Misdirected Request", {"error": what})
        if not self._access.admits_login(environ.get("HTTP_AUTHORIZATION", "")):
            wants = [("WWW-Authenticate", 'Basic realm="kreplica console", charset="UTF-8"')]
            return _sent(start, "401 Unauthorized", {"error": "a name and a password are wanted"}, wants)
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _sent(start, "405 Method Not Allowed", {"error": "the console only reads: use GET"})
        path = str(environ.get("PATH_INFO", ""))
        if path.startswith("/api/"):
            return self._data(path.removeprefix("/api/"), str(environ.get("QUERY_STRING", "")), start)
        start("200 OK", [("Content-Type", "text/html; charset=utf-8"), *_headers(policy(self._page))])
        return [self._page]

    def _data(self, name: str, query: str, start: Any) -> Iterable[bytes]:
        view = self._views.get(name)
        if view is None:
            return _sent(start, "404 Not Found", {"error": f"there are {', '.join(self._views)} below /api/"})
        if not self._free.acquire(blocking=False):
            busy = {"error": f"{MOST_AT_ONCE} requests are being answered already: try again"}
            return _sent(start, "503 Service Unavailable", busy, [("Retry-After", "1")])
        try:
            if not self._node.is_open:
                raise BrokerNotAvailable("; ".join(self._node.what_keeps_from_serving()))
            found = view(Arguments(query))
        except KreplicaError as error:
            status = _STATUS.get(type(error), "503 Service Unavailable")
            return _sent(start, status, {"error": str(error), "kind": type(error).__name__})
        finally:
            self._free.release()
        return _sent(start, "200 OK", found)


class Arguments:
    """The arguments of a request to the API. Raises InvalidRequest for those that do not fit."""

    def __init__(self, query: str) -> None:
        try:
            self._values = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_ARGUMENTS))
        except ValueError:
            raise InvalidRequest(f"there are more than {MOST_ARGUMENTS} arguments") from None

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def required(self, name: str) -> str:
        """Return the argument. Raises InvalidRequest if it is missing or empty."""
        found = self.text(name)
        if not found:
            raise InvalidRequest(f"the argument {name} is missing")
        return found

    def optional_number(self, name: str) -> int | None:
        """Return the argument as a number from 0 on; None if it is missing or empty."""
        found = self.text(name)
        if not found:
            return None
        if not (found.isascii() and found.isdecimal() and len(found) <= 18):
            raise InvalidRequest(f"{name}={found[:40]} is not a number from 0 on")
        return int(found)

    def number(self, name: str, default: int) -> int:
        found = self.optional_number(name)
        return default if found is None else found

    def partition(self) -> int:
        """Return the number of the partition."""
        self.required("partition")
        return self.number("partition", 0)


def policy(page: bytes) -> str:
    """Return the Content-Security-Policy under which only the page's own script and styles run."""
    hashes: dict[bytes, list[str]] = {b"script": [], b"style": []}
    for kind, content in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes[b'script'])}; "
        f"style-src {' '.join(hashes[b'style'])}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _headers(security_policy: str) -> list[tuple[str, str]]:
    return [
        ("Content-Security-Policy", security_policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-store"),
    ]


def _sent(start: Any, status: str, content: object, more: Iterable[tuple[str, str]] = ()) -> Iterable[bytes]:
    content_type = ("Content-Type", "application/json; charset=utf-8")
    start(status, [content_type, *_headers("default-src 'none'; frame-ancestors 'none'"), *more])
    return [json.dumps(content, ensure_ascii=False).encode(errors="replace") + b"\n"]
