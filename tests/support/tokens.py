"""An issuer of tokens for OAUTHBEARER, and a server of its keys and tokens that can misbehave."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from joserfc.jws import JWSRegistry

ISSUER, AUDIENCE = "https://id.example.org", "kafka"
LIFETIME_S = 300
CLIENT_ID, CLIENT_SECRET = "alice", "client-secret"


class Issuer:
    """Signs tokens by its newest key; earlier keys stay in its set until `forget`."""

    def __init__(self, kind: str = "EC") -> None:
        self._kind = kind
        self._made = 0
        self.keys: list[Any] = []
        self.rotate()

    def rotate(self) -> str:
        """Make a new key, and return its id."""
        self._made += 1
        kid = f"key-{self._made}"
        options = {"kid": kid, "use": "sig"}
        if self._kind == "RSA":
            self.keys.append(RSAKey.generate_key(2048, options))
        else:
            self.keys.append(ECKey.generate_key("P-256", options))
        return kid

    def forget(self) -> None:
        """Leave only the newest key in the set."""
        del self.keys[:-1]

    @property
    def algorithm(self) -> str:
        return "RS256" if self._kind == "RSA" else "ES256"

    def jwks(self) -> bytes:
        """The set of the public keys."""
        return json.dumps(KeySet(list(self.keys)).as_dict(private=False)).encode()

    def claims(self, user: str = "alice", **changes: Any) -> dict[str, Any]:
        """The claims of a token; one that is changed to None is left out."""
        now = int(time.time())
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now, "exp": now + LIFETIME_S}
        return {name: value for name, value in {**usual, **changes}.items() if value is not None}

    def token(self, user: str = "alice", header: dict[str, Any] | None = None, **changes: Any) -> str:
        """A signed token."""
        key = self.keys[-1]
        usual = {"alg": self.algorithm, "kid": key.kid}
        return signed({**usual, **(header or {})}, self.claims(user, **changes), key)


def signed(header: dict[str, Any], claims: dict[str, Any], key: Any) -> str:
    """A token with this header, without the usual checks."""
    known = {name: value for name, value in header.items() if value is not None}
    registry = JWSRegistry(algorithms=[known["alg"]], strict_check_header=False)
    return jwt.encode(known, claims, key, registry=registry)


def with_shared_secret(issuer: Issuer) -> str:
    """A token whose secret is a public key of the issuer: a classic forgery."""
    key = issuer.keys[-1]
    parts = ({"alg": "HS256", "kid": key.kid}, issuer.claims())
    text = ".".join(base64url(json.dumps(each).encode()) for each in parts)
    return f"{text}.{base64url(hmac.digest(key.as_pem(private=False), text.encode(), 'sha256'))}"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Provider:
    """A server of an issuer's keys, at /keys, and of tokens by client credentials, at /token.

    `behaviour`: "", or one of fail, redirect, huge, many, garbage, empty, and slow, which waits for `go_on`.
    """

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.behaviour = ""
        self.requests: list[str] = []
        self.go_on = threading.Event()
        self.lifetime_s = LIFETIME_S
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests.append(self.path)
                provider.answer_keys(self)

            def do_POST(self) -> None:
                provider.requests.append(self.path)
                provider.answer_token(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Of the keys."""
        return f"{self.base}/keys"

    @property
    def token_url(self) -> str:
        return f"{self.base}/token"

    def answer_keys(self, request: BaseHTTPRequestHandler) -> None:
        kind, path = self.behaviour, urlsplit(request.path).path
        if path == "/elsewhere":
            send(request, self.issuer.jwks())
        elif kind == "fail":
            send(request, b"", 503)
        elif kind == "redirect":
            send(request, b"", 302, Location=f"{self.base}/elsewhere")
        elif kind == "huge":
            send(request, b'{"keys": [' + b" " * (1 << 20) + b"]}")
        elif kind == "many":
            keys = json.loads(self.issuer.jwks())["keys"]
            send(request, json.dumps({"keys": keys * 101}).encode())
        elif kind in ("garbage", "empty"):
            send(request, b"[" * 100_000 if kind == "garbage" else b'{"keys": []}')
        else:
            if kind == "slow":
                self.go_on.wait(30)
            send(request, self.issuer.jwks())

    def answer_token(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        form = parse_qs(body.decode())
        expected = f"Basic {_basic(CLIENT_ID, CLIENT_SECRET)}"
        if form.get("grant_type") != ["client_credentials"] or request.headers["Authorization"] != expected:
            send(request, b'{"error": "invalid_client"}', 401)
            return
        token = self.issuer.token(CLIENT_ID, exp=int(time.time()) + self.lifetime_s)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}
        send(request, json.dumps(answer).encode())


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def send(request: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    """Answer a request. A client that has gone is no error."""
    try:
        request.send_response(status)
        usual = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
        for name, value in {**usual, **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)
    except OSError:
        return
