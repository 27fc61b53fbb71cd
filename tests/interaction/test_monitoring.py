"""The dashboard and the alerts of docs/monitoring fit what a node shows under /metrics."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kreplica.cluster import Cluster
from kreplica.runtime.prometheus import MetricsListener

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
# Labels that Prometheus adds, and metrics that it makes itself.
SCRAPED = {"job", "instance"}
OF_PROMETHEUS = {"up"}
# A node without TLS has no certificates; test_certificate_watch.py looks at theirs.
CERTIFICATES = {"kafka_server_Certificates_NotAfterTimestampSeconds": {"listener", "store"}}
COUNTING = ("rate", "increase")


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The names of a running node's metrics, with their labels."""
    with Cluster(1) as cluster:
        cluster.create_topic("orders", 1)
        cluster.append("orders", [b"a"]).result(60)
        [node] = cluster._nodes._running()
        listener = MetricsListener("127.0.0.1", 0)
        listener.show(node.metrics, livez=list, ready=list)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics", timeout=60) as answer:
                text = answer.read().decode()
        finally:
            listener.close()
    found: dict[str, set[str]] = dict(CERTIFICATES)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    assert found["kafka_server_LogDirectory_UsableBytes"] == {"logDirectory"}
    return {**found, **{name: set() for name in OF_PROMETHEUS}}


def alerts() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> list[tuple[str, str]]:
    """Every expression with a label that its text names; Grafana's variables are filled in."""
    found = []
    for rule in alerts():
        texts = " ".join(rule["annotations"].values())
        found.append((rule["expr"], " ".join(re.findall(r"\$labels\.(\w+)", texts))))
    for panel in panels():
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
            found.append((expr, " ".join(re.findall(r"{{(\w+)}}", target["legendFormat"]))))
    assert len(found) > 30
    return found


def parts(expr: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every part of an expression, with the functions around it."""

    def below(each: Any, around: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
        yield each, around
        inner = (*around, each.func.name) if isinstance(each, promql.Call) else around
        for name in ("expr", "lhs", "rhs", "vector_selector"):
            child = getattr(each, name, None)
            if child is not None:
                yield from below(child, inner)
        for child in getattr(each, "args", None) or ():
            yield from below(child, inner)

    yield from below(expr, ())


@pytest.mark.parametrize(("text", "named"), expressions())
def test_an_expression_names_metrics_and_labels_of_a_node(
    text: str, named: str, labels: dict[str, set[str]]
) -> None:
    found: set[str] = set()
    for part, around in parts(promql.parse(text)):
        if not isinstance(part, promql.VectorSelector):
            continue
        assert part.name in labels, f"no node shows {part.name}"
        known = labels[part.name] | SCRAPED
        found |= known
        assert {each.name for each in part.matchers.matchers} <= known
        assert [(each.name, each.value) for each in part.matchers.matchers][:1] == [("job", "kreplica")]
        # A counter is the number since the start of the process, and only its growth says something.
        if part.name.endswith("_total"):
            assert set(around) & set(COUNTING), f"{part.name} needs a rate"
    assert found
    assert set(named.split()) <= found


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Kreplica\w+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert len(summary) < 110
    assert description.endswith(".")


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names) > 10


def test_the_dashboard_can_be_imported() -> None:
    found = json.loads((FOLDER / "dashboard.json").read_text())
    assert (found["uid"], found["title"]) == ("kreplica", "kreplica")
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    # No two panels overlap, and none is wider than the page.
    places: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells
    variables = {each["name"] for each in found["templating"]["list"]}
    named = set(re.findall(r"\$\{?(\w+)", (FOLDER / "dashboard.json").read_text()))
    assert named - {"__rate_interval", "__all"} == variables
