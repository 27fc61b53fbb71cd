"""The ends of certificates: a metric for each store of a listener, and warnings before they end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kreplica.common.metrics import MetricRegistry
from kreplica.runtime.certificate_watch import CertificateWatch
from kreplica.runtime.key_store import KeyStore, TrustStore
from kreplica.runtime.tls import ClientTls, ServerTls, TlsSettings, TrustSettings
from tests.unit.runtime.test_key_store import Made, pem

DAY_S = 24 * 3600.0
KEY = "kafka.server:type=Certificates,name=NotAfterTimestampSeconds,listener=CLIENTS,store=key"
TRUST = KEY.replace("store=key", "store=trust")


class Stage:
    """A listener and its trust store; `end_s`: when all certificates end."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "node.pem"
        self.metrics = MetricRegistry()
        made = self.issue()
        server = ServerTls(TlsSettings(KeyStore("PEM", str(self.path))))
        client = ClientTls(TrustSettings(TrustStore("PEM", certificates=pem(made.root))))
        self.now_s = 0.0
        stores = [("CLIENTS", server), ("CLIENTS", client)]
        self.watch = CertificateWatch(stores, self.metrics, lambda: self.now_s)

    def issue(self) -> Made:
        made = Made()
        self.path.write_text(made.key_pem() + made.chain_pem)
        self.end_s = made.leaf.not_valid_after_utc.timestamp()
        return made


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def lines_at(stage: Stage, caplog: pytest.LogCaptureFixture, now_s: float) -> list[str]:
    caplog.clear()
    stage.now_s = now_s
    stage.watch.look()
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_the_end_of_each_store_is_a_metric(stage: Stage) -> None:
    values = stage.metrics.values()
    assert values[KEY] == stage.end_s
    assert values[TRUST] == pytest.approx(stage.end_s, abs=10)


def test_a_certificate_that_ends_soon_is_logged_again_and_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines_at(stage, caplog, stage.end_s - 31 * DAY_S) == []
    for days in (29, 28):
        found = lines_at(stage, caplog, stage.end_s - days * DAY_S - 60)
        assert any(f"CN=node ends in {days} days" in each for each in found)
        assert any("listener CLIENTS, ssl.truststore" in each for each in found)
        assert len(found) == len(set(found)) == 3  # of the node, and of two authorities
    [first, *_] = lines_at(stage, caplog, stage.end_s + 1)
    assert "the certificate of CN=node has ended on" in first


def test_a_certificate_that_has_not_begun_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    [first, *_] = lines_at(stage, caplog, stage.end_s - 100 * DAY_S)
    assert "the certificate of CN=node begins only on" in first


def test_a_renewed_certificate_is_read(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    before = stage.metrics.values()[KEY]
    new = Made(days=400)
    stage.path.write_text(new.key_pem() + new.chain_pem)
    lines_at(stage, caplog, before)
    assert stage.metrics.values()[KEY] == new.leaf.not_valid_after_utc.timestamp() > before


def test_stores_that_were_not_used_are_counted(stage: Stage) -> None:
    shown = "kafka.server:type=Certificates,name=RefusedReloads,listener=CLIENTS"
    assert stage.metrics.values()[shown] == 0
    stage.path.write_text("noise")
    stage.watch.look()
    stage.watch.look()
    assert stage.metrics.values()[shown] == 1
