"""New keys: for the user, and as the hash that servers store."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from minimq_common.security.access_document import StoredKey
from minimq_common.security.user_key import ID_BYTES, SECRET_BYTES, UserKey, new_key


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key that was just made."""

    key: UserKey
    stored: StoredKey

    @property
    def named(self) -> tuple[str, StoredKey]:
        """The key as servers store it, with its id."""
        return self.key.id, self.stored


def issue_key(lifetime_s: float | None = None) -> IssuedKey:
    """Make a key."""
    key, now_ms = new_key(secrets.token_bytes(ID_BYTES + SECRET_BYTES)), round(time.time() * 1000)
    expires_ms = 0 if lifetime_s is None else now_ms + round(lifetime_s * 1000)
    return IssuedKey(key, StoredKey(key.hash, expires_ms, now_ms))
