"""Parses the public keys of an issuer (a JSON Web Key Set), and verifies tokens: format, signature and claims.

Pure: time is an argument. Imports PyJWT and `cryptography` (the extra `minimq[secure]`) only if there is an issuer.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.security.issuer import Issuer, VerifiedToken, claimed_in, user_in

#: Bytes of a key set, keys in it, and characters of a key id.
MAX_SET_BYTES, MOST_KEYS, MAX_KEY_ID = 64 << 10, 64, 256

#: The signature algorithm by type and curve of the key. Excludes weak algorithms and those with a shared secret.
_ALGORITHMS = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
ALGORITHMS = tuple(_ALGORITHMS.values())
#: Bits of an RSA key, and the limit of its exponent: larger ones make verification slow.
_RSA_BITS, _RSA_EXPONENT = range(2048, 8193), 1 << 32


class _Json(msgspec.Struct):
    """The fields of a JSON Web Key that are used or checked."""

    kty: str
    kid: str = ""
    alg: str = ""
    use: str = "sig"
    key_ops: tuple[str, ...] = ("verify",)
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    d: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # only in a private key


class _JsonSet(msgspec.Struct):
    keys: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class TokenKey:
    id: str
    algorithm: str
    print: str
    jwk: Any = field(repr=False)


TokenKeys = Mapping[str, TokenKey]


def parse_keys(data: bytes) -> TokenKeys:
    """Return the keys of a set that can verify tokens, by id. Raises `InvalidArgument`."""
    if len(data) > MAX_SET_BYTES:
        raise InvalidArgument(f"it has over {MAX_SET_BYTES} bytes")
    try:
        listed = msgspec.json.decode(data, type=_JsonSet).keys
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidArgument('it is no JSON Web Key Set, {"keys": [...]}') from None
    if len(listed) > MOST_KEYS:
        raise InvalidArgument(f"it has {len(listed)} keys: the limit is {MOST_KEYS}")
    found: dict[str, TokenKey] = {}
    for key in filter(None, map(_parse, listed)):
        if key.id in found:
            raise InvalidArgument(f"two of its keys have the id {key.id!r}")
        found[key.id] = key
    if not found:
        raise InvalidArgument(
            "it has no key with an id (kid) for signatures by RS256 of 2048 bits or more, ES256 or EdDSA (Ed25519)"
        )
    return found


def _parse(data: msgspec.Raw) -> TokenKey | None:
    try:
        found = msgspec.json.decode(data, type=_Json)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if found.d is not msgspec.UNSET:
        raise InvalidArgument("it has a private key, which its issuer has to keep: give the public keys alone")
    algorithm = _ALGORITHMS.get((found.kty, found.crv))
    is_for_tokens = found.use == "sig" and "verify" in found.key_ops and found.alg in {"", algorithm}
    if algorithm is None or not is_for_tokens or not 0 < len(found.kid) <= MAX_KEY_ID or not found.kid.isprintable():
        return None
    material = {name: text for name in ("kty", "crv", "n", "e", "x", "y") if (text := getattr(found, name))}
    jwk = _key_of(material, algorithm)
    if jwk is None:
        return None
    digest = hashlib.sha256(msgspec.json.encode([algorithm, material], order="sorted")).hexdigest()
    return TokenKey(found.kid, algorithm, digest, jwk)


def _key_of(material: dict[str, str], algorithm: str) -> Any:
    from jwt import PyJWK, PyJWTError  # optional: only servers with an issuer need it

    try:
        jwk = PyJWK(material, algorithm)
    except (PyJWTError, ValueError, TypeError, OverflowError):
        return None
    if algorithm == "RS256":
        numbers: Any = jwk.key.public_numbers()
        if numbers.n.bit_length() not in _RSA_BITS or not 3 <= numbers.e < _RSA_EXPONENT:
            return None
    return jwk


#: Characters of a token. A server accepts 8 KiB of headers per call.
MAX_TOKEN = 6_000
#: Tolerated clock skew of the issuer.
_AHEAD_MS = 60_000
_LATEST_S = 1 << 40

_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")

_WHAT = "the token in these credentials"


class RefusedToken(Exception):
    """A token is invalid; `reason` is for metrics and logs, `text` for the caller."""

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


def has_form(text: str) -> bool:
    return len(text) <= MAX_TOKEN and _FORM.fullmatch(text) is not None


def claim_of(text: str) -> tuple[str, str]:
    """Return the issuer and the key id that a token names, unverified. Raises `RefusedToken`."""
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
    return said.iss, head.kid


def verify(text: str, name: str, issuer: Issuer, key: TokenKey, now_ms: int) -> VerifiedToken:
    """Verify signature, claims and times of a token. Raises `RefusedToken`."""
    claims = _verified(text, name, issuer, key)
    expires_ms = _time(claims.get("exp"))
    if expires_ms is None:
        raise RefusedToken("token-malformed", f"{_WHAT} has no time at which it expires (exp)")
    if expires_ms <= now_ms:
        raise RefusedToken(
            "token-expired",
            f"{_WHAT} has expired: renew it in time, as Kubernetes does, and check the clocks of both machines",
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
    import jwt  # see `_key_of`

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


#: Claims that PyJWT must not check: `verify` checks the times by its own clock, and the others do not matter.
_OTHERS = ("exp", "nbf", "iat", "sub", "jti")


def _time(seconds: object) -> int | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _LATEST_S:
        return None  # also for NaN
    return int(seconds * 1000)


def _decoded(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


@dataclass(frozen=True, slots=True)
class UserToken:
    """A token of a client. Its `repr` does not show the text."""

    #: The file of the token; another process replaces its content before the token expires.
    path: str
    text: str = field(repr=False)


def parse_token(data: bytes, path: str) -> UserToken:
    """Parse the content of a token file. Raises `InvalidArgument`, which does not quote it."""
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
