"""Texts without secrets."""

from __future__ import annotations

import re

#: The user and password of a URL, and a user's key.
_SECRET = re.compile(r"(?<=://)\S*@|(?<=mq_)[a-z2-7]{8}_[A-Za-z0-9_-]+")


def without_secrets(text: str) -> str:
    """Return a text with passwords in URLs and keys of users replaced by asterisks."""
    return _SECRET.sub(lambda found: "***@" if found[0].endswith("@") else "***", text)
