"""Keys of users, which clients send, and their hashes, which servers store.

A key contains 256 random bits, so nobody can find it from its hash, and a slow hash is not needed.

Pure: randomness is an argument.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from dataclasses import dataclass, field

from minimq_common.errors import InvalidArgument

#: Bytes of the secret and of the id of a key.
SECRET_BYTES, ID_BYTES = 32, 5

_TEXT = re.compile(r"mq_([a-z2-7]{8})_([A-Za-z0-9_-]{43})_([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class UserKey:
    """A key of a user. Its `repr` does not show the text."""

    #: Identifies the key in logs.
    id: str
    #: The whole key: "mq_ID_SECRET_CHECKSUM".
    text: str = field(repr=False)

    @property
    def hash(self) -> str:
        """The SHA-256 of the text in hexadecimal digits, which servers store."""
        return hash_of(self.text)


def hash_of(text: str) -> str:
    """Return the hash of a key, which servers store."""
    return hashlib.sha256(text.encode()).hexdigest()


def id_of(text: str) -> str:
    """Return the id of a key, which logs may show; empty if the text is not a key."""
    found = _TEXT.fullmatch(text)
    return "" if found is None else found[1]


def new_key(random: bytes) -> UserKey:
    """Make a key from `ID_BYTES + SECRET_BYTES` random bytes."""
    if len(random) != ID_BYTES + SECRET_BYTES:
        raise InvalidArgument(f"a key is made of {ID_BYTES + SECRET_BYTES} random bytes, not of {len(random)}")
    key_id = base64.b32encode(random[:ID_BYTES]).decode().lower()
    secret = base64.urlsafe_b64encode(random[ID_BYTES:]).decode().rstrip("=")
    return UserKey(key_id, f"mq_{key_id}_{secret}_{_checksum(key_id, secret)}")


def parse_key(text: str) -> UserKey:
    """Parse a key. Raises `InvalidArgument`, which does not quote the text, if it was truncated or mistyped."""
    found = _TEXT.fullmatch(text)
    if found is None or found[3] != _checksum(found[1], found[2]):
        raise InvalidArgument(
            "this is not a key of minimq, or it was truncated or mistyped: a key is mq_ID_SECRET_CHECKSUM"
        )
    return UserKey(found[1], text)


def _checksum(key_id: str, secret: str) -> str:
    return f"{zlib.crc32(f'{key_id}_{secret}'.encode()):08x}"
