"""The TLS settings and the key of channels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_named
from minimq_common.security.credentials import Credentials, CredentialsArgument

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust
    from minimq_common.security.credentials_file import CredentialsFile

#: Environment variable with the path of the credentials file, used if no credentials are given.
VARIABLE = "MINIMQ_CREDENTIALS"


class ChannelSecurity(Protocol):
    """Provides the security of new channels. Thread-safe."""

    def trust(self, *, at_once: bool = False) -> Trust | None:
        """Return the current TLS settings and key; None for a channel without TLS."""


class _Plain:
    def trust(self, *, at_once: bool = False) -> None:
        return


#: For channels without TLS.
PLAIN: Final[ChannelSecurity] = _Plain()


def open_credentials(given: CredentialsArgument | None) -> CredentialsFile | None:
    """Open the given credentials, or those in the file that the variable names; None if there are none."""
    if given is None:
        given = os.environ.get(VARIABLE, "").rstrip("\r\n")  # the line end of a Secret or of a file
        if given:
            check_named(VARIABLE, Credentials, given)
    if not isinstance(given, Credentials):
        if not isinstance(given, str | os.PathLike):
            raise InvalidArgument("credentials are neither the path of a file nor a Credentials object")
        path = os.fspath(given)
        if not path:
            return None
        given = Credentials(path)
    from minimq_common.security.credentials_file import CredentialsFile  # as above

    opened = CredentialsFile(given)
    opened.trust()
    return opened
