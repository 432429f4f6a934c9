"""`minimq user`, `minimq can` and `minimq access`: users and rules in a folder of secrets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

import click

from minimq.admin import values
from minimq.admin.operation import Param
from minimq.admin.views import Plan, Rows, Table, View, columns
from minimq.local.access_file import AccessFile, user_rows
from minimq.options import nameserver_addresses
from minimq_cli.commands import Output, declared, show
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_named
from minimq_common.text_units import count_of

_USERS = Table("no users", columns("user state keys roles rules"))
_ANY = "Any other right, 'VERB RESOURCE [PATTERN]', such as 'manage topic orders*' or 'backup cluster'."
_LIFETIME = "Lifetime of the key, such as 90d; unlimited by default."
_TO = "Write the credentials to a FILE that only you can read, instead of to stdout."
_SERVER = "Name servers in the credentials; by default those of admin's."


def _rights(metavar: str, text: str, flag: str = "") -> Param:
    return Param(flag=flag, metavar=metavar, help=text)


class Rights(TypedDict, total=False):
    """The options that name rights."""

    write: Annotated[Sequence[str], _rights("PATTERN", "Send to these topics: a name, or a prefix followed by *.")]
    read: Annotated[Sequence[str], _rights("PATTERN", "Read these topics.")]
    group: Annotated[Sequence[str], _rights("PATTERN", "Consume as a member of these groups.")]
    transaction: Annotated[Sequence[str], _rights("PATTERN", "Send under transactions of these names.")]
    rights: Annotated[Sequence[str], _rights("RIGHT", _ANY, "--right")]
    roles: Annotated[
        Sequence[str], _rights("ROLE", "A role of access.toml, or admin, which may do everything.", "--role")
    ]


class NewKey(TypedDict, total=False):
    """The options of commands that make a key."""

    lifetime_s: Annotated[float, Param(flag="--lifetime", read=values.seconds, metavar="TIME", help=_LIFETIME)]
    to: Annotated[Path, Param(metavar="FILE", read=values.path, help=_TO)]
    nameservers: Annotated[str, Param(letter="-s", flag="--server", metavar="HOST:PORT[,HOST:PORT]", help=_SERVER)]


class NewUser(Rights, NewKey, total=False):
    """The options of `minimq user add`."""


Name = Annotated[str, Param(metavar="USER")]
Secrets = Annotated[
    Path,
    Param(
        metavar="DIR",
        read=values.path,
        help="Folder of `minimq secure init`, or of the servers in it, with access.toml.",
    ),
]
_SECRETS = Path("secrets")
DryRun = Annotated[bool, Param(help="Show what would change, and change nothing.")]


def _rules(chosen: Mapping[str, Any]) -> list[str]:
    named = {
        "write": "write topic ",
        "read": "read topic ",
        "group": "read group ",
        "transaction": "write transaction ",
    }
    return [f"allow {verb}{each}" for name, verb in {**named, "rights": ""}.items() for each in chosen.get(name, ())]


def _key_options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    addresses = check_named("--server", nameserver_addresses, chosen["nameservers"]) if "nameservers" in chosen else ()
    return {"lifetime_s": chosen.get("lifetime_s"), "to": chosen.get("to"), "nameservers": addresses}


def _show_rows(file: AccessFile, output: str, *, dry_run: bool) -> None:
    if dry_run and output == "table":
        click.echo("dry run, nothing was changed:")
    show(Plan(rows=file.rows).view(), output)


def _show_key(file: AccessFile, name: str, text: str, to: Path | None, *, dry_run: bool) -> None:
    if dry_run:
        _show_rows(file, "table", dry_run=True)
    else:
        click.echo(f"{to}: the credentials of user {name}; keep the file private" if to else text.removesuffix("\n"))


@declared("add", "Add a user, and write its credentials.")
def _add(
    _nameserver: str, name: Name, *, dry_run: DryRun = False, secrets: Secrets = _SECRETS, **chosen: Unpack[NewUser]
) -> None:
    """Add a user, and write its credentials. Anyone who has them can act as the user.

    The credentials contain the only copy of the key. A consumer needs --read for its topics and --group for its group.
    A pattern may contain ${user}, the name of the user.

    Example: minimq user add alice --write 'orders*' --to alice.minimq
    """
    file = AccessFile(secrets, dry_run=dry_run)
    text = file.add(name, _rules(chosen), chosen.get("roles", ()), **_key_options(chosen))
    _show_key(file, name, text, chosen.get("to"), dry_run=dry_run)


@declared("allow", "Give a user more rights, or take them away.")
def _allow(
    _nameserver: str,
    name: Name,
    *,
    delete: Annotated[bool, Param(help="Delete these rules and roles instead of adding them.")] = False,
    dry_run: DryRun = False,
    secrets: Secrets = _SECRETS,
    output: Output = "table",
    **chosen: Unpack[Rights],
) -> None:
    """Give a user more rights. A rule that denies exactly the same is removed; others that deny stay in force.

    Example: minimq user allow alice --read 'orders*' --group billing
    """
    if not chosen:
        raise InvalidArgument("nothing to change: give --write, --read, --group or another right")
    file = AccessFile(secrets, dry_run=dry_run)
    (file.delete_rules if delete else file.allow)(name, _rules(chosen), chosen.get("roles", ()))
    _show_rows(file, output, dry_run=dry_run)


@declared("rotate", "Make a new key for a user.")
def _rotate(
    _nameserver: str,
    name: Name,
    *,
    delete_old: Annotated[bool, Param(help="Revoke the former keys at once.")] = False,
    dry_run: DryRun = False,
    secrets: Secrets = _SECRETS,
    **chosen: Unpack[NewKey],
) -> None:
    """Make a new key for a user, and write the credentials; FILE may be the one in use.

    The former key stays valid, so that you can replace the file of one program after the other.

    Example: minimq user rotate alice --to alice.minimq
    """
    file = AccessFile(secrets, dry_run=dry_run)
    text = file.rotate(name, delete_old=delete_old, **_key_options(chosen))
    _show_key(file, name, text, chosen.get("to"), dry_run=dry_run)


@declared("delete-old-keys", "Revoke all keys of a user except the latest.")
def _delete_old_keys(
    _nameserver: str, name: Name, *, dry_run: DryRun = False, secrets: Secrets = _SECRETS, output: Output = "table"
) -> None:
    """Revoke all keys of a user except the latest.

    Example: minimq user delete-old-keys alice
    """
    file = AccessFile(secrets, dry_run=dry_run)
    file.delete_old_keys(name)
    _show_rows(file, output, dry_run=dry_run)


@declared("remove", "Remove a user with its keys and rules.")
def _remove(
    _nameserver: str, name: Name, *, dry_run: DryRun = False, secrets: Secrets = _SECRETS, output: Output = "table"
) -> None:
    """Remove a user with its keys and rules.

    Example: minimq user remove alice
    """
    file = AccessFile(secrets, dry_run=dry_run)
    file.remove(name)
    _show_rows(file, output, dry_run=dry_run)


@declared("list", "List the users with their keys, roles and rules.")
def _list(_nameserver: str, *, secrets: Secrets = _SECRETS, output: Output = "table") -> None:
    """List the users with their keys, roles and rules. Keys are shown by their ids; they are not stored.

    Example: minimq user list
    """
    rows = user_rows(AccessFile(secrets).read())
    shown = [
        {**row, "keys": ", ".join(f"{key['id']} {_expiry(key['expires_at'])}".strip() for key in row["keys"]) or None}
        for row in rows
    ]
    show(View(json=rows, lines=[Rows(_USERS, shown)]), output)


def _expiry(at: datetime | None) -> str:
    return "" if at is None else f"until {at:%Y-%m-%d %H:%M} UTC"


user = click.Group(
    "user",
    [_add, _allow, _rotate, _delete_old_keys, _remove, _list],
    help="Add users, grant rights, and rotate or revoke keys.\n\nThe commands change access.toml in a folder of "
    "`minimq secure init`; servers with that folder follow within two seconds. Copy the file to servers on other "
    "machines. You may also edit it; `minimq access check` checks it.",
    short_help="Add users, grant rights, and rotate or revoke keys.",
)


@declared("can", "Show whether a USER may do something, and by which rule.")
def can(
    _nameserver: str,
    name: Name,
    verb: str,
    resource: str,
    pattern: Annotated[str, Param(is_argument=True, metavar="NAME")] = "",
    *,
    secrets: Secrets = _SECRETS,
    output: Output = "table",
) -> None:
    """Show whether a USER may do something, and by which rule. The exit status is 0 for yes, 1 for no.

    RESOURCE is topic (VERB: write, read, manage, describe), group (read, manage, describe), transaction (write,
    describe), or cluster (describe, manage, backup), which has no NAME.

    Example: minimq can alice write topic orders
    """
    decision = AccessFile(secrets).can(name, verb, resource, pattern)
    row = {"allowed": decision.allowed, "reason": decision.reason}
    show(View(json=row, lines=[f"{'yes' if decision.allowed else 'no'}: {decision.reason}"]), output)
    if not decision.allowed:
        sys.exit(1)


@declared("check", "Check access.toml in a folder.")
def _check(_nameserver: str, *, secrets: Secrets = _SECRETS) -> None:
    """Check access.toml in a folder. The exit status is 2 if servers would reject it; the error names the line.

    Example: minimq access check
    """
    file = AccessFile(secrets)
    document = file.read()
    users, roles = count_of(len(document.users), "user"), count_of(len(document.roles), "role")
    click.echo(f"{file.path}: {users}, {roles}")


access = click.Group("access", [_check], help="Check the file of users and rules.", short_help="Check users and rules.")
