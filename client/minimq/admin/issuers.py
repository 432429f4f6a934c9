"""Operations on the issuers of tokens, and on the document of users and rules as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET
from msgspec.structs import replace

from minimq.admin.access import AccessChange, AccessOperations, said
from minimq.admin.operation import REQUIRED, Given, Operation, Param, text_option
from minimq.admin.views import Plan, Rows, Table, View, columns
from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, from_toml
from minimq_common.security.issuer import Issuer, issuer_of
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin.admin import Admin

NO_ISSUER = "there is no issuer {0}: `minimq access issuer list` lists all, `minimq access issuer add` adds one"

_ISSUERS = Table(
    "no issuers",
    columns(
        "name issuer audience jwks user_claim roles claimed_roles",
        jwks="Keys",
        user_claim="User",
        claimed_roles="Roles by claim",
    ),
)


def _issuer(*, claimed_roles: Sequence[str], **given: Any) -> Issuer:
    pairs = [each.rpartition("=") for each in claimed_roles]
    if any(not (value and separator and role) for value, separator, role in pairs):
        raise InvalidArgument("--claimed-role takes VALUE=ROLE, such as --claimed-role team-orders=writers")
    return Issuer(**given, claimed_roles={value: role for value, _, role in pairs})


_ISSUER = Param(
    is_option=True,
    made=_issuer,
    options=(
        text_option("issuer", "TEXT", "The claim iss of its tokens, usually a URL.", REQUIRED),
        text_option("audience", "TEXT", "The claim aud of tokens for this cluster, such as minimq.", REQUIRED),
        text_option(
            "jwks",
            "URL|FILE",
            "Its public keys: an https:// URL, or the name of a file in the folder --secrets of each server.",
            REQUIRED,
        ),
        text_option("ca", "FILE", "A file in that folder with the CA of the URL; by default the CAs of the system."),
        text_option("user_claim", "CLAIM", "The claim that names the user.", "sub"),
        text_option("user_prefix", "TEXT", "A prefix of these names, which is removed."),
        text_option("roles", "ROLE", "A role of all its users.", (), "--role"),
        text_option("role_claim", "CLAIM", "The claim whose values stand for roles, such as groups."),
        replaced(
            text_option(
                "claimed_roles",
                "VALUE=ROLE",
                "A value of that claim, and the role that it stands for.",
                (),
                "--claimed-role",
            ),
            kind=dict,  # in the JSON API
        ),
    ),
)


def _view_issuers(_admin: Admin, _given: Given, issuers: dict[str, Issuer], _plan: Plan | None) -> View:
    rows: list[dict[str, Any]] = []
    shown = []
    for name, issuer in issuers.items():
        texts = {field: getattr(issuer, field) for field in ("issuer", "audience", "jwks", "user_claim")}
        more = {field: getattr(issuer, field) or None for field in ("user_prefix", "role_claim", "ca")}
        row = {"name": name, **texts, "roles": list(issuer.roles), "claimed_roles": issuer.claimed_roles}
        rows.append({**row, **more})
        claimed = ", ".join(f"{issuer.role_claim} {value}: {role}" for value, role in issuer.claimed_roles.items())
        after = f" after {issuer.user_prefix}" if issuer.user_prefix else ""
        shown.append({**row, "user_claim": f"{issuer.user_claim}{after}", "claimed_roles": claimed or None})
    return View(json=rows, lines=[Rows(_ISSUERS, shown)])


def _view_applied(_admin: Admin, _given: Given, later: AccessDocument, _plan: Plan | None) -> View:
    users = count_of(len(later.users), "user")
    return View(
        json={"version": later.version, "users": len(later.users)},
        lines=[f"version {later.version} with {users} is in force"],
    )


class IssuerOperations(AccessOperations):
    """Lists and changes the issuers of tokens; a part of `Admin`."""

    @Operation("access issuer list", reads=True, view=_view_issuers, has_folder=True)
    def issuers(self) -> dict[str, Issuer]:
        """List the identity providers whose tokens are accepted. Raises as `access`."""
        return dict(sorted(self.access().known_issuers.items()))

    @AccessChange(
        "access issuer add",
        example="access issuer add k8s --issuer https://kubernetes.default.svc.cluster.local --audience minimq "
        "--jwks jwks.json --user-prefix system:serviceaccount:",
        view=said("issuer {0}: its users are {0}:USER"),
    )
    def add_issuer(
        self,
        name: str,
        issuer: Annotated[Issuer, _ISSUER],
        *,
        replaces: Annotated[bool, Param(flag="--replace")] = False,
    ) -> AccessDocument:
        """Accept the tokens of an identity provider.

        Its users are then called NAME:USER. They have only the rights of the given roles; `minimq user allow NAME:USER`
        grants more. Servers need `minimq[secure]`.

        Args:
            name: of the issuer here; its users are "NAME:USER".
            issuer: how servers verify and read its tokens.
            replaces: change the issuer of this name; its users keep their rules.
        """

        def edit(document: AccessDocument) -> AccessDocument:
            former = document.known_issuers
            if replaces and name not in former:
                raise InvalidArgument(NO_ISSUER.format(name))
            if not replaces and name in former:
                raise InvalidArgument(f"issuer {name} exists already: add it with --replace to change it")
            return replace(document, issuers={**former, name: issuer})

        return self.change_access(edit)

    @AccessChange(
        "access issuer delete",
        example="access issuer delete k8s",
        view=said("issuer {} deleted"),
        asks="Delete issuer {name} with the rules of its users?",
    )
    def delete_issuer(self, name: Annotated[str, Param(help="name of the issuer")]) -> AccessDocument:
        """Delete an issuer, and the rules of its users. Raises as `change_access`."""

        def edit(document: AccessDocument) -> AccessDocument:
            if name not in document.known_issuers:
                raise InvalidArgument(NO_ISSUER.format(name))
            issuers = {other: issuer for other, issuer in document.known_issuers.items() if other != name}
            users = {other: user for other, user in document.users.items() if issuer_of(other) != name}
            return replace(document, users=users, issuers=issuers or UNSET)

        return self.change_access(edit)

    @AccessChange(
        "access apply", example="access apply access.toml", view=_view_applied, asks="Replace all users and rules?"
    )
    def apply_access(self, document: Annotated[str, Param(metavar="FILE", is_file=True)]) -> AccessDocument:
        """Replace the document by that in FILE. Its version must be larger.

        Args:
            document: the new one, in TOML.
        """
        later = from_toml(document.encode())

        def edit(former: AccessDocument) -> AccessDocument:
            if later.version <= former.version:
                raise InvalidArgument(
                    f"the document has version {later.version}, and the cluster has {former.version}: give it a larger "
                    f"version, such as {former.version + 1}"
                )
            return later

        return self.change_access(edit)
