"""The credentials of a user, as an argument of clients."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Self

from minimq_common.errors import InvalidArgument
from minimq_common.text_units import check_path

#: The prefix of a user's key.
_KEY = re.compile(r"\s*mq_[a-z2-7]{8}_")


#: The beginning of a line in a credentials file.
_ASSIGNMENT = re.compile(r"\ufeff?\s*[a-z_]+ *= *[\"'\[]")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a user: the name servers, the trusted CA, and the key of the user.

    For a credentials file, its path is enough: `Producer(credentials="alice.minimq")`. Use this class for credentials
    from elsewhere, such as a vault: `Producer(credentials=Credentials.from_text(text))`. Its `repr` does not show them.

    Attributes:
        path: path of the credentials file; empty if `text` is given.
        text: content of a credentials file; empty if `path` is given.
    """

    path: str = ""
    text: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.text):
            raise InvalidArgument("credentials are the path of a file, or the text of one: one of them is needed")
        # Errors show paths, so the content of a file or a key must not be used as one.
        if re.search(r"[\r\n]", self.path.strip()) or _KEY.match(self.path) or _ASSIGNMENT.match(self.path):
            raise InvalidArgument(
                "credentials are the content of a credentials file, not its path: give the path, or "
                "Credentials.from_text(content)"
            )
        check_path("credentials", self.path)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return credentials from the content of a credentials file. Raises `InvalidArgument` if it is empty."""
        return cls(text=text)

    def __str__(self) -> str:
        return self.path or "the text of the credentials"


#: Credentials as users give them.
CredentialsArgument = str | os.PathLike[str] | Credentials
