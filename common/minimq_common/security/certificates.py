"""Checks certificates and keys in PEM with Python's `ssl`."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from minimq_common.errors import InvalidArgument
from minimq_common.security.user_key import UserKey

#: Rounds of a handshake in memory, more than any handshake needs: TLS 1.3 has three flights.
_FLIGHTS = 10
#: The ciphers of TLS 1.2 that gRPC accepts, too. The ciphers of TLS 1.3 are always allowed.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Trust:
    """The CAs that one side of a connection trusts, and its own certificate and key."""

    #: CA certificates in PEM.
    roots: bytes
    #: Sent to the other side in the handshake.
    pair: Pair | None = None
    #: The key that is sent with each call.
    bearer: UserKey | None = None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the TLS credentials for a gRPC channel, without the bearer."""
        pair = self.pair
        return grpc.ssl_channel_credentials(
            self.roots, None if pair is None else pair.key, None if pair is None else pair.certificate
        )


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """The content of a certificate that is shown to users."""

    names: tuple[str, ...]
    #: Expiry in seconds since 1970.
    ends_at: float


def check_roots(roots: bytes, where: str) -> None:
    """Raise `InvalidArgument` unless a text contains certificates in PEM; the error names `where`."""
    _trusting(_context(ssl.PROTOCOL_TLS_CLIENT), roots, where)


def check_pair(pair: Pair, where: str) -> None:
    """Raise `InvalidArgument` unless a key belongs to its certificate; the error names `where`."""
    _showing(_context(ssl.PROTOCOL_TLS_CLIENT), pair, where)


def server_context(trust: Trust, *, requires_certificates: bool) -> ssl.SSLContext:
    """Return the context for a server that uses `ssl`. Raises `InvalidArgument`."""
    assert trust.pair is not None  # a server always has a certificate
    context = _showing(_context(ssl.PROTOCOL_TLS_SERVER), trust.pair, "the certificate of this server")
    if requires_certificates:
        _trusting(context, trust.roots, "the certificates that are trusted")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def meet_itself(trust: Trust, *, mutual: bool) -> CertificateReport:
    """Verify a server's certificate by a TLS handshake with itself, in memory, and return its content.

    Ensures that it is valid now, and signed by a CA in `roots`; with `mutual`, also as a client certificate. Raises
    `InvalidArgument`.
    """
    near, far = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = _trusting(_context(ssl.PROTOCOL_TLS_CLIENT), trust.roots, "ca.crt")
    calling.check_hostname = False  # the right name depends on the caller
    assert trust.pair is not None
    if mutual:
        _showing(calling, trust.pair, "tls.crt and tls.key")
    called = server_context(trust, requires_certificates=mutual)
    client = calling.wrap_bio(near, far)
    server = called.wrap_bio(far, near, server_side=True)
    try:
        for _ in range(_FLIGHTS):
            _step(client)
            _step(server)
    except ssl.SSLCertVerificationError as error:
        raise InvalidArgument(error.verify_message) from None
    except ssl.SSLError as error:
        raise InvalidArgument(error.reason or str(error)) from None
    shown: dict[str, Any] = client.getpeercert() or {}
    return CertificateReport(
        tuple(str(name) for _, name in shown.get("subjectAltName", ())), ssl.cert_time_to_seconds(shown["notAfter"])
    )


def _step(side: ssl.SSLObject) -> None:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return
    try:  # in TLS 1.3, reading processes the last flight of the handshake
        side.read(1)
    except ssl.SSLWantReadError:
        return


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # like gRPC: accepts an intermediate CA as a root
    return context


def _trusting(context: ssl.SSLContext, roots: bytes, where: str) -> ssl.SSLContext:
    try:
        context.load_verify_locations(cadata=roots.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError):
        raise InvalidArgument(f"{where} holds no certificate in PEM, or a damaged one") from None
    return context


def _showing(context: ssl.SSLContext, pair: Pair, where: str) -> ssl.SSLContext:
    with _as_file(pair.certificate + b"\n" + pair.key) as path:
        try:
            # Without `password`, OpenSSL would prompt for that of an encrypted key at the terminal.
            context.load_cert_chain(path, password=lambda: "")
        except ssl.SSLError as error:
            reason = {
                "KEY_VALUES_MISMATCH": "the key is that of another certificate",
                "NO_START_LINE": "there is no certificate and no private key in PEM",
            }.get(error.reason or "", "the certificate or the private key is damaged, or needs a password")
            raise InvalidArgument(f"{where}: {reason}") from None
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("minimq-pem"), "wb") as made:  # noqa: PTH123 - it has no path
            made.write(data)
            made.flush()
            yield f"/proc/self/fd/{made.fileno()}"
    else:
        import tempfile  # only needed on systems other than Linux

        with tempfile.NamedTemporaryFile() as made:
            made.write(data)
            made.flush()
            yield made.name
