"""A schema registry over HTTP with answers that a test gives, in a thread of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self


class SchemaRegistry(ThreadingHTTPServer):
    """Answers with the JSON of a path, or with a status alone, and remembers what it was asked."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.answers = dict(answers)
        self.asked: list[str] = []
        self._thread = Thread(target=self.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Answering(BaseHTTPRequestHandler):
    server: SchemaRegistry

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        found = self.server.answers.get(self.path, 404)
        self.send_response(found if isinstance(found, int) else 200)
        self.end_headers()
        self.wfile.write(json.dumps({} if isinstance(found, int) else found).encode())

    def log_message(self, *_: object) -> None:
        pass
