"""The folder of a server's secrets, for its own connections and those to other servers."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import grpc

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_named
from minimq_common.security.access_document import MAX_DOCUMENT_BYTES, AccessDocument, from_toml
from minimq_common.security.certificates import (
    CertificateReport,
    Pair,
    Trust,
    check_pair,
    check_roots,
    meet_itself,
    server_context,
)
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.security.user_key import UserKey, parse_key
from minimq_common.security.watched import Watched

#: File names as used by cert-manager in a Secret of Kubernetes.
CERTIFICATE, KEY, ROOTS = "tls.crt", "tls.key", "ca.crt"

#: The keys by which servers authenticate each other, one per line: the first one is sent, all are accepted.
CLUSTER_KEY = "cluster.key"
#: The users and rules.
ACCESS = "access.toml"

#: Seconds before its expiry at which a certificate is reported, in the log once a day.
EXPIRES_SOON_S = 30 * 86_400.0
_AGAIN_S = 86_400.0
#: Keys in the file; two are needed during a rotation.
_MAX_KEYS = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A valid certificate with its key, and the objects made of them for gRPC and `ssl`."""

    trust: Trust
    report: CertificateReport
    server: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext


class ServerSecrets:
    """The certificate of a server with its key, and the CAs that it trusts. Thread-safe."""

    def __init__(self, directory: Path, *, requires_certificates: bool) -> None:
        self._directory = directory
        self._requires_certificates = requires_certificates
        self._files = Watched([directory / name for name in (CERTIFICATE, KEY, ROOTS)], self._make)
        #: Watched separately, so that a removed key is rejected even while the certificate cannot be used.
        self._keys: Watched[tuple[UserKey, ...]] | None = None
        self._users: Watched[AccessDocument] | None = None
        key_file, access_file = directory / CLUSTER_KEY, directory / ACCESS
        #: False if anybody may do everything.
        self.requires_keys = key_file.exists()
        if self.requires_keys is not access_file.exists():
            there, lacking = (CLUSTER_KEY, ACCESS) if self.requires_keys else (ACCESS, CLUSTER_KEY)
            raise InvalidArgument(
                f"{directory} has {there} and no {lacking}: copy it from another server; `minimq secure init` makes "
                "both"
            )
        if self.requires_keys:
            self._keys = Watched([key_file], lambda found: _server_keys(found[0], key_file))
            self._users = Watched(
                [access_file],
                lambda found: check_named(str(access_file), from_toml, found[0]),
                max_bytes=MAX_DOCUMENT_BYTES,
                logs_changes=False,  # `AccessControl` logs what has changed
            )
        self._trust = self._files.get().trust
        self._warned_of, self._warned_at = 0.0, 0.0
        self._warn(self._files.get().report)

    def trust(self, *, at_once: bool = False) -> Trust:
        """Return the TLS settings and the key for calls to other servers."""
        trust = self._files.get(at_once=at_once).trust
        if self._keys is not None:
            trust = replace(trust, bearer=self._keys.get(at_once=at_once)[0])
        if trust != self._trust:
            self._trust = trust
        return self._trust

    def keys(self) -> tuple[UserKey, ...]:
        """Return the keys by which servers authenticate each other; empty if this server requires no keys."""
        return () if self._keys is None else self._keys.get()

    def users(self) -> AccessDocument:
        """Return the users and rules; the same object until the file changes. Only if this server requires keys."""
        assert self._users is not None
        return self._users.get()

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for a gRPC server, which follow changes of the files."""
        used = self._files.get().server

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            found = self._files.get()
            self._warn(found.report)
            if found.server is used:
                return None
            used = found.server
            return used

        return grpc.dynamic_ssl_server_credentials(
            used,
            cast("Callable[[], grpc.ServerCertificateConfiguration]", changed),  # None means "unchanged"
            self._requires_certificates,
        )

    def context(self) -> ssl.SSLContext:
        """Return the current context for a server that uses `ssl`."""
        return self._files.get().context

    @property
    def certificate(self) -> CertificateReport:
        return self._files.get().report

    @property
    def rejected(self) -> bool:
        """True while the files have changed but cannot be used, so the former ones stay in use."""
        found = [each for each in (self._files, self._keys, self._users) if each is not None]
        for each in found:
            each.get()
        return any(each.rejected for each in found)

    def _warn(self, report: CertificateReport) -> None:
        now = time.time()
        left = report.ends_at - now
        is_told = self._warned_of == report.ends_at and abs(now - self._warned_at) < _AGAIN_S
        if left >= EXPIRES_SOON_S or is_told:
            return
        self._warned_of, self._warned_at = report.ends_at, now
        ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(report.ends_at))
        text = "security: the certificate %s, make a new one by `minimq secure renew` directory=%s ends_at=%s"
        log.warning(text, "ends soon" if left > 0 else "has ended", self._directory, ends)

    def _make(self, found: Sequence[bytes]) -> _Loaded:
        certificate, key, roots = found
        trust = Trust(roots, Pair(certificate, key))
        try:
            report = meet_itself(trust, mutual=self._requires_certificates)
            context = server_context(trust, requires_certificates=self._requires_certificates)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the certificate in {self._directory} cannot be used: {error.message}; {CERTIFICATE} has to be in "
                f"force, of the key {KEY}, and signed by {ROOTS}: `minimq secure renew` makes new ones"
            ) from None
        pairs = [(key, certificate)]
        return _Loaded(trust, report, grpc.ssl_server_certificate_configuration(pairs, roots), context)


def _server_keys(data: bytes, path: Path) -> tuple[UserKey, ...]:
    try:
        keys = tuple(parse_key(line.strip()) for line in data.decode("ascii").splitlines() if line.strip())
    except (InvalidArgument, UnicodeDecodeError):
        keys = ()
    if not 0 < len(keys) <= _MAX_KEYS:
        raise InvalidArgument(
            f"{path} cannot be used: it holds the keys of servers, one in a line, 1 to {_MAX_KEYS} of them, as "
            "`minimq secure init` makes them"
        )
    return keys


def check_secrets(directory: Path | None, client_certificates: str) -> None:
    """Raise `InvalidArgument` if these options of a server contradict each other."""
    if directory is None and client_certificates == "required":
        raise InvalidArgument("--client-certificates is required, but there is no TLS: give --secrets DIR as well")


def secrets_of(directory: Path | None, client_certificates: str) -> ServerSecrets | None:
    """Load the secrets that the options of a server name; None without TLS. Raises `InvalidArgument`."""
    if directory is None:
        return None
    return ServerSecrets(directory, requires_certificates=client_certificates == "required")


def security_of(secrets: ServerSecrets | None) -> ChannelSecurity:
    return PLAIN if secrets is None else secrets


class _TrustedFiles(Watched[Trust]):
    def trust(self, *, at_once: bool = False) -> Trust:
        return self.get(at_once=at_once)


def security_of_folder(folder: Path | None) -> ChannelSecurity:
    """Return the security from CAs in `folder`, and a certificate if it has one; plain without a folder."""
    if folder is None:
        return PLAIN

    def make(found: Sequence[bytes]) -> Trust:
        check_roots(found[0], str(folder / ROOTS))
        pair = Pair(*found[1:]) if found[1:] else None
        if pair is not None:
            check_pair(pair, f"{folder / CERTIFICATE} and {KEY}")
        return Trust(found[0], pair)

    names = [ROOTS, CERTIFICATE, KEY] if (folder / CERTIFICATE).exists() else [ROOTS]
    return _TrustedFiles([folder / name for name in names], make)
