"""An identity provider for tests: it signs tokens, and shows its public keys at a URL or in a file."""

from __future__ import annotations

import json
import ssl
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from minimq_common.security.issuer import Issuer

AUDIENCE = "minimq"
ISSUER = "https://login.example.org"
#: As Kubernetes names service accounts.
ACCOUNTS = "system:serviceaccount:"

_MAKERS: dict[str, Any] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}
_WRITERS: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


class TokenIssuer:
    """An issuer, which signs with the key that it made last.

    Attributes:
        keys: the algorithm and the private key, by key id.
        signatures: of all tokens that it has signed, which are to be found nowhere.
    """

    def __init__(self, algorithm: str = "ES256") -> None:
        self.signatures: list[str] = []
        self.keys: dict[str, tuple[str, Any]] = {}
        self.new_key(algorithm)

    def new_key(self, algorithm: str = "ES256", *, drops_old: bool = False) -> str:
        """Make a key, which signs from now on; return its id."""
        if drops_old:
            self.keys.clear()
        self.newest = f"key-{algorithm}-{time.monotonic_ns()}"
        self.keys[self.newest] = algorithm, _MAKERS[algorithm]()
        return self.newest

    def claims(self, user: str, lifetime_s: float = 600.0) -> dict[str, Any]:
        now = time.time()
        times = {"iat": int(now), "exp": now + lifetime_s}
        return {"iss": ISSUER, "aud": [AUDIENCE], "sub": f"{ACCOUNTS}{user}", **times}

    def sign(
        self,
        user: str = "shop:checkout",
        lifetime_s: float = 600.0,
        *,
        key_id: str | None = None,
        headers: dict[str, Any] | None = None,
        **others: Any,
    ) -> str:
        """Return a token. A claim or a header that is None is left out."""
        algorithm, key = self.keys[key_id or self.newest]
        claims = {
            name: value for name, value in {**self.claims(user, lifetime_s), **others}.items() if value is not None
        }
        heads = {"kid": key_id or self.newest, **(headers or {})}
        heads = {name: value for name, value in heads.items() if value is not None}
        token = jwt.encode(claims, key, algorithm, headers=heads)
        self.signatures.append(token.rpartition(".")[2])
        return token

    def public_pem(self) -> bytes:
        """Return the newest public key, as an attacker has it."""
        pem: bytes = (
            self.keys[self.newest][1].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        return pem

    def key_set(self) -> bytes:
        """Return the public keys."""
        keys = [
            {**_WRITERS[algorithm].to_jwk(key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}
            for key_id, (algorithm, key) in self.keys.items()
        ]
        return json.dumps({"keys": keys}).encode()


def encoded_part(data: bytes) -> str:
    """Return bytes as a part of a token."""
    return urlsafe_b64encode(data).decode().rstrip("=")


def issuer_at(jwks: str, **others: Any) -> Issuer:
    """Return an issuer as servers know it."""
    return Issuer(ISSUER, AUDIENCE, jwks, user_prefix=ACCOUNTS, **others)


class KeyServer:
    """A server of HTTP for the keys of an issuer.

    Attributes:
        url: of the keys.
        answer: status, headers and body.
        asked: how often it was asked.
    """

    def __init__(self, url: str, body: bytes) -> None:
        self.url = url
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, body)
        self.asked = 0

    def show(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.answer = status, headers, body


@contextmanager
def key_server(body: bytes, context: ssl.SSLContext | None = None) -> Iterator[KeyServer]:
    """Yield a server of HTTP on this machine, or of HTTPS."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.asked += 1
            status, headers, body = shown.answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the class has it
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        shown = KeyServer(f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}/keys", body)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield shown
        finally:
            server.shutdown()
            thread.join()


def replace_token(path: Path, token: str) -> None:
    """Put a token into a file at once, as Kubernetes does."""
    new = path.with_suffix(".new")
    new.write_text(token)
    new.rename(path)
