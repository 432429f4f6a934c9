"""`minimq access` and `minimq can`: the document of users and rules, and what it allows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from minimq.cli.access_source import secrets_option, source_of
from minimq.cli.base import option, output_option, show_json
from minimq_common.errors import InvalidArgument
from minimq_common.words import count_of


@click.group()
def access() -> None:
    """Show the document of users and rules, or put another one in its place."""


@access.command()
@secrets_option
@option(
    "--output", type=click.Choice(("toml", "json")), default="toml", show_default=True, help="Format of the result."
)
def show(secrets: Path | None, output: str) -> None:
    """Show the whole document, as `minimq access apply` takes it. It holds hashes of keys, and no key.

    Example: minimq access show --secrets secrets > access.toml
    """
    import msgspec

    from minimq_common.security.access_document import to_toml

    document = source_of(secrets).read()
    if output == "json":
        show_json({**msgspec.to_builtins(document), "digest": document.digest})
    else:
        click.echo(to_toml(document), nl=False)


@access.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@secrets_option
def apply(file: Path, secrets: Path | None) -> None:
    """Put the document in FILE in the place of the former one; its version must be larger.

    Example: minimq access apply access.toml --secrets secrets
    """
    from minimq.administration.access_edits import replace_all
    from minimq_common.security.access_document import from_toml
    from minimq_common.security.watched import read_bounded

    later = source_of(secrets).change(replace_all(from_toml(read_bounded(file))))
    click.echo(f"version {later.version} with {count_of(len(later.users), 'user')} is in force")


@click.command()
@click.argument("user")
@click.argument("verb")
@click.argument("resource")
@click.argument("name", default="")
@secrets_option
@output_option
def can(user: str, verb: str, resource: str, name: str, secrets: Path | None, output: str) -> None:
    """Say whether a USER may do something, and name the rule that decides. The exit status is 0 for yes, 1 for no.

    VERB and RESOURCE are: write, read, manage or describe and topic; read, manage or describe and group; write or
    describe and transaction; describe, manage, backup or access and cluster, which has no NAME.

    Example: minimq can alice write topic orders --secrets secrets
    """
    from minimq_common.security.access_policy import Policy
    from minimq_common.security.access_rule import Need, parse_rule

    rule = parse_rule(f"allow {verb} {resource} {name}")
    if "*" in rule.pattern:
        raise InvalidArgument(f"{name!r} is a pattern: ask about one name")
    document = source_of(secrets).read()
    found = document.users.get(user)
    decision = Policy(document).decide(user, Need(rule.verb, rule.resource, rule.pattern))
    reason = decision.reason
    if found is None:
        reason = f"there is no user {user}"
    elif found.disabled:
        reason = f"user {user} is disabled"
    if output == "json":
        answer: dict[str, Any] = {"allowed": decision.allowed, "reason": reason, "version": document.version}
        show_json(answer)
    else:
        click.echo(f"{'yes' if decision.allowed else 'no'}: {reason}")
    if not decision.allowed:
        sys.exit(1)
