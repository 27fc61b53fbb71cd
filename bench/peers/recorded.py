"""Answers of a cluster, played again: how fast a client is with a server that does nothing but send.

    with Recorded(cluster.bootstrap) as recorded:
        consume_rate(recorded.bootstrap, topic, ...)   # asks the cluster, and keeps what it answers
        consume_rate(recorded.bootstrap, topic, ...)   # the same bytes, from memory: the client's own limit

A process of its own listens once for each broker, so that a client has as many connections as it has to the
cluster. A request that came before, byte for byte but its correlation id, gets the answer from then; any
other goes on to the broker. All Produce requests count as one: what they write is read and dropped. An answer
that the broker held back, as a fetch at the log's end, is held back as long again: a client that is told at
once would only ask all the time.
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
# The size of a frame, and where in a request its API key, its version and its correlation id are.
SIZE_BYTES, API, KIND, NUMBER = 4, slice(0, 2), slice(0, 4), slice(4, 8)
PRODUCE = (0).to_bytes(2, "big")
# Records are in larger answers; in those below, brokers' addresses become this process's.
SMALL_BYTES = 65_536
HELD_BACK_S = 0.1

Address = tuple[str, int]


class Recorded:
    """See the module; the process ends on exit."""

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
    """What the brokers have answered: by port and request, the answer and after how many seconds it came."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, bytes], tuple[bytes, float]] = {}
        # A broker's port as messages hold it, and the port that stands for it here.
        self.ports: dict[bytes, bytes] = {}

    def moved(self, answer: bytes) -> bytes:
        """The answer with our ports in place of the brokers'."""
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
    """All requests of one connection, in their order."""
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
                # Without the correlation id, which every answer begins with.
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
    """The next frame without its size; None where the other end is gone."""
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
    """Serve until stdin ends; the first line of stdout says where."""
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
