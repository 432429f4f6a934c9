"""Keys of users: what a client shows, and what of it servers keep.

A key has 256 random bits, so its hash tells nobody anything, and no slow hash is needed.

Pure: randomness is an argument.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from dataclasses import dataclass, field

from minimq_common.errors import InvalidArgument

#: Bytes of a secret, and of the name by which a key is spoken of.
SECRET_BYTES, ID_BYTES = 32, 5

_TEXT = re.compile(r"mq_([a-z2-7]{8})_([A-Za-z0-9_-]{43})_([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class UserKey:
    """A key, as its user has it. No `repr` shows it."""

    #: Names it in logs.
    id: str
    #: All of it: "mq_ID_SECRET_CHECKSUM".
    text: str = field(repr=False)

    @property
    def hash(self) -> str:
        """The SHA-256 of the text in hexadecimal digits, which servers keep."""
        return hash_of(self.text)


def hash_of(text: str) -> str:
    """Return what servers keep of the text of a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def id_of(text: str) -> str:
    """Return the id in the text of a key, by which it may be named in logs; empty when it is no key."""
    found = _TEXT.fullmatch(text)
    return "" if found is None else found[1]


def new_key(random: bytes) -> UserKey:
    """Make a key of random bytes, `ID_BYTES + SECRET_BYTES` of them."""
    if len(random) != ID_BYTES + SECRET_BYTES:
        raise InvalidArgument(f"a key is made of {ID_BYTES + SECRET_BYTES} random bytes, not of {len(random)}")
    key_id = base64.b32encode(random[:ID_BYTES]).decode().lower()
    secret = base64.urlsafe_b64encode(random[ID_BYTES:]).decode().rstrip("=")
    return UserKey(key_id, f"mq_{key_id}_{secret}_{_checksum(key_id, secret)}")


def parse_key(text: str) -> UserKey:
    """Return the key in a text. Raises `InvalidArgument`, without quoting it, when it was cut or mistyped."""
    found = _TEXT.fullmatch(text)
    if found is None or found[3] != _checksum(found[1], found[2]):
        raise InvalidArgument(
            "this is not a key of minimq, or it was truncated or mistyped: a key is mq_ID_SECRET_CHECKSUM"
        )
    return UserKey(found[1], text)


def _checksum(key_id: str, secret: str) -> str:
    return f"{zlib.crc32(f'{key_id}_{secret}'.encode()):08x}"
