"""The check of one token: its form, its signature and its claims.

Pure: time is an argument. PyJWT is imported by who has an issuer.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.security.issuer import Issuer, VerifiedToken, claimed_in, user_in
from minimq_common.security.token_keys import ALGORITHMS, MAX_KEY_ID, TokenKey

#: Letters of the longest token. A server takes 8 KiB of headers with a call.
MAX_TOKEN = 6_000
#: A clock of the issuer may be ahead by as much.
_AHEAD_MS = 60_000
_LATEST_S = 1 << 40

_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")

_WHAT = "the token in these credentials"


class RefusedToken(Exception):
    """A token that is not taken."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


class _Header(msgspec.Struct):
    alg: str
    kid: str
    crit: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Claims(msgspec.Struct):
    iss: str


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """The unverified word of a token about itself."""

    issuer: str
    key_id: str


def has_form(text: str) -> bool:
    """Return whether a text may be a token, by its form."""
    return len(text) <= MAX_TOKEN and _FORM.fullmatch(text) is not None


def claim_of(text: str) -> TokenClaim:
    """Return what a token says of itself. Raises `RefusedToken`."""
    header, claims, _ = text.split(".", 2)
    try:
        head = msgspec.json.decode(_decoded(header), type=_Header)
        said = msgspec.json.decode(_decoded(claims), type=_Claims)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise RefusedToken(
            "token-malformed", f"{_WHAT} is damaged, or has no alg, kid and iss, which are needed"
        ) from None
    if head.crit is not msgspec.UNSET:
        raise RefusedToken("token-malformed", f"{_WHAT} has critical headers (crit), which nothing here knows")
    if head.alg not in ALGORITHMS:
        raise RefusedToken("token-algorithm", f"{_WHAT} has to be signed by {', '.join(ALGORITHMS)}")
    if not 0 < len(head.kid) <= MAX_KEY_ID:
        raise RefusedToken("token-malformed", f"{_WHAT} has a kid that is empty, or over {MAX_KEY_ID} letters long")
    return TokenClaim(said.iss, head.kid)


def verify(text: str, name: str, issuer: Issuer, key: TokenKey, now_ms: int) -> VerifiedToken:
    """Return a token that is right."""
    claims = _verified(text, name, issuer, key)
    expires_ms = _time(claims.get("exp"))
    if expires_ms is None:
        raise RefusedToken("token-malformed", f"{_WHAT} has no time at which it expires (exp)")
    if expires_ms <= now_ms:
        raise RefusedToken(
            "token-expired",
            f"{_WHAT} has expired: whoever writes it has to renew it in time, as Kubernetes does, and the clocks have "
            "to be right",
        )
    begins_ms = _time(claims.get("nbf", 0))
    if begins_ms is None or begins_ms > now_ms + _AHEAD_MS:
        raise RefusedToken("token-early", f"{_WHAT} is not valid yet (nbf): compare the clocks of both machines")
    try:
        user = user_in(claims, name, issuer)
    except InvalidArgument as error:
        raise RefusedToken("token-user", error.message) from None
    return VerifiedToken(name, issuer, user, expires_ms, claimed_in(claims, issuer), key.print)


def _verified(text: str, name: str, issuer: Issuer, key: TokenKey) -> dict[str, Any]:
    import jwt  # for who has an issuer

    later: Any = {"require": ["exp", "iss", "aud"], **dict.fromkeys((f"verify_{each}" for each in _OTHERS), False)}
    try:
        return jwt.decode(text, key.jwk, [key.algorithm], later, audience=issuer.audience, issuer=issuer.issuer)
    except jwt.MissingRequiredClaimError as error:
        reason = "token-audience" if error.claim == "aud" else "token-malformed"
        raise RefusedToken(reason, f"{_WHAT} has no {error.claim}, which issuer {name} has to write into it") from None
    except jwt.InvalidAudienceError:
        raise RefusedToken(
            "token-audience",
            f"{_WHAT} is not for this cluster: issuer {name} has to write the audience {issuer.audience!r} into it",
        ) from None
    except jwt.InvalidAlgorithmError:
        raise RefusedToken(
            "token-algorithm", f"{_WHAT} has another algorithm than the key of its issuer that it names"
        ) from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        raise RefusedToken("token-signature", f"{_WHAT} was not signed by the issuer that it names") from None


#: Claims that are looked at here, by the clock of who asks, or not at all.
_OTHERS = ("exp", "nbf", "iat", "sub", "jti")


def _time(seconds: object) -> int | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LATEST_S:
        return None  # also for what is no number
    return int(seconds * 1000)


def _decoded(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


@dataclass(frozen=True, slots=True)
class UserToken:
    """A token, as its user has it. No `repr` shows it."""

    #: Of the file that it is in; another one takes its place there before it expires.
    path: str
    text: str = field(repr=False)


def parse_token(data: bytes, path: str) -> UserToken:
    """Return the token in a file. Raises `InvalidArgument`, without quoting it."""
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not has_form(text):
        raise InvalidArgument(
            f"{path} has no token: a token is three parts of letters and digits with dots between them (JWT), and has "
            f"at most {MAX_TOKEN:,} letters"
        )
    return UserToken(path, text)
