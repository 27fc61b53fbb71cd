"""The properties of a client's file, as the stock client gets them."""

from __future__ import annotations

import pytest

from kreplica.cli import client_config


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_the_stock_client_gets_the_cipher_suites_that_encryption_limits(protocol: str) -> None:
    given = {
        "security.protocol": protocol,
        "ssl.enabled.protocols": "TLSv1.2",
        "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    }
    found = client_config.parse(given).properties
    limited = {"ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"} if protocol == "SSL" else {}
    assert found == {"security.protocol": protocol, **limited}
