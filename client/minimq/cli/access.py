"""`minimq access` and `minimq can`: the document of users and rules, and what it allows."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from minimq.cli.access_source import open_source, secrets_option
from minimq.cli.base import option, output_option, show_json
from minimq.cli.base import show as show_table
from minimq.cli.issuer import issuer, token_credentials
from minimq.operations.operation import Table, columns
from minimq_common.words import count_of

_SERVERS = Table("no server", columns("server address version mode digest error", error="Not answering"))
#: Digits of a digest in a table.
_SHOWN = 12


@click.group()
def access() -> None:
    """Show or replace the document of users and rules."""


access.add_command(issuer)
access.add_command(token_credentials)


@access.command()
@secrets_option
@option(
    "--output", type=click.Choice(("toml", "json")), default="toml", show_default=True, help="Format of the result."
)
@click.pass_context
def show(context: click.Context, secrets: Path | None, output: str) -> None:
    """Show the whole document, as `minimq access apply` takes it. It contains hashes of keys, and no key.

    Example: minimq access show > access.toml
    """
    import msgspec

    from minimq_common.security.access_document import to_toml

    with open_source(context, secrets) as source:
        document = source.read()
    if output == "json":
        show_json({**msgspec.to_builtins(document), "digest": document.digest})
    else:
        click.echo(to_toml(document, time.time_ns() // 1_000_000), nl=False)


@access.command(short_help="Replace the document by that in FILE, of a larger version.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@secrets_option
@click.pass_context
def apply(context: click.Context, file: Path, secrets: Path | None) -> None:
    """Replace the document by that in FILE; its version must be larger.

    Example: minimq access apply access.toml
    """
    from minimq.administration.access_edits import replace_all
    from minimq_common.security.access_document import from_toml
    from minimq_common.security.watched import read_bounded
    from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES

    edit = replace_all(from_toml(read_bounded(file, MAX_DOCUMENT_BYTES)))
    with open_source(context, secrets) as source:
        later = source.change(edit)
    click.echo(f"version {later.version} with {count_of(len(later.users), 'user')} is in force")


@access.command()
@output_option
@click.pass_context
def status(context: click.Context, output: str) -> None:
    """Show the version of users and rules in force at each server.

    The exit status is 1 if a server does not answer, has none, or differs from the others.

    Example: minimq access status
    """
    from minimq.admin import Admin

    with Admin(context.obj) as admin:
        found = admin.access_status()
    show_table(
        output,
        _SERVERS,
        [
            {
                "server": each.server,
                "address": each.address,
                "version": each.version or None,
                "mode": ("report" if each.only_reports else "enforce") if each.version else None,
                "digest": each.digest[:_SHOWN] if output == "table" else each.digest or None,
                "error": each.error,
            }
            for each in found
        ],
        without=() if any(each.error for each in found) else ("error",),
    )
    versions = {(each.version, each.digest) for each in found if each.error is None}
    if len(versions) > 1:
        same = len({version for version, _ in versions}) == 1
        remedy = (
            "two documents have the same version: apply one with a larger version by `minimq access apply FILE`"
            if same
            else "servers with an older document, or none, follow within seconds if they have a folder with "
            "access.toml and reach a name server"
        )
        click.echo(f"warning: not all servers have the same users and rules: {remedy}", err=True)
    if any(each.only_reports for each in found):
        click.echo("warning: some servers refuse nobody: start them without --access-mode report", err=True)
    if len(versions) > 1 or any(each.error for each in found) or (0, "") in versions:
        sys.exit(1)


@click.command()
@click.argument("user")
@click.argument("verb")
@click.argument("resource")
@click.argument("name", default="")
@secrets_option
@output_option
@click.pass_context
def can(
    context: click.Context, /, user: str, verb: str, resource: str, name: str, secrets: Path | None, output: str
) -> None:
    """Show whether a USER may do something, and by which rule. The exit status is 0 for yes, 1 for no.

    VERB and RESOURCE are: write, read, manage or describe and topic; read, manage or describe and group; write or
    describe and transaction; describe, manage, backup or access and cluster, which has no NAME.

    Example: minimq can alice write topic orders
    """
    from minimq_common.security.access_policy import Policy
    from minimq_common.security.access_rule import need_of

    need = need_of(verb, resource, name)
    with open_source(context, secrets) as source:
        document = source.read()
    decision = Policy(document).answer(user, need, time.time_ns() // 1_000_000)
    if output == "json":
        answer: dict[str, Any] = {"allowed": decision.allowed, "reason": decision.reason, "version": document.version}
        show_json(answer)
    else:
        click.echo(f"{'yes' if decision.allowed else 'no'}: {decision.reason}")
    if not decision.allowed:
        sys.exit(1)
