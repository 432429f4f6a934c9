"""Sources of users and rules for commands: a folder of secrets, or a running cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from minimq.cli.base import option

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.administration.access_edits import AccessEdit
    from minimq_common.security.access_document import AccessDocument
    from minimq_common.security.user_key import UserKey


class AccessSource(Protocol):
    """A source of the document of users and rules."""

    def read(self) -> AccessDocument:
        """Return the document."""

    def change(self, edit: AccessEdit) -> AccessDocument:
        """Change the document, and return it."""

    def credentials(self, user: str, key: UserKey, nameservers: tuple[str, ...]) -> str:
        """Return the text of the credentials of a user; without name servers, with the known ones."""

    def token_credentials(self, token_file: str, nameservers: tuple[str, ...]) -> str:
        """Return the text of credentials for whoever has a token in a file."""


def secrets_option(command: Any) -> Any:
    """Add `--secrets` to a command about users and rules."""
    return option(
        "--secrets",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Work on access.toml in this folder of `minimq secure init`, without a server; by default on the cluster.",
    )(command)


@contextmanager
def open_source(context: click.Context, secrets: Path | None) -> Iterator[AccessSource]:
    """Open the source that the options of a command select: a folder, or else the cluster. Raises `InvalidArgument`."""
    if secrets is not None:
        from minimq.local.access_file import AccessFile

        yield AccessFile(secrets)
        return
    from minimq.admin import Admin

    with Admin(context.obj) as admin:
        yield _ClusterAccess(admin)


class _ClusterAccess:
    """The document of a running cluster, accessed with the credentials of an administrator."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def read(self) -> AccessDocument:
        return self._admin.access()

    def change(self, edit: AccessEdit) -> AccessDocument:
        return self._admin.change_access(edit)

    def credentials(self, user: str, key: UserKey, nameservers: tuple[str, ...]) -> str:
        return self._admin.credentials_of(user, key, nameservers)

    def token_credentials(self, token_file: str, nameservers: tuple[str, ...]) -> str:
        return self._admin.token_credentials(token_file, nameservers)


def given_nameservers(context: click.Context) -> tuple[str, ...]:
    """Return the given name servers; none if they come from the credentials or the default."""
    from minimq.options import nameserver_addresses

    return nameserver_addresses(context.obj) if context.meta.get("nameserver") else ()
