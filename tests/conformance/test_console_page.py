"""The console's page in a real browser: headless Chromium runs it against a running cluster."""

from __future__ import annotations

import html
import http.server
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from kreplica.cluster import Cluster
from kreplica.common.metrics import MetricRegistry
from kreplica.runtime.console import PAGE, Console, ConsoleAccess
from kreplica.runtime.prometheus import MetricsListener

WAIT_S = 120
# A page shows at once what the API answers, but a loaded machine is slow: virtual time waits for the network.
VIRTUAL_MS = 20_000
HOSTILE = '<img src=x onerror="document.title=1">&<b>'

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium: install the package chromium")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the console of a cluster with a topic, messages and a hostile text."""
    with Cluster(3, tmp_path_factory.mktemp("page") / "data") as cluster:
        cluster.create_topic("orders")
        for value in ('{"amount":12}', HOSTILE):
            cluster.append("orders", [value.encode()]).result(WAIT_S)
        leader = cluster.partition("orders", 0).leader
        assert leader is not None
        listener = MetricsListener("127.0.0.1", 0)
        try:
            console = Console(cluster.node(leader), ConsoleAccess(hosts=frozenset(), passwords={}))
            listener.show(MetricRegistry(), livez=list, ready=list, console=console)
            yield f"http://127.0.0.1:{listener.port}/console"
        finally:
            listener.close()


def shown(chromium: str, url: str, directory: Path, *more: str) -> str:
    """Return the page's document after its script has run."""
    command = [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}"),
        *(f"--virtual-time-budget={VIRTUAL_MS}", *more, "--dump-dom", url),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    body = done.stdout.partition("<main")[2].partition("<script>")[0]
    assert body, done.stderr
    return body


def text_of(document: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", document))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("", ["Cluster", "3", "brokers", "running", "Disks of node"]),
        ("#/topics", ["orders", "in sync"]),
        ("#/topic/orders", ["Topic", "orders", "messages", "history"]),
        ("#/groups", ["This node coordinates no group."]),
        ("#/quorum", ["Metadata quorum", "voters"]),
        ("#/configs/topic/orders", ["retention.ms", "default"]),
        ("#/acls", ["everyone may do everything"]),
        ("#/damage", ["No damage is known.", "Scrubber:"]),
        ("#/nothing", ["There is no such page."]),
        ("#/toString", ["There is no such page."]),
        ("#/topic/%E0%A4%A", ["There is no such page."]),
        ("#/messages/orders/0/start%3Dtime%26at%3Dyesterday", ["yesterday is not a time", "shown as"]),
        ("#/messages/orders/0/start%3Doffset%26at%3D1", ["Earlier, from offset 0"]),
        ("#/topic/nothing", ["there is no topic 'nothing'"]),
    ],
)
def test_each_page_shows_its_facts(
    chromium: str, page: str, tmp_path: Path, place: str, words: list[str]
) -> None:
    found = text_of(shown(chromium, page + place, tmp_path))
    assert [word for word in words if word not in found] == []


def test_the_history_is_drawn(chromium: str, page: str, tmp_path: Path) -> None:
    document = shown(chromium, f"{page}#/history/orders/0", tmp_path)
    assert len(re.findall(r'<rect class="leads"', document)) == 1
    assert len(re.findall(r'<rect class="follows"', document)) == 2


def test_messages_are_decoded_and_never_read_as_html(chromium: str, page: str, tmp_path: Path) -> None:
    as_json = shown(chromium, f"{page}#/messages/orders/0/start%3Dlast%26at%3D2%26form%3Djson", tmp_path)
    assert '{\n  "amount": 12\n}' in html.unescape(as_json)
    assert "<img" not in as_json
    assert HOSTILE in html.unescape(as_json)
    as_hex = shown(chromium, f"{page}#/messages/orders/0/start%3Doffset%26at%3D0%26form%3Dhex", tmp_path)
    assert b'{"amount":12}'.hex(" ") in as_hex


class _FallsSilent(http.server.BaseHTTPRequestHandler):
    """Serves the page of a node that answers the first two questions of the page, and none after them."""

    answers: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        content = PAGE.read_bytes()
        if self.path.startswith("/api/"):
            if not self.answers:
                self.close_connection = True
                return
            content = self.answers.pop()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_whose_node_falls_silent_keeps_what_it_has_shown(
    chromium: str, page: str, tmp_path: Path
) -> None:
    with urllib.request.urlopen(page.replace("/console", "/api/overview"), timeout=WAIT_S) as answer:
        _FallsSilent.answers = [answer.read()] * 2
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _FallsSilent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        document = shown(chromium, f"http://127.0.0.1:{server.server_port}/console", tmp_path)
        server.shutdown()
    assert "The node does not answer. What you see is older." in document
    assert "Disks of node" in document
