"""Operations that show the document of users and rules; the common parts of all its changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from minimq.admin.operation import Arguments, Operation, Operations, Param, method
from minimq.admin.views import Plan, Rows, Table, View, columns
from minimq_common.errors import AccessConflict, DeadlineExceeded, InvalidArgument, MinimqError
from minimq_common.security.access_document import AccessDocument, User, changes, decode, to_toml
from minimq_common.security.access_policy import AccessDecision, Policy
from minimq_common.security.access_rule import Need, Resource, Verb, need_of
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials_file import about_user, written
from minimq_common.security.user_key import UserKey
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:
    from minimq.admin.admin import Admin

#: Takes a document, and returns the changed one.
AccessEdit = Callable[[AccessDocument], AccessDocument]

#: Seconds between checks of servers that do not have the document yet.
_LOOK_AGAIN_S = 0.02
#: Digits of a digest in a table.
_SHOWN = 12
MANAGE_ACCESS = Need(Verb.ACCESS, Resource.CLUSTER)

_USERS = Table("no users", columns("user state keys roles rules"))
_SERVERS = Table("no server", columns("server address version mode digest error", error="Not answering"))


@dataclass(frozen=True, slots=True)
class AccessStatus:
    """The users and rules of one server."""

    #: "broker-a", "broker-a-1" for a slave, or "name server HOST:PORT".
    server: str
    address: str
    #: Version of its document; 0 if it was started without a folder with `access.toml`.
    version: int = 0
    digest: str = ""
    #: It rejects nothing, and reports what it would reject (`--access-mode report`).
    only_reports: bool = False
    error: str | None = None


def edited(document: AccessDocument, edit: AccessEdit) -> AccessDocument:
    """Return the changed document with the next version, checked like a document from a file."""
    changed = edit(document)
    later = decode(msgspec.structs.replace(changed, version=max(changed.version, document.version + 1)).encoded())
    if _has_administrator(document) and not _has_administrator(later):
        raise InvalidArgument(
            "no user would be left with the right to change users and rules: give another user the role admin first "
            "(`minimq user allow NAME --role admin`)"
        )
    return later


def _has_administrator(document: AccessDocument) -> bool:
    policy = Policy(document)
    return any(policy.decide(name, MANAGE_ACCESS).allowed for name in document.users)


@dataclass(frozen=True)
class AccessChange(Operation):
    """A change of the document; its plan comes from a rehearsal on a copy."""

    has_folder: bool = True
    needs: Callable[[Arguments], Sequence[Need]] | None = lambda _given: (MANAGE_ACCESS,)
    plan: Callable[[Admin, Arguments], Plan] | None = lambda *_: Plan(sentences=())
    #: Returns whether users lose a right or a key; ignored without `asks`.
    loses: Callable[[Arguments], bool] = lambda _given: True

    def planned(self, admin: Admin, given: Arguments) -> Plan:
        """Return what it would change. Raises `MinimqError`."""
        from minimq.admin.users import Rehearsal  # that module imports this one

        former = admin.access()
        rehearsal: Any = Rehearsal(former)
        self.run(rehearsal, Arguments(**vars(given)))
        told = [f"planned: {each}" for each in changes(former, rehearsal.access())]
        is_loss = bool(told and self.asks and self.loses(given))
        told += ["Clients that lose a right or a key fail at once."] if is_loss else []
        return Plan(sentences=told or ["Nothing changes."], is_harmless=not is_loss)


def said(text: str) -> Callable[[Admin, Arguments, AccessDocument, Plan | None], View]:
    """Return a view that formats `text` with the name of a user."""

    def view(_admin: Admin, given: Arguments, later: AccessDocument, _plan: Plan | None) -> View:
        done = text.format(given.name)
        return View(
            json={"name": given.name, "version": later.version},
            lines=[f"{done}; users and rules have version {later.version} now"],
        )

    return view


# ---- Results ----------------------------------------------------------------------------------------


def _view_users(_admin: Admin, _given: Arguments, document: AccessDocument, _plan: Plan | None) -> View:
    policy, now_ms = Policy(document), time.time_ns() // 1_000_000
    rows, shown = [], []
    for name, user in sorted(document.users.items()):
        rejection = policy.rejection(name, now_ms)
        row = {"user": name, "state": "enabled" if rejection is None else rejection.value}
        rows.append({**row, **_user_row(user, now_ms)})
        keys = ", ".join(f"{key_id} {key.lifetime(now_ms)}".strip() for key_id, key in user.keys.items())
        lists = {"keys": keys, "roles": ", ".join(user.roles), "rules": "; ".join(user.rules)}
        shown.append({**row, **{key: text or None for key, text in lists.items()}})
    return View(json=rows, lines=[Rows(_USERS, shown)])


def _user_row(user: User, now_ms: int) -> dict[str, object]:
    from minimq_common.timestamps import moment

    keys = [
        {
            "id": key_id,
            "created_at": moment(key.created_ms) if key.created_ms else None,
            "expires_at": moment(key.expires_ms) if key.expires_ms else None,
            "expired": key.is_over(now_ms),
        }
        for key_id, key in user.keys.items()
    ]
    return {"keys": keys, "roles": list(user.roles), "rules": list(user.rules)}


def _view_document(_admin: Admin, _given: Arguments, document: AccessDocument, _plan: Plan | None) -> View:
    return View(
        json={**msgspec.to_builtins(document), "digest": document.digest},
        lines=[to_toml(document, time.time_ns() // 1_000_000).removesuffix("\n")],
    )


def _view_status(_admin: Admin, _given: Arguments, found: list[AccessStatus], _plan: Plan | None) -> View:
    rows: list[dict[str, Any]] = [
        {
            "server": each.server,
            "address": each.address,
            "version": each.version or None,
            "mode": ("report" if each.only_reports else "enforce") if each.version else None,
            "digest": each.digest or None,
            "error": each.error,
        }
        for each in found
    ]
    versions = {(each.version, each.digest) for each in found if each.error is None}
    has_failed = any(each.error for each in found)
    notes = []
    if len(versions) > 1:
        remedy = (
            "two documents have the same version: apply one with a larger version by `minimq access apply FILE`"
            if len({version for version, _ in versions}) == 1
            else "servers with an older document, or none, follow within seconds if they have a folder with "
            "access.toml and reach a name server"
        )
        notes.append(f"warning: not all servers have the same users and rules: {remedy}")
    if any(each.only_reports for each in found):
        notes.append("warning: some servers do not enforce the rules: start them without --access-mode report")
    shown = [{**row, "digest": (row["digest"] or "")[:_SHOWN]} for row in rows]
    return View(
        json=rows,
        lines=[Rows(_SERVERS, shown, frozenset() if has_failed else frozenset({"error"}))],
        notes=notes,
        is_complete=len(versions) == 1 and not has_failed and (0, "") not in versions,
    )


def _view_decision(_admin: Admin, _given: Arguments, decision: AccessDecision, _plan: Plan | None) -> View:
    return View(
        json={"allowed": decision.allowed, "reason": decision.reason},
        lines=[f"{'yes' if decision.allowed else 'no'}: {decision.reason}"],
        is_complete=decision.allowed,
    )


def _view_text(_admin: Admin, _given: Arguments, text: str, _plan: Plan | None) -> View:
    return View(json={"credentials": text}, lines=[text.removesuffix("\n")])


# ---- Operations -------------------------------------------------------------------------------------


class AccessOperations(Operations):
    """Stores and reads the document of users and rules in a cluster; a part of `Admin`. See also `AccessFolder`."""

    @Operation(
        "user list",
        reads=True,
        view=_view_users,
        has_folder=True,
        text="List the users with their keys, roles and rules. Keys are shown by their ids; they are not stored.",
    )
    @Operation(
        "access describe",
        reads=True,
        example="access describe > access.toml",
        view=_view_document,
        has_folder=True,
        text="Show the whole document, as `minimq access apply` takes it. It contains hashes of keys, and no key.",
    )
    def access(self) -> AccessDocument:
        """Return the document of users and rules that is in force. It contains hashes of keys, and no key."""
        return self._read(self._master())

    @method
    def change_access(self, edit: AccessEdit, *, wait: bool = True) -> AccessDocument:
        """Change the document of users and rules, and return it.

        Args:
            edit: takes the document and returns the changed one; called again if others change it at the same time.
            wait: return only when it is in force at every server that answers.

        Raises:
            InvalidArgument: the change cannot be made, or the cluster has no access control.
            DeadlineExceeded: a server has not applied it yet, but will. It is in force at the others.
        """
        give_up = time.monotonic() + self._masters.calls.timeout_s
        while True:
            try:
                later = self._change(edit)
            except AccessConflict:
                if time.monotonic() >= give_up:
                    raise
                continue
            if wait:
                self._wait_until_in_force(later, give_up)
            return later

    @Operation("can", reads=True, example="can alice write topic orders", view=_view_decision, has_folder=True)
    def can(
        self,
        user: Annotated[str, Param(complete="users")],
        verb: str,
        resource: str,
        name: Annotated[str, Param(is_argument=True)] = "",
    ) -> AccessDecision:
        """Show whether a USER may do something, and by which rule.

        The exit status is 0 for yes, 1 for no.

        RESOURCE is topic (VERB: write, read, manage, describe), group (read, manage, describe), transaction (write,
        describe), or cluster (describe, manage, backup, access), which has no NAME.

        Args:
            user: the name.
            verb: such as "read".
            resource: "topic", "group", "transaction" or "cluster".
            name: of the resource; empty for the cluster.
        """
        need = need_of(verb, resource, name)
        return Policy(self.access()).answer(user, need, time.time_ns() // 1_000_000)

    @method
    def own_rights(self, needs: Iterable[Need]) -> tuple[str, frozenset[Need]]:
        """Return the user of these credentials, and which of some rights the user has.

        Without access control the user is "", and has all rights. For a moment, a broker may have newer rules than the
        name server that answers.

        Args:
            needs: the rights, 1,000 at most, such as `need_of("read", "topic", "orders")`.

        Raises:
            NotAuthenticated: the key is not in force.
        """
        calls, asked = self._masters.calls, list(dict.fromkeys(needs))
        return calls.wait(lambda: calls.nameservers.rights(asked, calls.timeout_s))

    @method
    def credentials_of(self, name: str, key: UserKey, nameservers: Sequence[str] = ()) -> str:
        """Return the text of the credentials of a user of this cluster. Raises `InvalidArgument` without TLS.

        Args:
            name: of the user.
            key: of the user.
            nameservers: HOST:PORT of each; by default those of this `Admin`.
        """
        calls = self._masters.calls
        trust = calls.connection.security.trust()
        if trust is None:
            raise InvalidArgument(
                "no credentials are given: --credentials FILE, or credentials=, names those of an administrator"
            )
        addresses = nameservers or calls.nameservers.addresses
        return written(addresses, Trust(trust.roots, None, key), about_user(name))

    @Operation("access status", reads=True, view=_view_status)
    def access_status(self) -> list[AccessStatus]:
        """Show the version of users and rules in force at each server.

        Name servers come first. The exit status is 1 if a server does not answer, has none, or differs from the others.
        """
        calls = self._masters.calls
        replicas = {
            (broker.broker_name, broker_id): address
            for broker in self._masters.brokers()
            for broker_id, address in broker.addresses.items()
        }
        found = [
            AccessStatus(f"name server {address}", address, *said) if isinstance(said, tuple)
            else AccessStatus(f"name server {address}", address, error=said.message)
            for address, said in calls.wait(calls.nameservers.access).items()
        ]  # fmt: skip
        answers, failures = calls.call_all(replicas, lambda stub: stub.GetStatus, broker_pb2.GetStatusRequest())
        for (name, broker_id), address in sorted(replicas.items()):
            server = f"{name}-{broker_id}" if broker_id else name
            answer = answers.get((name, broker_id))
            if answer is None:
                found.append(AccessStatus(server, address, error=failures[name, broker_id].message))
            else:
                rank = answer.access_version, answer.access_digest
                found.append(AccessStatus(server, address, *rank, only_reports=answer.access_only_reports))
        return found

    def _change(self, edit: AccessEdit) -> AccessDocument:
        master = self._master()
        former = self._read(master)
        later = edited(former, edit)
        request = broker_pb2.SetAccessRequest(expected_version=former.version, document=later.encoded())
        try:
            self._masters.call(master, lambda stub: stub.SetAccess, request)
        except InvalidArgument:
            raise
        except MinimqError:
            if self._read(master) != later:  # else only the response was lost
                raise
        return later

    def _master(self) -> str:
        return min(self._masters.find())

    def _read(self, master: str) -> AccessDocument:
        answer = self._masters.call(master, lambda stub: stub.GetAccess, broker_pb2.GetAccessRequest())
        return decode(answer.document)

    def _wait_until_in_force(self, document: AccessDocument, give_up: float) -> None:
        while True:
            behind = [each for each in self.access_status() if each.error is None and each.version < document.version]
            if not behind:
                return
            if time.monotonic() >= give_up:
                names = ", ".join(each.server for each in behind)
                raise DeadlineExceeded(
                    f"users and rules of version {document.version} are not in force yet at {names}: see "
                    "`minimq access status`"
                )
            time.sleep(_LOOK_AGAIN_S)
