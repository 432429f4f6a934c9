"""Users and rules in a folder of secrets, changed without a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minimq.admin.access import AccessEdit, edited
from minimq.admin.operation import method
from minimq.admin.users import UserOperations
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.secret_files import lock_folder, put_files
from minimq.options import DEFAULT_NAMESERVER, nameserver_addresses
from minimq_common.errors import InvalidArgument
from minimq_common.files.text_file import read_text_file
from minimq_common.security.access_document import AccessDocument, from_toml, to_toml
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials_file import about_user, written
from minimq_common.security.server_secrets import ACCESS, ROOTS
from minimq_common.security.user_key import UserKey
from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES


class AccessFolder(UserOperations):
    """Edits the file `access.toml`; servers with that folder reload it.

    Args:
        directory: the folder of `minimq secure init`, or that of the servers in it.
        nameservers: for credentials; by default those in the credentials of admin.
    """

    def __init__(self, directory: Path, nameservers: Sequence[str] = ()) -> None:
        inner = directory / "server"
        self._folder = inner if (inner / ACCESS).exists() else directory
        self._file = self._folder / ACCESS
        self._authority = CertificateAuthority(directory) if self._folder is inner else None
        self._nameservers = nameservers
        if not self._file.exists():
            raise InvalidArgument(
                f"{directory} has no {ACCESS}: `minimq secure init DIR` makes a folder that has, for --secrets DIR"
            )

    @method
    def access(self) -> AccessDocument:
        """Return the document. Raises `InvalidArgument`."""
        try:
            return from_toml(read_text_file(self._file, MAX_DOCUMENT_BYTES))
        except InvalidArgument as error:
            raise InvalidArgument(f"{self._file}: {error.message}") from None

    @method
    def change_access(self, edit: AccessEdit, *, wait: bool = True) -> AccessDocument:
        """Change the document, and return it. Raises `InvalidArgument`, and changes nothing then."""
        with lock_folder(self._folder):
            later = edited(self.access(), edit)
            put_files({self._file: to_toml(later).encode()})
        return later

    @method
    def credentials_of(self, name: str, key: UserKey, nameservers: Sequence[str] = ()) -> str:
        if self._authority is None:
            trust = Trust(read_text_file(self._folder / ROOTS), None, key)
            return written(self._addresses(nameservers), trust, about_user(name))
        return self._authority.credentials(name, self._addresses(nameservers), key)

    def _addresses(self, nameservers: Sequence[str]) -> tuple[str, ...]:
        found = nameservers or self._nameservers or (self._authority and self._authority.nameservers())
        return nameserver_addresses(found or DEFAULT_NAMESERVER)
