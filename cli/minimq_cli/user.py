"""`minimq user`, `minimq can` and `minimq access`: users and rules in a folder of secrets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import click

from minimq.admin import values
from minimq.admin.operation import Param
from minimq.admin.views import Plan, Rows, Table, View, columns
from minimq.local.access_file import AccessFile, user_rows
from minimq.options import nameserver_addresses
from minimq_cli.commands import Output, declared, show
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_named
from minimq_common.text_units import check_path, count_of

_USERS = Table("no users", columns("user state keys roles rules"))


def _path(what: str, text: str) -> Path:
    check_path(what, text)
    return Path(text)


_FOLDER = "Folder of `minimq secure init`, or of the servers in it, with access.toml."
Secrets = Annotated[Path, Param(metavar="DIR", read=_path, help=_FOLDER)]
_SECRETS = Path("secrets")
Name = Annotated[str, Param(metavar="USER")]
_WRITE = "Send to these topics: a name, or a prefix followed by *."
Write = Annotated[Sequence[str], Param(metavar="PATTERN", help=_WRITE)]
Read = Annotated[Sequence[str], Param(metavar="PATTERN", help="Read these topics.")]
Member = Annotated[Sequence[str], Param(metavar="PATTERN", help="Consume as a member of these groups.")]
Transaction = Annotated[Sequence[str], Param(metavar="PATTERN", help="Send under transactions of these names.")]
_ANY = "Any other right, 'VERB RESOURCE [PATTERN]', such as 'manage topic orders*' or 'backup cluster'."
Right = Annotated[Sequence[str], Param(flag="--right", metavar="RIGHT", help=_ANY)]
_ROLE = "A role of access.toml, or admin, which may do everything."
Role = Annotated[Sequence[str], Param(flag="--role", metavar="ROLE", help=_ROLE)]
_LIFETIME = "Lifetime of the key, such as 90d; unlimited by default."
Lifetime = Annotated[float | None, Param(flag="--lifetime", read=values.seconds, metavar="TIME", help=_LIFETIME)]
_TO = "Write the credentials to a FILE that only you can read, instead of to stdout."
Target = Annotated[Path | None, Param(metavar="FILE", read=_path, help=_TO)]

DryRun = Annotated[bool, Param(help="Show what would change, and change nothing.")]

_SERVER = "Name servers in the credentials; by default those of admin's."
Nameservers = Annotated[str | None, Param(letter="-s", flag="--server", metavar="HOST:PORT[,HOST:PORT]", help=_SERVER)]


def _rules(
    write: Sequence[str], read: Sequence[str], group: Sequence[str], transaction: Sequence[str], rights: Sequence[str]
) -> list[str]:
    named = (("write topic", write), ("read topic", read), ("read group", group), ("write transaction", transaction))
    return [f"allow {right}" for right in (*(f"{verb} {each}" for verb, given in named for each in given), *rights)]


def _addresses(text: str | None) -> Sequence[str]:
    return check_named("--server", nameserver_addresses, text) if text else ()


def _show_rows(file: AccessFile, output: str, *, dry_run: bool) -> None:
    if dry_run and output == "table":
        click.echo("dry run, nothing was changed:")
    show(Plan(rows=file.rows).view(), output)


def _show_credentials(name: str, text: str, to: Path | None) -> None:
    click.echo(
        text.removesuffix("\n") if to is None else f"{to}: the credentials of user {name}; keep the file private"
    )


@declared("add", "Add a user, and write its credentials.")
def _add(  # noqa: PLR0913 - the options of the command
    _nameserver: str,
    name: Name,
    *,
    write: Write = (),
    read: Read = (),
    group: Member = (),
    transaction: Transaction = (),
    rights: Right = (),
    roles: Role = (),
    lifetime_s: Lifetime = None,
    to: Target = None,
    nameservers: Nameservers = None,
    dry_run: DryRun = False,
    secrets: Secrets = _SECRETS,
) -> None:
    """Add a user, and write its credentials. Anyone who has them can act as the user.

    The credentials contain the only copy of the key. A consumer needs --read for its topics and --group for its group.
    A pattern may contain ${user}, the name of the user.

    Example: minimq user add alice --write 'orders*' --to alice.minimq
    """
    rules = _rules(write, read, group, transaction, rights)
    file = AccessFile(secrets, dry_run=dry_run)
    text = file.add(name, rules, roles, lifetime_s=lifetime_s, to=to, nameservers=_addresses(nameservers))
    if dry_run:
        _show_rows(file, "table", dry_run=True)
    else:
        _show_credentials(name, text, to)


@declared("allow", "Give a user more rights, or take them away.")
def _allow(  # noqa: PLR0913 - the options of the command
    _nameserver: str,
    name: Name,
    *,
    write: Write = (),
    read: Read = (),
    group: Member = (),
    transaction: Transaction = (),
    rights: Right = (),
    roles: Role = (),
    delete: Annotated[bool, Param(help="Delete these rules and roles instead of adding them.")] = False,
    dry_run: DryRun = False,
    secrets: Secrets = _SECRETS,
    output: Output = "table",
) -> None:
    """Give a user more rights. A rule that denies exactly the same is removed; others that deny stay in force.

    Example: minimq user allow alice --read 'orders*' --group billing
    """
    rules = _rules(write, read, group, transaction, rights)
    if not rules and not roles:
        raise InvalidArgument("nothing to change: give --write, --read, --group or another right")
    file = AccessFile(secrets, dry_run=dry_run)
    (file.delete_rules if delete else file.allow)(name, rules, roles)
    _show_rows(file, output, dry_run=dry_run)


@declared("rotate", "Make a new key for a user.")
def _rotate(
    _nameserver: str,
    name: Name,
    *,
    delete_old: Annotated[bool, Param(help="Revoke the former keys at once.")] = False,
    lifetime_s: Lifetime = None,
    to: Target = None,
    nameservers: Nameservers = None,
    dry_run: DryRun = False,
    secrets: Secrets = _SECRETS,
) -> None:
    """Make a new key for a user, and write the credentials; FILE may be the one in use.

    The former key stays valid, so that you can replace the file of one program after the other.

    Example: minimq user rotate alice --to alice.minimq
    """
    file = AccessFile(secrets, dry_run=dry_run)
    text = file.rotate(name, delete_old=delete_old, lifetime_s=lifetime_s, to=to, nameservers=_addresses(nameservers))
    if dry_run:
        _show_rows(file, "table", dry_run=True)
    else:
        _show_credentials(name, text, to)


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
        {
            **row,
            "keys": ", ".join(f"{key['id']} {_expiry(key['expires_at'])}".strip() for key in row["keys"]) or None,
            "roles": ", ".join(row["roles"]) or None,
            "rules": "; ".join(row["rules"]) or None,
        }
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
