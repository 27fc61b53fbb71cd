"""Small requests over HTTP to an identity provider, and files in its place.

A redirect is an error, since its target has not been allowed (CVE-2025-27817). A request ends after
DEADLINE_S, however slowly the server answers, and an answer larger than the caller expects is cut off. A
request blocks: `in_background` runs it in a thread of its own.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from kreplica.common.errors import InvalidConfig, KreplicaError, NetworkException
from kreplica.common.future import Future
from kreplica.runtime.storage import FileStorage

T = TypeVar("T")

DEADLINE_S = 10.0
PORTS = {"http": 80, "https": 443}
OK = 200


def parse_url(name: str, text: str) -> SplitResult:
    """Return the parts of the URL in the property `name`. Raises InvalidConfig."""
    try:
        found = urlsplit(text)
        is_remote = found.scheme in PORTS and bool(found.hostname) and found.port != 0
    except ValueError:
        raise InvalidConfig(f"{name}={text[:120]!r} is not a URL") from None
    is_file = found.scheme == "file" and found.netloc in ("", "localhost") and found.path.startswith("/")
    if not (is_remote or is_file) or "@" in found.netloc or not text.isascii() or not text.isprintable():
        raise InvalidConfig(f"{name}={text[:120]!r} must be an http, https or file URL without a user")
    return found


def fetch(
    url: SplitResult,
    limit: int,
    tls: Callable[[], ssl.SSLContext],
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return what is at the URL, at most `limit` bytes; with a `body`, what the server answers to it.

    Raises NetworkException, InvalidFile, KafkaStorageError.
    """
    if url.scheme == "file":
        return FileStorage().read_file(unquote(url.path), limit)
    host, port = url.hostname or "", url.port or PORTS[url.scheme]
    where = f"{url.scheme}://{host}:{port}{url.path}"
    connection = http.client.HTTPConnection(host, port)
    was_cut = threading.Event()
    try:
        connected = socket.create_connection((host, port), DEADLINE_S)
        if url.scheme == "https":
            connected = tls().wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        connection.sock = connected
        end = threading.Timer(DEADLINE_S, _cut, (connected, was_cut))
        end.daemon = True
        end.start()
        try:
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            data = _exchange(connection, url, limit, body, headers or {})
        finally:
            end.cancel()
        if was_cut.is_set():
            # An answer whose length is not announced looks complete then.
            raise TimeoutError
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NetworkException(f"{where}: {_why(error, was_cut)}") from None
    except NetworkException as error:
        raise NetworkException(f"{where}: {error}") from None
    finally:
        connection.close()
    return data


def _why(error: Exception, was_cut: threading.Event) -> str:
    if was_cut.is_set():
        return f"no whole answer within {DEADLINE_S:g} s"
    return str(error) or type(error).__name__


def _exchange(
    connection: http.client.HTTPConnection,
    url: SplitResult,
    limit: int,
    body: bytes | None,
    headers: Mapping[str, str],
) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    accepted = {"Accept": "application/json", **headers}
    connection.request("GET" if body is None else "POST", target, body, accepted)
    with connection.getresponse() as response:
        if 300 <= response.status < 400:
            raise NetworkException(f"redirects, status {response.status}, which is not followed")
        data = response.read(limit + 1)
        if response.status != OK:
            raise NetworkException(f"status {response.status}")
        if len(data) > limit:
            raise NetworkException(f"the answer is larger than {limit} bytes")
        return data


def _cut(connected: socket.socket, was_cut: threading.Event) -> None:
    """End a connection whose server is too slow; what waits for it fails."""
    was_cut.set()
    try:
        # Not by the method of TLS, which another thread may be using.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    except OSError:
        # It has ended meanwhile.
        return


def in_background(name: str, task: Callable[[], T]) -> Future[T]:
    """Run a task in a thread of its own. The future gets its result or its error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = task()
        except KreplicaError as error:
            future.set_exception(error)
        except Exception as error:
            future.set_exception(NetworkException(f"{name} failed: {error!r}"))
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
