"""The place where commands find users and rules: a folder of secrets, or a running cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from minimq.cli.base import option
from minimq_common.errors import InvalidArgument

if TYPE_CHECKING:
    from minimq.administration.access_edits import AccessEdit
    from minimq_common.security.access_document import AccessDocument
    from minimq_common.security.user_key import UserKey


class AccessSource(Protocol):
    """A place of the document of users and rules."""

    def read(self) -> AccessDocument:
        """Return the document."""

    def change(self, edit: AccessEdit) -> AccessDocument:
        """Change the document, and return it."""

    def credentials(self, user: str, key: UserKey, nameservers: tuple[str, ...]) -> str:
        """Return the text of the credentials of a user; without name servers for those that are known here."""


def secrets_option(command: Any) -> Any:  # noqa: ANN401 - a command
    """Add `--secrets` to a command about users and rules."""
    return option(
        "--secrets",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Folder of `minimq secure init`: the command works on its access.toml, and needs no server.",
    )(command)


def source_of(secrets: Path | None) -> AccessSource:
    """Return the place that the options of a command name. Raises `InvalidArgument`."""
    if secrets is None:
        raise InvalidArgument("no folder is given: --secrets DIR names that of `minimq secure init`")
    from minimq.local.access_file import AccessFile

    return AccessFile(secrets)


def given_nameservers(context: click.Context) -> tuple[str, ...]:
    """Return the name servers that were given; none when they are those of the credentials, or the default."""
    from minimq.options import nameserver_addresses

    return nameserver_addresses(context.obj) if context.meta.get("nameserver") else ()
