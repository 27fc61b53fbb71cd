"""Replay a cluster's recorded responses, to find how fast a client is with a server that only sends.

    with Recorded(cluster.bootstrap) as recorded:
         consume_rate(recorded.bootstrap, topic, ...)   # forwards to the cluster, and records its responses
         consume_rate(recorded.bootstrap, topic, ...)   # the same bytes, from memory: the client's own limit

A separate process listens once for each broker, so that a client has as many connections as to the cluster. A
request equal to an earlier one except for its correlation id gets the recorded response; any other request is
forwarded to the broker. All Produce requests count as equal: their records are read and dropped. A response
that the broker delayed, such as a fetch at the end of the log, is delayed as long again; without the delay a
client would send fetches continuously.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

HOST = "127.0.0.1"
# The size of a frame, and the positions of API key, version and correlation id in a request.
SIZE_BYTES, API, KIND, NUMBER = 4, slice(0, 2), slice(0, 4), slice(4, 8)
PRODUCE = (0).to_bytes(2, "big")
# Larger responses contain records; in smaller ones, brokers' addresses are replaced by this process's.
SMALL_BYTES = 65_536
HELD_BACK_S = 0.1

Address = tuple[str, int]


class Recorded:
    """Starts the replaying process, and ends it on exit."""

    def __init__(self, bootstrap: str) -> None:
        command = [sys.executable, "-m", "bench.peers.recorded", bootstrap]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.bootstrap = self._process.stdout.readline().strip()

    def __enter__(self) -> Recorded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


class _Tape:
    """The recorded responses: by port and request, the response and its delay in seconds."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, bytes], tuple[bytes, float]] = {}
        # A broker's port in its wire form, and the port that replaces it.
        self.ports: dict[bytes, bytes] = {}

    def moved(self, answer: bytes) -> bytes:
        """Return the response with our ports in place of the brokers'."""
        if len(answer) < SMALL_BYTES:
            for theirs, ours in self.ports.items():
                answer = answer.replace(HOST.encode() + theirs, HOST.encode() + ours)
        return answer


def _serve(listener: socket.socket, broker: Address, tape: _Tape) -> None:
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(client, broker, tape), daemon=True).start()


def _answer(client: socket.socket, broker: Address, tape: _Tape) -> None:
    """Answer all requests of one connection, in order."""
    upstream: socket.socket | None = None
    with client:
        while (request := _frame(client)) is not None:
            rest = b"" if request[API] == PRODUCE else bytes(request[NUMBER.stop :])
            key = broker[1], bytes(request[KIND]) + rest
            known = tape.answers.get(key)
            if known is None:
                upstream = upstream or socket.create_connection(broker)
                began = time.monotonic()
                _send(upstream, request)
                answer = _frame(upstream)
                if answer is None:
                    return
                # Every response begins with the correlation id, which is left out.
                known = tape.answers[key] = tape.moved(bytes(answer[4:])), time.monotonic() - began
            elif known[1] > HELD_BACK_S:
                time.sleep(known[1])
            try:
                _send(client, request[NUMBER], known[0])
            except OSError:
                return


def _send(to: socket.socket, *parts: bytes | memoryview) -> None:
    size = sum(map(len, parts))
    sent = to.sendmsg([size.to_bytes(SIZE_BYTES, "big"), *parts]) - SIZE_BYTES
    for part in parts:
        if sent < len(part):
            to.sendall(memoryview(part)[max(sent, 0) :])
        sent -= len(part)


def _frame(of: socket.socket) -> memoryview | None:
    """Read the next frame without its size; None if the other end has closed."""
    size = _exactly(of, SIZE_BYTES)
    return None if size is None else _exactly(of, int.from_bytes(size, "big"))


def _exactly(of: socket.socket, size: int) -> memoryview | None:
    data = left = memoryview(bytearray(size))
    try:
        while left:
            came = of.recv_into(left)
            if not came:
                return None
            left = left[came:]
    except OSError:
        return None
    return data


def main(bootstrap: str) -> None:
    """Serve until stdin ends; print the addresses as the first line of stdout."""
    tape = _Tape()
    listeners = []
    for each in bootstrap.split(","):
        host, _, port = each.rpartition(":")
        listener = socket.create_server((HOST, 0))
        listeners.append((listener, (host, int(port))))
        tape.ports[int(port).to_bytes(4, "big")] = listener.getsockname()[1].to_bytes(4, "big")
    for listener, broker in listeners:
        threading.Thread(target=_serve, args=(listener, broker, tape), daemon=True).start()
    print(",".join(f"{HOST}:{listener.getsockname()[1]}" for listener, _ in listeners), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
