"""The certificate authority of a cluster: a folder with the certificates and keys of servers and users."""

from __future__ import annotations

import importlib
import ipaddress
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from minimq.local.secret_files import lock_folder, make_folder, put_files
from minimq_common.errors import InvalidArgument
from minimq_common.files.text_file import read_text_file
from minimq_common.names import check_address
from minimq_common.security.access_document import ADMIN, AccessDocument, StoredKey, User, to_toml
from minimq_common.security.certificates import CertificateReport, Pair, Trust
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile, about_user, written
from minimq_common.security.server_secrets import ACCESS, CERTIFICATE, CLUSTER_KEY, KEY, ROOTS
from minimq_common.security.user_key import ID_BYTES, SECRET_BYTES, UserKey, new_key

if TYPE_CHECKING:
    from minimq.local.certificate_signer import Signer

_OWN_KEY = "ca.key"

#: Every server certificate has these names.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z)(\*\.)?({_LABEL}\.)*{_LABEL}")
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def issue_key(lifetime_s: float | None = None) -> tuple[UserKey, StoredKey]:
    """Return a new key, and the record of it that servers store."""
    key, now_ms = new_key(secrets.token_bytes(ID_BYTES + SECRET_BYTES)), round(time.time() * 1000)
    return key, StoredKey(key.hash, 0 if lifetime_s is None else now_ms + round(lifetime_s * 1000), now_ms)


class CertificateAuthority:
    """The folder that `minimq secure init` makes. Never copy its `authority/` to a server: the key there signs all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = directory / "server"
        self.admin = directory / "admin.minimq"
        self._authority = directory / "authority"

    @property
    def exists(self) -> bool:
        """True if `init` has completed, even if the folder `authority/` was moved elsewhere since."""
        # `init` writes the authority's key first and its certificate last.
        began = (self._authority / _OWN_KEY).exists()
        return (self._authority / ROOTS).exists() or (not began and (self.server / CERTIFICATE).exists())

    def init(self, hosts: Sequence[str], nameservers: Sequence[str], *, if_not_exists: bool = False) -> bool:
        """Make the authority, the servers' certificate and key, and the credentials of `admin`."""
        names, addresses = _names(hosts), _checked(nameservers)
        signer = _library().Signer.new()
        with self._alone(make=True):
            if self.exists and if_not_exists:
                return False
            if self.exists:
                raise InvalidArgument(
                    f"{self.directory} already has an authority: `minimq secure renew {self.directory}` makes a new "
                    "certificate for its servers"
                )
            for folder in (self._authority, self.server):
                make_folder(folder)
            certificate, (key, stored) = signer.pair.certificate, issue_key()
            user = written(addresses, Trust(certificate, signer.sign_user(ADMIN), key), about_user(ADMIN))
            access = AccessDocument({ADMIN: User({key.id: stored}, (ADMIN,))})
            put_files(
                {
                    self._authority / _OWN_KEY: signer.pair.key,
                    self.server / CLUSTER_KEY: f"{issue_key()[0].text}\n".encode(),
                    self.server / ACCESS: to_toml(access).encode(),
                    **self._server_files(signer.sign_server(names), certificate),
                    self.admin: user.encode(),
                    self._authority / ROOTS: certificate,
                },
                keeps_owners=False,
            )
        return True

    def renew(self, hosts: Sequence[str] = ()) -> CertificateReport:
        """Make a new certificate for the servers, with the names of the former one and `hosts`; return its report."""
        added = _names(hosts)
        with self._alone():
            names = tuple(dict.fromkeys((*self.server_certificate().names, *added)))
            put_files(self._server_files(self._signer().sign_server(names), self._trusted()))
            return self.server_certificate()

    def issue(self, user: str, nameservers: Sequence[str]) -> Path:
        """Write the credentials of a user, with a new certificate, to USER.minimq; return the path."""
        if not _USER.fullmatch(user):
            raise InvalidArgument(
                f"{user!r} is not a valid name for a user: use letters, digits, '.', '_' and '-', at most 63"
            )
        addresses = _checked(nameservers)
        path = self.directory / f"{user}.minimq"
        with self._alone():
            former = self._users().get(path)
            bearer = None if former is None else former.trust().bearer
            trust = Trust(self._trusted(), self._signer().sign_user(user), bearer)
            put_files({path: written(addresses, trust, about_user(user)).encode()})
        return path

    def sign_user(self, user: str) -> Pair | None:
        """Return a new certificate of a user; None if the authority's key is elsewhere."""
        if not _USER.fullmatch(user) or not (self._authority / _OWN_KEY).exists():
            return None  # the access document rejects other names, with the reason
        with self._alone():
            return self._signer().sign_user(user)

    def nameservers(self, user: str = ADMIN) -> tuple[str, ...]:
        """Return the name servers in the credentials of a user, or else of `admin`; empty if neither file exists."""
        users = self._users()
        found = users.get(self.directory / f"{user}.minimq") or users.get(self.admin)
        return () if found is None else found.nameservers

    def has_key(self, user: str) -> bool:
        found = self._users().get(self.directory / f"{user}.minimq")
        return found is not None and found.trust().bearer is not None

    def server_certificate(self) -> CertificateReport:
        """Return the certificate of the servers. Raises `InvalidArgument`."""
        return _describe(self.server / CERTIFICATE)

    def certificates(self) -> dict[str, CertificateReport]:
        """Return all certificates in the folder, by a readable name. Raises `InvalidArgument`."""
        found = {"authority": _describe(self._authority / ROOTS), "servers": self.server_certificate()}
        for path, user in self._users().items():
            pair = user.trust().pair
            if pair is not None:
                found[f"user {path.stem}"] = _library().describe(pair.certificate)
        return found

    def _alone(self, *, make: bool = False) -> AbstractContextManager[None]:
        return lock_folder(self.directory, make=make)

    def _signer(self) -> Signer:
        key, certificate = (read_text_file(self._authority / name) for name in (_OWN_KEY, ROOTS))
        signer: Signer = _library().Signer.load(Pair(certificate, key))
        return signer

    def _trusted(self) -> bytes:
        # Not that of the authority alone: an operator may have added another one, to replace it.
        return read_text_file(self.server / ROOTS)

    def _server_files(self, pair: Pair, roots: bytes) -> dict[Path, bytes]:
        # A server that reloads between two of these writes finds a key that does not fit, and keeps its certificate.
        return {self.server / ROOTS: roots, self.server / KEY: pair.key, self.server / CERTIFICATE: pair.certificate}

    def _users(self) -> dict[Path, CredentialsFile]:
        return {
            path: CredentialsFile(Credentials(str(path)))
            for path in sorted(self.directory.glob("*.minimq"))
            if _USER.fullmatch(path.stem)
        }


def _describe(path: Path) -> CertificateReport:
    found: CertificateReport = _library().describe(read_text_file(path))
    return found


def _library() -> ModuleType:
    try:
        return importlib.import_module("minimq.local.certificate_signer")
    except ImportError:
        text = "certificates are made by a library that is not installed: pip install 'minimq[secure]'"
        raise InvalidArgument(text) from None


def _names(hosts: Sequence[str]) -> tuple[str, ...]:
    names = [host.strip("[]") for host in hosts]
    for name in names:
        if not _is_address(name) and not _HOST.fullmatch(name):
            raise InvalidArgument(f"the host {name!r} is neither a name nor an address; write it without a port")
    return tuple(dict.fromkeys((*_LOCAL_NAMES, *names)))


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _checked(nameservers: Sequence[str]) -> list[str]:
    return [check_address(address) for address in nameservers]
