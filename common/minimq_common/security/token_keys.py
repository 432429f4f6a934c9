"""The public keys of an issuer, a JSON Web Key Set, by which its tokens are verified.

Pure. PyJWT and `cryptography` are imported by who has an issuer; `minimq[secure]` brings them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from minimq_common.errors import InvalidArgument

#: Bytes of a key set, keys in it, and letters of the name of a key.
MAX_SET_BYTES, MOST_KEYS, MAX_KEY_ID = 64 << 10, 64, 256

#: The algorithm of a signature, by the type and the curve of its key. All others are no use: those with a secret that
#: both sides know, and those that are weak.
_ALGORITHMS = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
ALGORITHMS = tuple(_ALGORITHMS.values())
#: Bits of a key for RSA, and its largest exponent: to verify by larger ones takes long.
_RSA_BITS, _RSA_EXPONENT = range(2048, 8193), 1 << 32


class _Json(msgspec.Struct):
    """The fields of a JSON Web Key that are looked at."""

    kty: str
    kid: str
    alg: str = ""
    use: str = "sig"
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    d: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # of a private key


class _JsonSet(msgspec.Struct):
    keys: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A public key of an issuer."""

    id: str
    algorithm: str
    print: str
    jwk: Any = field(repr=False)


TokenKeys = Mapping[str, TokenKey]


def parse_keys(data: bytes) -> TokenKeys:
    """Return the keys of a set that can verify tokens, by their ids."""
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
    is_for_tokens = found.use == "sig" and found.alg in {"", algorithm} and 0 < len(found.kid) <= MAX_KEY_ID
    if algorithm is None or not is_for_tokens or not found.kid.isprintable():
        return None
    material = {name: text for name in ("kty", "crv", "n", "e", "x", "y") if (text := getattr(found, name))}
    jwk = _key_of(material, algorithm)
    if jwk is None:
        return None
    digest = hashlib.sha256(msgspec.json.encode([algorithm, material], order="sorted")).hexdigest()
    return TokenKey(found.kid, algorithm, digest, jwk)


def _key_of(material: dict[str, str], algorithm: str) -> Any:
    from jwt import PyJWK, PyJWTError  # for who has an issuer

    try:
        jwk = PyJWK(material, algorithm)
    except (PyJWTError, ValueError, TypeError, OverflowError):
        return None
    if algorithm == "RS256":
        numbers: Any = jwk.key.public_numbers()
        if numbers.n.bit_length() not in _RSA_BITS or not 3 <= numbers.e < _RSA_EXPONENT:
            return None
    return jwk
