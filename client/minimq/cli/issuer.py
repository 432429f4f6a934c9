"""`minimq access issuer`: the identity providers whose tokens a cluster takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from minimq.cli.access_source import given_nameservers, open_source, secrets_option
from minimq.cli.base import confirm, option, output_option, show
from minimq.operations.operation import Row, Table, columns
from minimq_common.errors import InvalidArgument

_ISSUERS = Table(
    "no issuers",
    columns(
        "name issuer audience jwks user_claim roles claimed_roles",
        jwks="Keys",
        user_claim="User",
        claimed_roles="Roles by claim",
    ),
)

_NAME = click.argument("name")


@click.group(short_help="Manage the identity providers whose tokens are taken.")
def issuer() -> None:
    """Manage the identity providers whose tokens (JWT) are taken in place of keys."""


@issuer.command(short_help="Take the tokens of an identity provider.")
@_NAME
@option("--issuer", required=True, metavar="TEXT", help="The claim iss of its tokens, mostly a URL.")
@option("--audience", required=True, metavar="TEXT", help="The claim aud of tokens for this cluster, such as minimq.")
@option(
    "--jwks",
    required=True,
    metavar="URL|FILE",
    help="Its public keys: an https:// URL, or the name of a file in the folder --secrets of each server.",
)
@option("--ca", default="", metavar="FILE", help="A file there with the CA of that URL; default: those of the system.")
@option("--user-claim", default="sub", show_default=True, metavar="CLAIM", help="The claim that names the user.")
@option("--user-prefix", default="", metavar="TEXT", help="The begin of each of these names, which is left out.")
@option("--role", "roles", multiple=True, metavar="ROLE", help="A role of all its users; may be given several times.")
@option("--role-claim", default="", metavar="CLAIM", help="The claim whose values stand for roles, such as groups.")
@option(
    "--claimed-role",
    "claimed_roles",
    multiple=True,
    metavar="VALUE=ROLE",
    help="The role that such a value stands for; may be given several times.",
)
@option("--replace", is_flag=True, help="Change the issuer of this name; its users keep their rules.")
@secrets_option
@click.pass_context
def add(
    context: click.Context,
    /,
    name: str,
    secrets: Path | None,
    replace: bool,
    claimed_roles: tuple[str, ...],
    **given: Any,
) -> None:
    """Take the tokens of an identity provider, whose users are called NAME:USER from then on.

    They have no rights but those of the given roles, until `minimq user allow NAME:USER` gives some. Servers need the
    extra secure of minimq; those of former releases cannot read a document with issuers: upgrade all of them first.

    Example: minimq access issuer add k8s --issuer https://kubernetes.default.svc.cluster.local --audience minimq
    --jwks jwks.json --user-prefix system:serviceaccount:
    """
    from minimq.administration.access_edits import add_issuer
    from minimq_common.security.issuer import Issuer

    pairs = [each.rpartition("=") for each in claimed_roles]
    for value, separator, role in pairs:
        if not separator or not value or not role:
            raise InvalidArgument("--claimed-role takes VALUE=ROLE, such as --claimed-role team-orders=writers")
    made = Issuer(**given, claimed_roles={value: role for value, _, role in pairs})
    with open_source(context, secrets) as source:
        later = source.change(add_issuer(name, made, replaces=replace))
    click.echo(f"issuer {name}: its users are {name}:USER; users and rules have version {later.version} now")


@issuer.command("list")
@secrets_option
@output_option
@click.pass_context
def list_issuers(context: click.Context, secrets: Path | None, output: str) -> None:
    """List the identity providers whose tokens are taken.

    Example: minimq access issuer list
    """
    with open_source(context, secrets) as source:
        document = source.read()
    rows: list[Row] = []
    for name, found in sorted(document.known_issuers.items()):
        row: dict[str, object] = {
            **{field: getattr(found, field) for field in ("issuer", "audience", "jwks")},
            "user_claim": found.user_claim,
            "roles": list(found.roles),
            "claimed_roles": found.claimed_roles,
        }
        if output == "table":
            row["user_claim"] = (
                f"{found.user_claim} after {found.user_prefix}" if found.user_prefix else found.user_claim
            )
            row["roles"] = ", ".join(found.roles) or None
            row["claimed_roles"] = (
                ", ".join(f"{found.role_claim} {value}: {role}" for value, role in found.claimed_roles.items()) or None
            )
        else:
            row |= {field: getattr(found, field) or None for field in ("user_prefix", "role_claim", "ca")}
        rows.append({"name": name, **row})
    show(output, _ISSUERS, rows)


@issuer.command(short_help="Remove an issuer, and the rules of its users.")
@_NAME
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
@secrets_option
@click.pass_context
def remove(context: click.Context, name: str, secrets: Path | None, yes: bool) -> None:
    """Take the tokens of an issuer no longer, and remove the rules of its users.

    On a terminal, the command asks for confirmation unless --yes is given.

    Example: minimq access issuer remove k8s
    """
    from minimq.administration.access_edits import remove_issuer

    confirm(lambda: f"Remove issuer {name} with the rules of its users?", yes=yes)
    with open_source(context, secrets) as source:
        later = source.change(remove_issuer(name))
    click.echo(f"issuer {name} removed; users and rules have version {later.version} now")


@click.command("credentials", short_help="Write credentials for whoever has a token in a file.")
@option("--token-file", required=True, metavar="PATH", help="The path of the token where the credentials are used.")
@secrets_option
@click.pass_context
def token_credentials(context: click.Context, token_file: str, secrets: Path | None) -> None:
    """Write credentials for whoever has a token in a file. They are the same for all, and contain nothing secret.

    Clients read that file again when it changes.

    Example: minimq access credentials --token-file /var/run/secrets/minimq/token > token.minimq
    """
    with open_source(context, secrets) as source:
        click.echo(source.token_credentials(token_file, given_nameservers(context)), nl=False)
