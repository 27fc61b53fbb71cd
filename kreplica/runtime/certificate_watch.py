"""CertificateWatch: shows when the certificates of a node's listeners end, and warns before that.

The metric NotAfterTimestampSeconds of a store is the first end among its certificates, in seconds since 1970;
RefusedReloads counts the changed stores of a listener that were not used, because they failed a check.
A certificate that ends within 30 days, has ended, or has not begun, is logged at the start and then once a
day. Dates are read by the package `cryptography`; without it they are unknown. Thread rule: `look` belongs to
the loop of the listeners; any thread may read the metrics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec

from kreplica.common.metrics import MetricRegistry
from kreplica.runtime.certificate import Certificate
from kreplica.runtime.tls import KEY, TRUST, StoreTls

LOGGER = logging.getLogger(__name__)

METRICS = "Certificates"
WARNING_BEFORE = timedelta(days=30)
LOOK_EVERY_S = 24 * 60 * 60.0


class CertificateWatch:
    """`stores`: the stores in use, each with the name of its listener. `now_s()`: seconds since 1970."""

    def __init__(
        self, stores: Sequence[tuple[str, StoreTls]], metrics: MetricRegistry, now_s: Callable[[], float]
    ) -> None:
        self._stores = stores
        self._now_s = now_s
        of_listeners: dict[str, list[StoreTls]] = {}
        for listener, tls in stores:
            of_listeners.setdefault(listener, []).append(tls)
            for kind in tls.certificates:
                metrics.gauge(
                    METRICS,
                    "NotAfterTimestampSeconds",
                    partial(_first_end, tls, kind),
                    {"listener": listener, "store": kind},
                )

        for listener, each in of_listeners.items():
            metrics.gauge(METRICS, "RefusedReloads", partial(_refused, each), {"listener": listener})

    def look(self) -> None:
        """Log the certificates that end soon, have ended, or have not begun."""
        if self._stores and find_spec("cryptography") is None:
            LOGGER.info("nothing is known about the ends of certificates: pip install 'kreplica[security]'")
            return
        now = datetime.fromtimestamp(self._now_s(), UTC)
        # Listeners may share a store.
        lines: dict[str, None] = {}
        for listener, tls in self._stores:
            tls.context()  # a file that has changed is read now
            for kind in (KEY, TRUST):
                for each in tls.certificates.get(kind, ()):
                    line = _warning(Certificate.of(each), now)
                    if line:
                        lines[f"{line}; listener {listener}, ssl.{kind}store"] = None
        for line in lines:
            LOGGER.warning("%s", line)


def _warning(certificate: Certificate | None, now: datetime) -> str:
    if certificate is None:
        return ""
    if certificate.not_before > now:
        begin = certificate.not_before.isoformat(timespec="seconds")
        return f"the certificate of {certificate.subject} begins only on {begin}: clients refuse it"
    if certificate.not_after - now > WARNING_BEFORE:
        return ""
    end = certificate.not_after.isoformat(timespec="seconds")
    if certificate.not_after <= now:
        return f"the certificate of {certificate.subject} has ended on {end}: clients refuse it"
    days = (certificate.not_after - now).days
    return f"the certificate of {certificate.subject} ends in {days} days, on {end}"


def _refused(stores: Sequence[StoreTls]) -> int:
    return sum(each.refused for each in stores)


def _first_end(tls: StoreTls, kind: str) -> float:
    ends = [
        found.not_after.timestamp()
        for each in tls.certificates.get(kind, ())
        if (found := Certificate.of(each)) is not None
    ]
    return min(ends, default=math.nan)
