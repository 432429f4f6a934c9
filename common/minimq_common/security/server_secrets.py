"""The folder of a server's secrets, by which it listens and by which it calls other servers."""

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
from minimq_common.security.certificates import CertificateReport, Pair, Trust, meet_itself, server_context
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.security.user_key import UserKey, parse_key
from minimq_common.security.watched import Watched

#: The files, as cert-manager names them in a Secret of Kubernetes.
CERTIFICATE, KEY, ROOTS = "tls.crt", "tls.key", "ca.crt"

#: The keys by which servers know each other, one in a line: the first one is shown, all are accepted.
CLUSTER_KEY = "cluster.key"
#: The first users and rules.
ACCESS = "access.toml"

#: Seconds before its end from which on people are told of it, in the log once a day.
EXPIRES_SOON_S = 30 * 86_400.0
_AGAIN_S = 86_400.0
#: Most keys of servers: two during a rotation.
_MOST_KEYS = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The certificate and its key, and what is made of them, when they fit."""

    trust: Trust
    report: CertificateReport
    server: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext


class ServerSecrets:
    """The certificate of a server, its key, and whom it trusts. Thread-safe.

    Files that are replaced count for each new connection; those that are open go on.
    """

    def __init__(self, directory: Path, *, requires_certificates: bool) -> None:
        self._directory = directory
        self._requires_certificates = requires_certificates
        self._files = Watched([directory / name for name in (CERTIFICATE, KEY, ROOTS)], self._make)
        #: Apart from the others: a key that is taken away is not let in while a certificate cannot be used.
        self._keys: Watched[tuple[UserKey, ...]] | None = None
        key_file = directory / CLUSTER_KEY
        if key_file.exists():
            self._keys = Watched([key_file], lambda found: _server_keys(found[0], key_file))
        self._trust = self._files.get().trust
        self._warned_of, self._warned_at = 0.0, 0.0
        self._warn(self._files.get().report)

    def trust(self, *, at_once: bool = False) -> Trust:
        """Return whom this server trusts and what it shows when it calls another one."""
        trust = self._files.get(at_once=at_once).trust
        if self._keys is not None:
            trust = replace(trust, bearer=self._keys.get(at_once=at_once)[0])
        if trust != self._trust:
            self._trust = trust
        return self._trust

    def keys(self) -> tuple[UserKey, ...]:
        """Return the keys by which servers know each other; none for a server that asks nobody for a key."""
        return () if self._keys is None else self._keys.get()

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a server of gRPC listens with."""
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
            cast("Callable[[], grpc.ServerCertificateConfiguration]", changed),  # None stands for "as before"
            self._requires_certificates,
        )

    def context(self) -> ssl.SSLContext:
        """Return what a connection to a server of Python begins with."""
        return self._files.get().context

    @property
    def certificate(self) -> CertificateReport:
        """The certificate of this server."""
        return self._files.get().report

    @property
    def rejected(self) -> bool:
        """True while the files have changed and cannot be used, so that the former ones stand."""
        self._files.get()
        self.keys()
        return self._files.rejected or (self._keys is not None and self._keys.rejected)

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
    if not 0 < len(keys) <= _MOST_KEYS:
        raise InvalidArgument(
            f"{path} cannot be used: it holds the keys of servers, one in a line, 1 to {_MOST_KEYS} of them, as "
            "`minimq secure init` makes them"
        )
    return keys


def check_secrets(directory: Path | None, client_certificates: str, access_max_age_s: float) -> None:
    """Raise `InvalidArgument` unless these options of a server fit each other."""
    if directory is None and client_certificates == "required":
        raise InvalidArgument("--client-certificates is required, but there is no TLS: give --secrets DIR as well")
    if directory is None and access_max_age_s:
        raise InvalidArgument(
            f"--access-max-age is {access_max_age_s:g}, but there are no users and rules: give --secrets DIR as well"
        )


def secrets_of(directory: Path | None, client_certificates: str) -> ServerSecrets | None:
    """Return the secrets that the options of a server name; None when it has none. Raises `InvalidArgument`."""
    if directory is None:
        return None
    return ServerSecrets(directory, requires_certificates=client_certificates == "required")


def security_of(secrets: ServerSecrets | None) -> ChannelSecurity:
    """Return by what a server calls others."""
    return PLAIN if secrets is None else secrets
