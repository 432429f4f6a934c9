"""The certificate authority of a cluster: a folder, from which servers and users get what they need for TLS."""

from __future__ import annotations

import importlib
import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address
from minimq_common.security.certificates import CertificateReport, Pair, Trust
from minimq_common.security.credentials_file import written
from minimq_common.security.server_secrets import CERTIFICATE, KEY, ROOTS
from minimq_common.security.watched import read_bounded

if TYPE_CHECKING:
    from minimq.local.certificate_signer import Signer

#: A server is always called by these as well.
_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z)(\*\.)?({_LABEL}\.)*{_LABEL}")
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class CertificateAuthority:
    """The folder that `minimq secure init` makes. The key in its `authority/` signs for all: keep it from servers.

    Attributes:
        directory: the folder.
        server: what servers are started with, `--secrets DIR/server`.
        admin: the credentials of the first user.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = directory / "server"
        self.admin = directory / "admin.minimq"
        self._authority = directory / "authority"

    @property
    def exists(self) -> bool:
        """True if `init` has made it, and has come to its end."""
        return self.admin.exists()

    def init(self, hosts: Sequence[str], nameservers: Sequence[str]) -> None:
        """Make the authority, the certificate of the servers, and the credentials of the user `admin`.

        Args:
            hosts: names and addresses by which servers are called; those of this machine are added.
            nameservers: HOST:PORT of each, for the credentials.

        Raises:
            InvalidArgument: the authority exists, a host or an address is wrong, or the library for it is lacking.
        """
        if self.exists:
            raise InvalidArgument(
                f"{self.directory} has an authority already: `minimq secure renew {self.directory}` makes a new "
                "certificate for its servers"
            )
        names = _names(hosts)
        signer = _library().Signer.new()
        try:
            for folder in (self.directory, self._authority, self.server):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _put(self._authority / "ca.key", signer.pair.key, secret=True)
            _put(self._authority / ROOTS, signer.pair.certificate)
            self._sign_server(signer, names)
        except OSError as error:
            raise InvalidArgument(f"cannot write to {self.directory}: {error.strerror}") from None
        self.issue("admin", nameservers)

    def renew(self, hosts: Sequence[str] = ()) -> CertificateReport:
        """Make a new certificate for the servers, for the names of the former one and some more; return it.

        Raises:
            InvalidArgument: a host is wrong, or there is no authority.
        """
        signer = self._signer()
        former = self.server_certificate().names
        self._sign_server(signer, tuple(dict.fromkeys((*former, *_names(hosts)))))
        return self.server_certificate()

    def issue(self, user: str, nameservers: Sequence[str]) -> Path:
        """Write the credentials of a user, with a new certificate, to USER.minimq; return the path.

        Args:
            user: the name.
            nameservers: HOST:PORT of each; may be empty.

        Raises:
            InvalidArgument: a name or an address is wrong, or there is no authority.
        """
        if not _USER.fullmatch(user):
            raise InvalidArgument(
                f"the user {user!r} is no name: write letters, digits, '.', '_' and '-', at most 63 of them"
            )
        addresses = [check_address(address) for address in nameservers]
        signer, path = self._signer(), self.directory / f"{user}.minimq"
        about = f"Credentials of {user} for a minimq cluster."
        text = written(addresses, Trust(signer.pair.certificate, signer.sign_user(user)), about)
        _put(path, text.encode(), secret=True)
        return path

    def server_certificate(self) -> CertificateReport:
        """Return the certificate of the servers. Raises `InvalidArgument`."""
        return _describe(self.server / CERTIFICATE)

    def own_certificate(self) -> CertificateReport:
        """Return the certificate of the authority. Raises `InvalidArgument`."""
        return _describe(self._authority / ROOTS)

    def _signer(self) -> Signer:
        key, certificate = (read_bounded(self._authority / name) for name in ("ca.key", ROOTS))
        signer: Signer = _library().Signer.load(Pair(certificate, key))
        return signer

    def _sign_server(self, signer: Signer, names: Sequence[str]) -> None:
        pair = signer.sign_server(names)
        # A server that looks in between finds a key of another certificate, and goes on with what it has.
        _put(self.server / ROOTS, signer.pair.certificate)
        _put(self.server / KEY, pair.key, secret=True)
        _put(self.server / CERTIFICATE, pair.certificate)


def _describe(path: Path) -> CertificateReport:
    found: CertificateReport = _library().describe(read_bounded(path))
    return found


def _library() -> ModuleType:
    """Return the module that makes certificates. Raises `InvalidArgument` when the library for it is lacking."""
    try:
        return importlib.import_module("minimq.local.certificate_signer")
    except ImportError:
        text = "certificates are made by a library that is not installed: pip install 'minimq[secure]'"
        raise InvalidArgument(text) from None


def _names(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the names for a certificate of servers. Raises `InvalidArgument`."""
    for host in hosts:
        if not _is_address(host) and not _HOST.fullmatch(host):
            raise InvalidArgument(f"the host {host!r} is neither a name nor an address; write it without a port")
    return tuple(dict.fromkeys((*_OF_THIS_MACHINE, *hosts)))


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _put(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Put a file in its place, whole or not at all; a secret one is read by its owner alone."""
    made, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(made, "wb") as opened:
            os.fchmod(opened.fileno(), 0o600 if secret else 0o644)
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
