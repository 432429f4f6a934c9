"""Tokens of users: what a client shows in place of a key, and whoever has issued it writes into a file.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minimq_common.errors import InvalidArgument
from minimq_common.security.token_check import MAX_TOKEN, has_form


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
