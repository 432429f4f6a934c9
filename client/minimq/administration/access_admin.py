"""The part of `Admin` that concerns users and rules."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minimq.administration import access_edits as edits
from minimq.administration.access_edits import AccessEdit, edited
from minimq.administration.issued_key import issue_key
from minimq.administration.masters import Masters
from minimq_common.errors import AccessConflict, DeadlineExceeded, InvalidArgument, MiniMQError
from minimq_common.security.access_document import AccessDocument, decode, from_toml
from minimq_common.security.access_policy import AccessDecision, Policy
from minimq_common.security.access_rule import Need, need_of
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials_file import ABOUT_TOKEN, about_user, written
from minimq_common.security.issuer import Issuer
from minimq_common.security.tokens import UserToken
from minimq_common.security.user_key import UserKey
from minimq_proto.v1 import broker_pb2

#: Seconds between checks of servers that do not have the document yet.
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class AccessStatus:
    """The users and rules of one server.

    Attributes:
        server: "broker-a", "broker-a-1" for a slave, or "name server HOST:PORT".
        address: HOST:PORT.
        version: of its document; 0 if it has none, because it was started without a folder with `access.toml`.
        digest: of its document, which distinguishes documents of the same version.
        only_reports: it lets everybody in, and reports what it would refuse (`--access-mode report`).
        error: the reason why it did not answer; None if it did.
    """

    server: str
    address: str
    version: int = 0
    digest: str = ""
    only_reports: bool = False
    error: str | None = None


class AccessAdmin:
    """Manages users and rules; a part of `Admin`."""

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

    def access(self) -> AccessDocument:
        """Return the document of users and rules that is in force. It contains hashes of keys, and no key.

        Raises:
            InvalidArgument: the cluster has no access control.
            AccessDenied: you are not an administrator.
            Unavailable: there is no master.
        """
        return self._read(self._master())

    def change_access(self, edit: AccessEdit, *, wait: bool = True) -> AccessDocument:
        """Change the document of users and rules, and return it.

        Args:
            edit: takes the document and returns the changed one; called again if others change it at the same time.
            wait: return only when it is in force at every server that answers.

        Raises:
            InvalidArgument: the change cannot be made, or the cluster has no access control.
            AccessDenied: you are not an administrator.
            DeadlineExceeded: it is not yet in force at a server. It is in force at the others, and will be there.
            Unavailable: there is no master.
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

    def add_user(
        self, name: str, rules: Iterable[str] = (), roles: Iterable[str] = (), *, lifetime_s: float | None = None
    ) -> str:
        """Add a user, and return the text of its credentials, which are not stored anywhere. Raises as `change_access`.

        Args:
            name: letters, digits, '.', '_' and '-'.
            rules: such as "allow read topic orders*".
            roles: of the document, or "admin".
            lifetime_s: seconds for which the key is good; None forever.
        """
        key = issue_key(lifetime_s)
        text = self.credentials_of(name, key.key)
        self.change_access(edits.add_user(name, key.named, rules, roles))
        return text

    def add_rules(self, name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> None:
        """Add rules and roles to a user; an equal deny is removed by an allow. Raises as `change_access`."""
        self.change_access(edits.add_rules(name, rules, roles))

    def remove_rules(self, name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> None:
        """Remove rules and roles from a user. Raises as `change_access`."""
        self.change_access(edits.remove_rules(name, rules, roles))

    def rotate_key(self, name: str, *, drop_old: bool = False, lifetime_s: float | None = None) -> str:
        """Make a new key for a user, and return the text of the credentials with it. Raises as `change_access`.

        Args:
            name: of the user.
            drop_old: revoke the former keys at once; otherwise they stay valid until `drop_old_keys`.
            lifetime_s: seconds for which the key is good; None forever.
        """
        key = issue_key(lifetime_s)
        text = self.credentials_of(name, key.key)
        self.change_access(edits.add_key(name, key.named, drop_old=drop_old))
        return text

    def drop_old_keys(self, name: str) -> None:
        """Revoke all keys of a user except the latest. Raises as `change_access`."""
        self.change_access(edits.drop_former_keys(name))

    def disable_user(self, name: str) -> None:
        """Lock a user out; its keys and rules are kept. Raises as `change_access`."""
        self.change_access(edits.set_disabled(name, disabled=True))

    def enable_user(self, name: str) -> None:
        """Admit a disabled user again. Raises as `change_access`."""
        self.change_access(edits.set_disabled(name, disabled=False))

    def limit_user(self, name: str, *, in_bytes_per_s: int | None = None, out_bytes_per_s: int | None = None) -> None:
        """Limit the bytes that a user sends to each broker, and reads from each, in a second.

        Raises as `change_access`.

        Args:
            name: of the user.
            in_bytes_per_s: of messages that the user sends; 0 for any number, None leaves the limit as it is.
            out_bytes_per_s: of messages that the user reads, likewise.
        """
        self.change_access(edits.set_limits(name, in_bytes_per_s, out_bytes_per_s))

    def remove_user(self, name: str) -> None:
        """Remove a user with its keys and rules. Raises as `change_access`."""
        self.change_access(edits.remove_user(name))

    def add_issuer(self, name: str, issuer: Issuer, *, replaces: bool = False) -> None:
        """Take the tokens of an identity provider from now on. Raises as `change_access`.

        Args:
            name: of the issuer here; its users are "NAME:USER".
            issuer: what servers take from its tokens.
            replaces: change the issuer of that name, instead of adding one.
        """
        self.change_access(edits.add_issuer(name, issuer, replaces=replaces))

    def remove_issuer(self, name: str) -> None:
        """Take the tokens of an issuer no longer, and remove the rules of its users. Raises as `change_access`."""
        self.change_access(edits.remove_issuer(name))

    def apply_access(self, document: str) -> None:
        """Replace the document by one in TOML with a larger version. Raises as `change_access`."""
        self.change_access(edits.replace_all(from_toml(document.encode())))

    def can(self, user: str, verb: str, resource: str, name: str = "") -> AccessDecision:
        """Return whether a user may do something, and the deciding rule. Raises as `access`.

        Args:
            user: the name.
            verb: such as "read".
            resource: "topic", "group", "transaction" or "cluster".
            name: of the resource; empty for the cluster.
        """
        return Policy(self.access()).answer(user, need_of(verb, resource, name), time.time_ns() // 1_000_000)

    def own_rights(self, needs: Iterable[Need]) -> tuple[str, frozenset[Need]]:
        """Return whose credentials these are, and which of some rights they give.

        A cluster without access control knows no user, "", and allows everything. A broker may know newer rules than
        the name server that answers, for a moment.

        Args:
            needs: the rights, 1,000 at most, such as `need_of("read", "topic", "orders")`.

        Raises:
            InvalidArgument: there are too many rights.
            NotAuthenticated: the key is not in force.
            Unavailable: no name server answers.
        """
        calls, asked = self._masters.calls, list(dict.fromkeys(needs))
        return calls.wait(lambda: calls.nameservers.rights(asked, calls.timeout_s))

    def credentials_of(self, name: str, key: UserKey, nameservers: Sequence[str] = ()) -> str:
        """Return the text of the credentials of a user of this cluster. Raises `InvalidArgument` without TLS.

        Args:
            name: of the user.
            key: of the user.
            nameservers: HOST:PORT of each; by default those of this `Admin`.
        """
        return self._written(key, nameservers, about_user(name))

    def token_credentials(self, token_file: str, nameservers: Sequence[str] = ()) -> str:
        """Return the text of credentials for whoever has a token in a file. They contain nothing secret.

        Args:
            token_file: the path of that file where the credentials are used; it is read again when it changes.
            nameservers: as of `credentials_of`.

        Raises:
            InvalidArgument: this `Admin` has no credentials.
        """
        return self._written(UserToken(token_file, ""), nameservers, ABOUT_TOKEN)

    def _written(self, bearer: UserKey | UserToken, nameservers: Sequence[str], about: str) -> str:
        calls = self._masters.calls
        trust = calls.connection.security.trust()
        if trust is None:
            raise InvalidArgument(
                "no credentials are given: --credentials FILE, or credentials=, names those of an administrator"
            )
        return written(nameservers or calls.nameservers.addresses, Trust(trust.roots, None, bearer), about)

    def access_status(self) -> list[AccessStatus]:
        """Return the version of users and rules in force at each server, sorted: name servers first.

        Raises:
            Unavailable: no name server answers.
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
        except MiniMQError:
            if self._read(master) != later:  # the answer was lost, and the change was not
                raise
        return later

    def _master(self) -> str:
        return min(self._masters.find(to_change=True))

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
