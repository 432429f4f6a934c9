"""The document of users and rules in a folder of secrets, changed where no server need run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minimq.administration.access_edits import AccessEdit, edited
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.secret_files import lock_folder, put_files
from minimq.options import DEFAULT_NAMESERVER, nameserver_addresses
from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, from_toml, to_toml
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials_file import ABOUT_TOKEN, about_user, written
from minimq_common.security.server_secrets import ACCESS, ROOTS
from minimq_common.security.tokens import UserToken
from minimq_common.security.user_key import UserKey
from minimq_common.security.watched import read_bounded
from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES


class AccessFile:
    """The file `access.toml`, which servers that have its folder follow."""

    def __init__(self, directory: Path) -> None:
        inner = directory / "server"
        self._folder = inner if (inner / ACCESS).exists() else directory
        self._authority = CertificateAuthority(directory) if self._folder is inner else None
        if not (self._folder / ACCESS).exists():
            raise InvalidArgument(
                f"{directory} has no {ACCESS}: `minimq secure init DIR` makes a folder that has, for --secrets DIR"
            )

    def read(self) -> AccessDocument:
        """Return the document. Raises `InvalidArgument`."""
        try:
            return from_toml(read_bounded(self._folder / ACCESS, MAX_DOCUMENT_BYTES))
        except InvalidArgument as error:
            raise InvalidArgument(f"{self._folder / ACCESS}: {error.message}") from None

    def change(self, edit: AccessEdit) -> AccessDocument:
        """Change the document, and return it. Raises `InvalidArgument`, and changes nothing then."""
        with lock_folder(self._folder):
            later = edited(self.read(), edit)
            put_files({self._folder / ACCESS: to_toml(later).encode()})
        return later

    def credentials(self, user: str, key: UserKey, nameservers: Sequence[str]) -> str:
        """Return the text of the credentials of a user."""
        addresses = self._addresses(nameservers)
        if self._authority is not None:
            return self._authority.credentials(user, addresses, key)
        return written(addresses, Trust(read_bounded(self._folder / ROOTS), None, key), about_user(user))

    def token_credentials(self, token_file: str, nameservers: Sequence[str]) -> str:
        """Return the text of credentials for whoever has a token in a file. Raises as `credentials`."""
        trust = Trust(read_bounded(self._folder / ROOTS), None, UserToken(token_file, ""))
        return written(self._addresses(nameservers), trust, ABOUT_TOKEN)

    def _addresses(self, nameservers: Sequence[str]) -> tuple[str, ...]:
        found = nameservers or (self._authority and self._authority.nameservers())
        return nameserver_addresses(found or DEFAULT_NAMESERVER)
