"""The credentials of a user, as they are given to a client.

Pure: `credentials_file.py` opens them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Self

from minimq_common.errors import InvalidArgument

#: How a key of a user begins.
_KEY = re.compile(r"\s*mq_[a-z2-7]{8}_")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a user: where the name servers are, whom to trust, and who the user is.

    Where they are in a file, its path is enough: `Producer(credentials="alice.minimq")`. This is for those that are in
    no file, such as in a vault: `Producer(credentials=Credentials.from_text(text))`. No `repr` shows them.

    Attributes:
        path: of the file; empty when there is none.
        text: the content of such a file; empty when there is one.
    """

    path: str = ""
    text: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.text):
            raise InvalidArgument("credentials are the path of a file, or the text of one: one of them is needed")
        if "\n" in self.path or "\r" in self.path or _KEY.match(self.path):  # which no error may show, as it does paths
            raise InvalidArgument(
                "credentials are the content of a credentials file, not its path: give the path, or "
                "Credentials.from_text(content)"
            )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the credentials in a text, the content of a credentials file. Raises `InvalidArgument`."""
        return cls(text=text)

    def __str__(self) -> str:
        return self.path or "the text of the credentials"


#: Credentials as users give them.
CredentialsArgument = str | os.PathLike[str] | Credentials
