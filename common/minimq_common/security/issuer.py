"""Issuers of tokens: the identity providers that a cluster trusts, and how it reads users and roles from their tokens.

Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from minimq_common.errors import InvalidArgument

#: Users of an issuer are named "issuer:user". Names of other users do not contain it.
SEPARATOR = ":"
#: Characters of such a name.
MAX_TOKEN_USER = 255
#: Issuers in a document; claimed roles of an issuer, and of one token.
MOST_ISSUERS, MOST_CLAIMED = 16, 256

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: Without characters that have a meaning in rules, logs or terminals, like `_FILE`.
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}:[A-Za-z0-9][A-Za-z0-9._:@/|+=-]*")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TEXT = re.compile(r"[!-~]{1,1000}")
_CLAIM = re.compile(r"[!-~]{1,200}")


class Issuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An identity provider that signs tokens."""

    #: The claim `iss` of its tokens, usually a URL, and the claim `aud` of tokens for this cluster.
    issuer: str
    audience: str
    #: Its public keys: a URL, or the name of a file in the folder of secrets of each server.
    jwks: str
    #: A file in that folder with CA certificates for the URL; empty to use those of the system.
    ca: str = ""
    user_claim: str = "sub"
    #: Every value of `user_claim` must start with this; it is removed from the name of the user.
    user_prefix: str = ""
    #: Roles of all its users.
    roles: tuple[str, ...] = ()
    #: The claim, a text or a list of texts, that `claimed_roles` maps to roles; empty for none.
    role_claim: str = ""
    claimed_roles: dict[str, str] = {}

    def reads_as(self, former: Issuer) -> bool:
        """Return whether a token verified for a former version of this issuer is still valid; roles may differ."""
        is_known = self.claimed_roles.keys() <= former.claimed_roles.keys()
        return (
            is_known and msgspec.structs.replace(self, roles=former.roles, claimed_roles=former.claimed_roles) == former
        )

    def granted(self, claimed: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the roles of a user whose token has the values `claimed` in `role_claim`."""
        mapped = (self.claimed_roles[value] for value in claimed if value in self.claimed_roles)
        return tuple(dict.fromkeys((*self.roles, *mapped)))


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The result of a verified token. Contains no secrets."""

    issuer_name: str
    issuer: Issuer
    user: str
    #: Milliseconds since 1970 at which the token expires.
    expires_ms: int
    claimed: tuple[str, ...]
    key_print: str


def issuer_of(user: str) -> str:
    """Return the name of the issuer of a user; empty for a user with keys."""
    name, separator, _ = user.partition(SEPARATOR)
    return name if separator else ""


def is_token_user(name: str) -> bool:
    return len(name) <= MAX_TOKEN_USER and _USER.fullmatch(name) is not None


def user_in(claims: dict[str, Any], name: str, issuer: Issuer) -> str:
    """Return the name of the user from the claims of a token. Raises `InvalidArgument`."""
    subject = claims.get(issuer.user_claim)
    where = f"the claim {issuer.user_claim!r}"
    if not isinstance(subject, str) or not subject.startswith(issuer.user_prefix):
        wanted = f"a text that begins with {issuer.user_prefix!r}" if issuer.user_prefix else "a text"
        raise InvalidArgument(f"{where} of a token of issuer {name} has to be {wanted}")
    user = f"{name}{SEPARATOR}{subject.removeprefix(issuer.user_prefix)}"
    if not is_token_user(user):
        raise InvalidArgument(
            f"{where} of a token of issuer {name} names no user: it has to begin with a letter or a digit, and to "
            f"consist of letters, digits and . _ - : @ / | + =, with the name of the issuer {MAX_TOKEN_USER} at most"
        )
    return user


def claimed_in(claims: dict[str, Any], issuer: Issuer) -> tuple[str, ...]:
    """Return the values of `role_claim` in a token that are mapped to roles; at most `MOST_CLAIMED`."""
    found = claims.get(issuer.role_claim) if issuer.role_claim else None
    values = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    known = (value for value in values if isinstance(value, str) and value in issuer.claimed_roles)
    return tuple(dict.fromkeys(known))[:MOST_CLAIMED]


def check_issuers(issuers: dict[str, Issuer], roles: Collection[str]) -> None:
    """Raise `InvalidArgument` unless the issuers of a document with these roles are valid."""
    if len(issuers) > MOST_ISSUERS:
        raise InvalidArgument(f"the document has {len(issuers)} issuers: the limit is {MOST_ISSUERS}")
    names: dict[str, str] = {}
    for name, issuer in issuers.items():
        if not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"{name!r} is no name for an issuer: use letters, digits, '.', '_' and '-', 63 at most"
            )
        _check_texts(name, issuer)
        _check_keys(name, issuer)
        for role in (*issuer.roles, *issuer.claimed_roles.values()):
            if role not in roles:
                raise InvalidArgument(f"issuer {name} has the role {role!r}, which the document does not have")
        if (other := names.setdefault(issuer.issuer, name)) != name:
            raise InvalidArgument(f"the issuers {other} and {name} are the same, {issuer.issuer!r}: remove one")


def is_url(jwks: str) -> bool:
    """Return whether `jwks` is a URL, and not a file."""
    return "://" in jwks


def _check_texts(name: str, issuer: Issuer) -> None:
    texts = {"issuer": issuer.issuer, "audience": issuer.audience, "user_claim": issuer.user_claim}
    texts |= {"user_prefix": issuer.user_prefix} if issuer.user_prefix else {}
    texts |= {"role_claim": issuer.role_claim} if issuer.role_claim else {}
    for field, text in texts.items():
        if not (_CLAIM if "claim" in field else _TEXT).fullmatch(text):
            raise InvalidArgument(f"issuer {name} has an invalid {field}: it is a text without spaces, and not empty")
    if len(issuer.claimed_roles) > MOST_CLAIMED:
        raise InvalidArgument(
            f"issuer {name} has {len(issuer.claimed_roles)} claimed roles: the limit is {MOST_CLAIMED}"
        )
    if issuer.claimed_roles and not issuer.role_claim:
        raise InvalidArgument(f"issuer {name} has claimed_roles: give the claim with their names as role_claim, too")
    if not all(0 < len(value) <= 1_000 and value.isprintable() for value in issuer.claimed_roles):
        raise InvalidArgument(f"issuer {name} has claimed_roles for a text that is empty, too long or not printable")


def _check_keys(name: str, issuer: Issuer) -> None:
    if not is_url(issuer.jwks):
        if not _FILE.fullmatch(issuer.jwks):
            raise InvalidArgument(
                f"issuer {name} has the jwks {issuer.jwks!r}: give an https:// URL, or the name of a file in the "
                "folder of secrets of each server, such as jwks.json"
            )
        if issuer.ca:
            raise InvalidArgument(f"issuer {name} has a ca, and its jwks is a file: a ca is for a URL")
        return
    if issuer.ca and not _FILE.fullmatch(issuer.ca):
        raise InvalidArgument(
            f"issuer {name} has the ca {issuer.ca!r}: give the name of a file in the folder of secrets of each server"
        )
    if not _TEXT.fullmatch(issuer.jwks) or not _may_be_fetched(issuer.jwks):
        raise InvalidArgument(
            f"issuer {name} has a jwks that is no https:// URL with a host, and without a user and a password; "
            "http:// may be used for this machine only"
        )


def _may_be_fetched(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is invalid
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts))


def _is_loopback(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
