"""Where a channel finds out whether it is encrypted, and whom it trusts.

What reads credentials is loaded for who has some.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from minimq_common.errors import InvalidArgument
from minimq_common.security.credentials import Credentials, CredentialsArgument

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust
    from minimq_common.security.credentials_file import CredentialsFile

#: Names the credentials file where nothing else does.
VARIABLE = "MINIMQ_CREDENTIALS"


class ChannelSecurity(Protocol):
    """Known to whoever opens channels. Thread-safe."""

    def trust(self, *, at_once: bool = False) -> Trust | None:
        """Return whom a channel trusts and what it shows, as it is now; None for a channel without TLS.

        The same object as long as nothing has changed.
        """


class _Plain:
    def trust(self, *, at_once: bool = False) -> None:
        """Return None: nothing is encrypted."""
        return


#: Of channels without TLS.
PLAIN: Final[ChannelSecurity] = _Plain()


def open_credentials(given: CredentialsArgument | None) -> CredentialsFile | None:
    """Open the credentials that were given, or those that the variable names; None when there are none."""
    if given is None:
        given = os.environ.get(VARIABLE, "")
    if not isinstance(given, Credentials):
        if not isinstance(given, str | os.PathLike):
            raise InvalidArgument("credentials are neither the path of a file nor a Credentials object")
        path = os.fspath(given)
        if not path:
            return None
        given = Credentials(path)
    from minimq_common.security.credentials_file import CredentialsFile  # as above

    opened = CredentialsFile(given)
    opened.trust()  # a token that is missing is told at once
    return opened
