"""`minimq user`: users, their keys and their rights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minimq.cli.access_source import given_nameservers, open_source, secrets_option
from minimq.cli.base import confirm, option, output_option, show
from minimq.operations.operation import Row, Table, columns
from minimq_common.errors import DeadlineExceeded, InvalidArgument
from minimq_common.moments import moment
from minimq_common.words import bytes_of, seconds_of

if TYPE_CHECKING:
    from minimq.administration.access_edits import AccessEdit
    from minimq.administration.issued_key import IssuedKey
    from minimq_common.security.access_document import AccessDocument, StoredKey, User

_USERS = Table("no users", columns("user state keys roles rules limits"))

#: The rules of the options, without "allow" or "deny".
_GRANTS = {
    "write": "write topic",
    "read": "read topic",
    "manage": "manage topic",
    "group": "read group",
    "transaction": "write transaction",
}

_NAME = click.argument("name")
_PATTERN_HELP = "a name, or a prefix followed by *"


def _rights_options(command: Any) -> Any:
    helps = {
        "write": f"Send to these topics: {_PATTERN_HELP}.",
        "read": "Read these topics.",
        "manage": "Create, change and delete these topics.",
        "group": "Consume as a member of these groups.",
        "transaction": "Send under transactions of these names.",
    }
    for name, text in reversed(helps.items()):
        command = option(f"--{name}", name, multiple=True, metavar="PATTERN", help=text)(command)
    text = "Any other right, 'VERB RESOURCE [PATTERN]', such as 'manage group billing*' or 'backup cluster'."
    return option("--right", "rights", multiple=True, metavar="RIGHT", help=text)(command)


def _role_option(command: Any) -> Any:
    text = "A role of the document, or admin, which may do everything; may be given several times."
    return option("--role", "roles", multiple=True, metavar="ROLE", help=text)(command)


def _remove_option(command: Any) -> Any:
    return option("--remove", is_flag=True, help="Remove these rules instead of adding them.")(command)


def _key_options(command: Any) -> Any:
    command = option(
        "--to",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the credentials to a FILE that only you can read, instead of to stdout.",
    )(command)
    return option("--expires", metavar="TIME", help="Lifetime of the key, such as 90d; unlimited by default.")(command)


@click.group()
def user() -> None:
    """Add users, grant rights, and rotate or revoke keys.

    The commands change a running cluster, with the credentials of an administrator, and return when the change is in
    force at all servers. With --secrets DIR they change access.toml in a folder of `minimq secure init` instead;
    servers that are
    started with that folder follow within a second, if its version is larger than that of the cluster.
    """


@user.command(short_help="Add a user, and write its credentials.")
@_NAME
@_rights_options
@_role_option
@_key_options
@secrets_option
@click.pass_context
def add(context: click.Context, /, name: str, secrets: Path | None, to: Path | None, **given: Any) -> None:
    """Add a user, and write its credentials to stdout or to a file: anyone who has them can act as the user.

    A consumer needs --read for its topics and --group for its group. A pattern may contain ${user}, the name of the
    user.

    Example: minimq user add alice --write 'orders*' --to alice.minimq
    """
    from minimq.administration.access_edits import add_user

    key = _new_key(given.pop("expires"))
    roles = given.pop("roles")
    rules = _rules("allow", given)
    _issue(context, name, secrets, to, add_user(name, key.named, rules, roles), key)


@user.command()
@_NAME
@_rights_options
@_role_option
@_remove_option
@secrets_option
@click.pass_context
def allow(
    context: click.Context,
    /,
    name: str,
    secrets: Path | None,
    remove: bool,
    roles: tuple[str, ...],
    **given: Any,
) -> None:
    """Grant a user more rights.

    A rule that denies exactly the same is removed. A rule that denies more stays and takes precedence, with a warning.

    Example: minimq user allow alice --read 'orders*' --group billing
    """
    _change_rules(context, name, secrets, _rules("allow", given), roles, remove=remove)


@user.command(short_help="Deny a user something, whatever else is allowed.")
@_NAME
@_rights_options
@_remove_option
@secrets_option
@click.pass_context
def deny(context: click.Context, /, name: str, secrets: Path | None, remove: bool, **given: Any) -> None:
    """Deny a user something, whatever other rules and roles allow.

    A rule that allows exactly the same stays, and holds again after --remove. Without any rule a user may do nothing:
    to revoke a right, `allow --remove` is enough.

    Example: minimq user deny alice --write orders-archive
    """
    _change_rules(context, name, secrets, _rules("deny", given), (), remove=remove)


@user.command(short_help="Make a new key for a user.")
@_NAME
@option("--drop-old", is_flag=True, help="Revoke all former keys at once, for example after a leak.")
@_key_options
@secrets_option
@click.pass_context
def rotate(
    context: click.Context, name: str, secrets: Path | None, to: Path | None, drop_old: bool, expires: str | None
) -> None:
    """Make a new key for a user, and write the credentials with it to stdout or to a file.

    The former key stays valid. Once nobody uses it, revoke it with `minimq user drop-old-keys`. FILE may be the file
    in use: it is replaced in one step, and clients use it for new connections.

    Example: minimq user rotate alice --to alice.minimq
    """
    from minimq.administration.access_edits import add_key

    key = _new_key(expires)
    _issue(context, name, secrets, to, add_key(name, key.named, drop_old=drop_old), key, replaces=True)


@user.command()
@_NAME
@secrets_option
@click.pass_context
def drop_old_keys(context: click.Context, name: str, secrets: Path | None) -> None:
    """Revoke all keys of a user except the latest.

    Example: minimq user drop-old-keys alice
    """
    from minimq.administration.access_edits import drop_former_keys

    _change(context, secrets, drop_former_keys(name), f"former keys of user {name} revoked")


@user.command(short_help="Lock a user out.")
@_NAME
@secrets_option
@click.pass_context
def disable(context: click.Context, name: str, secrets: Path | None) -> None:
    """Lock a user out; its keys and rules are kept for `minimq user enable`.

    Example: minimq user disable alice
    """
    from minimq.administration.access_edits import set_disabled

    _change(context, secrets, set_disabled(name, disabled=True), f"user {name} is disabled")


@user.command()
@_NAME
@secrets_option
@click.pass_context
def enable(context: click.Context, name: str, secrets: Path | None) -> None:
    """Admit a disabled user again.

    Example: minimq user enable alice
    """
    from minimq.administration.access_edits import set_disabled

    _change(context, secrets, set_disabled(name, disabled=False), f"user {name} is enabled")


@user.command(short_help="Limit the bytes that a user sends and reads in a second.")
@_NAME
@option(
    "--in",
    "in_rate",
    metavar="SIZE",
    envvar="MINIMQ_USER_LIMIT_IN",
    help="Bytes sent in a second, such as 10MiB; 0 for any number.",
)
@option(
    "--out",
    "out_rate",
    metavar="SIZE",
    envvar="MINIMQ_USER_LIMIT_OUT",
    help="Bytes read in a second; 0 for any number.",
)
@secrets_option
@click.pass_context
def limit(context: click.Context, name: str, secrets: Path | None, in_rate: str | None, out_rate: str | None) -> None:
    """Limit the bytes of messages that a user sends to each broker, and reads from each, in a second.

    Nothing is refused: a broker reads slower from all streams of the user together, and writes slower. Servers of
    former releases cannot read a document with limits: upgrade all of them first.

    Example: minimq user limit alice --in 10MiB --out 50MiB
    """
    from minimq.administration.access_edits import set_limits
    from minimq_common.security.access_document import NO_LIMITS, shown_limits

    if in_rate is None and out_rate is None:
        raise InvalidArgument("nothing to change: give --in or --out, such as --in 10MiB; 0 removes a limit")
    edit = set_limits(name, _rate("--in", in_rate), _rate("--out", out_rate))
    with open_source(context, secrets) as source:
        later = source.change(edit)
    limits = later.users[name].limits or NO_LIMITS
    click.echo(f"user {name}: limits {shown_limits(limits)}; users and rules have version {later.version} now")


def _rate(flag: str, text: str | None) -> int | None:
    size = None if text is None else bytes_of(text)
    if text is not None and size is None:
        raise InvalidArgument(f"{flag} is {text!r}: write a size, such as 10MiB, or 0 for no limit")
    return size


@user.command()
@_NAME
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
@secrets_option
@click.pass_context
def remove(context: click.Context, name: str, secrets: Path | None, yes: bool) -> None:
    """Remove a user with its keys and rules.

    On a terminal, the command asks for confirmation unless --yes is given.

    Example: minimq user remove alice
    """
    from minimq.administration.access_edits import remove_user

    confirm(lambda: f"Remove user {name} with its keys and rules?", yes=yes)
    _change(context, secrets, remove_user(name), f"user {name} removed")


@user.command("list", short_help="List the users with their keys, roles and rules.")
@secrets_option
@output_option
@click.pass_context
def list_users(context: click.Context, secrets: Path | None, output: str) -> None:
    """List the users with their roles and rules, and the ids of their keys; the keys themselves are not stored.

    Example: minimq user list
    """
    from minimq_common.security.access_policy import Policy

    with open_source(context, secrets) as source:
        document = source.read()
    policy, now_ms = Policy(document), time.time_ns() // 1_000_000
    rows: list[Row] = []
    for name, found in sorted(document.users.items()):
        keys: object = [_key_to_json(key_id, key, now_ms) for key_id, key in found.keys.items()]
        lists: tuple[object, object] = (list(found.roles), list(found.rules))
        if output == "table":
            keys = ", ".join(f"{key_id} {key.lifetime(now_ms)}".strip() for key_id, key in found.keys.items()) or None
            lists = (", ".join(found.roles) or None, "; ".join(found.rules) or None)
        refusal = policy.refusal(name, now_ms)
        rows.append(
            {
                "user": name,
                "state": "enabled" if refusal is None else refusal.value,
                "keys": keys,
                "roles": lists[0],
                "rules": lists[1],
                "limits": _limits_of(found, output),
            }
        )
    show(output, _USERS, rows)


def _limits_of(user: User, output: str) -> object:
    from minimq_common.security.access_document import NO_LIMITS, shown_limits

    limits = user.limits or NO_LIMITS
    if output == "table":
        return None if limits == NO_LIMITS else shown_limits(limits)
    return {"in_bytes_per_s": limits.in_bytes_per_s or None, "out_bytes_per_s": limits.out_bytes_per_s or None}


def _change_rules(
    context: click.Context, name: str, secrets: Path | None, rules: list[str], roles: tuple[str, ...], *, remove: bool
) -> None:
    from minimq.administration.access_edits import add_rules, remove_rules

    if not rules and not roles:
        raise InvalidArgument("nothing to change: give --write, --read, --group or another right")
    make: Callable[..., AccessEdit] = remove_rules if remove else add_rules
    with open_source(context, secrets) as source:
        later = source.change(make(name, rules, roles))
    left = later.users[name]
    click.echo(f"user {name}: {'; '.join((*(f'role {role}' for role in left.roles), *left.rules)) or 'no rules'}")
    if not remove:
        _warn(later, name, [*rules, *(rule for role in roles for rule in later.roles.get(role, ()))])


def _warn(document: AccessDocument, name: str, given: Iterable[str]) -> None:
    """Tell which of the rules that a user was given change nothing, since others deny the same."""
    from minimq_common.security.access_policy import Policy, denied_by
    from minimq_common.security.access_rule import parse_rule

    for rule, denial, source in Policy(document).overridden(name, map(parse_rule, given)):
        click.echo(f"warning: '{rule}' changes nothing: {denied_by(name, denial, source)}", err=True)


def _change(context: click.Context, secrets: Path | None, edit: AccessEdit, done: str) -> None:
    with open_source(context, secrets) as source:
        later = source.change(edit)
    click.echo(f"{done}; users and rules have version {later.version} now")


def _issue(
    context: click.Context,
    name: str,
    secrets: Path | None,
    to: Path | None,
    edit: AccessEdit,
    key: IssuedKey,
    *,
    replaces: bool = False,
) -> None:
    """Change the document, and write the credentials, which exist nowhere else; they are made before the change."""
    late: DeadlineExceeded | None = None
    with open_source(context, secrets) as source:
        # Before there is a file: it may be in the folder of the source, which reads all files there.
        text = source.credentials(name, key.key, given_nameservers(context))
        replaces = replaces and to is not None and to.exists()
        if to is not None and replaces:
            text = _replacing(to, name, text, source.read())
        with _written(to, text, replaces=replaces):
            try:
                source.change(edit)
            except DeadlineExceeded as error:  # it is in force, but not everywhere yet
                late = error
    if to is not None:
        click.echo(f"{to}: the credentials of user {name}; keep the file private")
    if late is not None:
        raise late


def _replacing(to: Path, name: str, text: str, document: AccessDocument) -> str:
    """Return the credentials that replace those in a file, whose client certificate stays.

    Raises `InvalidArgument` unless the file has a key of that user: it may be the only copy of another one.
    """
    from minimq_common.security.credentials import Credentials
    from minimq_common.security.credentials_file import CredentialsFile, about_user, written
    from minimq_common.security.user_key import UserKey

    former = CredentialsFile(Credentials(str(to))).stored
    user = document.users.get(name)
    if user is None or not isinstance(former.bearer, UserKey) or former.bearer.id not in user.keys:
        raise InvalidArgument(
            f"cannot replace {to}: it does not hold a valid key of user {name}; give another name, or remove the file "
            "if nobody uses the key in it"
        )
    later = CredentialsFile(Credentials.from_text(text))
    if former.pair is None or later.stored.pair is not None:
        return text
    return written(later.nameservers, replace(later.stored, pair=former.pair), about_user(name))


@contextmanager
def _written(to: Path | None, text: str, *, replaces: bool) -> Iterator[None]:
    """Write credentials to stdout or to a file when the block has ended without an error.

    All but the name of a file is written before the block. Raises `InvalidArgument`.
    """
    from minimq.local.secret_files import files_ready

    if to is None:
        yield
        click.echo(text, nl=False)
        return
    try:
        if not replaces:
            os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with files_ready({to.resolve(): text.encode()}):
                yield
        except BaseException:
            if not replaces:
                to.unlink()
            raise
    except OSError as error:
        reason = error.strerror
        if isinstance(error, FileExistsError):  # and with it perhaps the only copy of a key that is in use
            reason = "the file already exists; give another name, or remove the file if nobody uses the key in it"
        raise InvalidArgument(f"cannot write {to}: {reason}") from None


def _new_key(expires: str | None) -> IssuedKey:
    from minimq.administration.issued_key import issue_key

    seconds = None if expires is None else seconds_of(expires)
    if expires is not None and not seconds:
        raise InvalidArgument(f"--expires is {expires!r}: write a time with a unit, such as 90d")
    return issue_key(seconds)


def _rules(effect: str, given: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the rules of the options of a command."""
    found = [f"{effect} {words} {pattern}" for name, words in _GRANTS.items() for pattern in given[name]]
    return found + [f"{effect} {right}" for right in given["rights"]]


def _key_to_json(key_id: str, key: StoredKey, now_ms: int) -> dict[str, object]:
    times = {"created_at": key.created_ms, "expires_at": key.expires_ms}
    return {
        "id": key_id,
        **{name: moment(ms) if ms else None for name, ms in times.items()},
        "expired": key.is_over(now_ms),
    }
