"""TokenIssuer: signs the tokens of a cluster's clients, as an identity provider does; for tests.

The listeners of the cluster check them by its public key, in the file `keys.json` of the cluster's folder
`security`. The private key is in this process only. Needs joserfc.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kreplica.runtime.http_fetch import parse_url
from kreplica.runtime.oauth import JWKS_URL, OAuthBearerSettings
from kreplica.security.jwks_cache import JwksTimes
from kreplica.security.jwt import TokenRules

ISSUER, AUDIENCE = "https://kreplica.invalid", "kafka"
ALGORITHM = "ES256"
# Clients in Java read a token from a file, which is not renewed.
FILE_LIFETIME_S = 24 * 3600


class TokenIssuer:
    """The issuer of one cluster. `folder`: for the public key and for tokens in files. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        from joserfc.jwk import ECKey, KeySet

        self._folder = folder
        self._key: Any = ECKey.generate_key("P-256", {"kid": "kreplica", "use": "sig", "alg": ALGORITHM})
        folder.mkdir(parents=True, exist_ok=True)
        self._keys = folder / "keys.json"
        self._keys.write_text(json.dumps(KeySet([self._key]).as_dict(private=False)))

    @property
    def settings(self) -> OAuthBearerSettings:
        """Which tokens the cluster's listeners take."""
        return OAuthBearerSettings(
            rules=TokenRules(issuer=ISSUER, audiences=(AUDIENCE,)),
            url=parse_url(JWKS_URL, self._keys.absolute().as_uri()),
            times=JwksTimes(),
        )

    def token(self, user: str, lifetime_s: float) -> tuple[str, float]:
        """Return a token of the user, and when it expires, in seconds since 1970."""
        from joserfc import jwt

        now_s = int(time.time())
        expires_s = now_s + lifetime_s
        # One that has expired was valid before.
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": user,
            "iat": min(now_s, expires_s - 1),
            "exp": expires_s,
        }
        return jwt.encode({"alg": ALGORITHM, "kid": "kreplica"}, claims, self._key), expires_s

    def file_url(self, user: str) -> str:
        """Write a token of the user to a file that only the user of this process can read; return its URL."""
        path = self._folder / f"{quote(user, safe='')}.jwt"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(self.token(user, FILE_LIFETIME_S)[0])
        return path.absolute().as_uri()
