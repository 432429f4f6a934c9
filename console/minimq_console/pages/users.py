"""Users, roles and rules, and the servers at which they are in force. No key, and no hash of one, is shown."""

from __future__ import annotations

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import User
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of


class UserKeyRow(msgspec.Struct, frozen=True):
    """One key of a user."""

    key_id: str
    #: Until when it is good, in words; empty for one that does not expire.
    lifetime: str


class UserRow(msgspec.Struct, frozen=True):
    """One user."""

    user: str
    disabled: bool
    roles: tuple[str, ...]
    rules: tuple[str, ...]
    keys: tuple[UserKeyRow, ...]
    #: Bytes that the user may send in a second at each broker; 0 for any number.
    in_bytes_per_s: int
    #: Bytes that the user may read; likewise.
    out_bytes_per_s: int


class RoleRow(msgspec.Struct, frozen=True):
    """One role: its name and its rules."""

    role: str
    rules: tuple[str, ...]


class ServerAccessRow(msgspec.Struct, frozen=True):
    """The users and rules of one server."""

    server: str
    address: str
    #: Of its document; 0 if it has none.
    version: int
    only_reports: bool
    is_current: bool
    #: Why it did not answer; None if it did.
    error: str | None


class UsersPage(PageData, frozen=True, kw_only=True):
    """Users, roles and rules."""

    #: Of the document; None if the cluster has no access control.
    version: int | None
    search: str
    part: TablePart
    users: tuple[UserRow, ...]
    roles: tuple[RoleRow, ...]
    servers: tuple[ServerAccessRow, ...]


def gather(visit: Visit) -> UsersPage:
    """Return the document that is in force, and where."""
    admin, search, bounds = visit.observer.admin, visit.parameters.text("search"), visit.parameters.rows()
    asked, status = visit.ask("users and rules", admin.access), visit.ask("the servers", admin.access_status)
    try:
        document = asked.required()
    except InvalidArgument:  # the cluster lets everybody in
        document = None
    now_ms = int(visit.now.timestamp() * 1000)
    users = sorted(document.users.items()) if document is not None else []
    shown, part = part_of([(name, user) for name, user in users if search.lower() in name.lower()], bounds)
    version = document.version if document is not None else 0
    return UsersPage(
        version=document.version if document is not None else None,
        search=search,
        part=part,
        users=tuple(_row(name, user, now_ms) for name, user in shown),
        roles=tuple(RoleRow(*each) for each in sorted(document.roles.items())) if document is not None else (),
        servers=tuple(
            ServerAccessRow(
                each.server, each.address, each.version, each.only_reports, each.version == version, each.error
            )
            for each in status.or_else([])
        ),
        missing=visit.missing,
    )


def _row(name: str, user: User, now_ms: int) -> UserRow:
    limits = user.limits
    return UserRow(
        user=name,
        disabled=user.disabled,
        roles=user.roles,
        rules=user.rules,
        keys=tuple(UserKeyRow(key_id, key.lifetime(now_ms)) for key_id, key in user.keys.items()),
        in_bytes_per_s=0 if limits is msgspec.UNSET else limits.in_bytes_per_s,
        out_bytes_per_s=0 if limits is msgspec.UNSET else limits.out_bytes_per_s,
    )


PAGE = Page(path="/users", template="users.html", gather=gather, title="Users and rules", label="Users", live_s=5.0)
