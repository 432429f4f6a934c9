"""The process that a client was made in."""

from __future__ import annotations

import os

from minimq_common.errors import Closed


class HomeProcess:
    """The process that made a client. gRPC and the client's threads do not come along into a fork of it.

    Args:
        what: the client, for the text of the error, such as "producer".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """True if the caller runs in a fork of that process."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raise `Closed` in a fork."""
        if os.getpid() != self._process:
            raise Closed(
                f"the {self._what} was made in process {self._process}, and this is its fork {os.getpid()}: start "
                "processes with spawn or forkserver, or fork before the first client is made (docs/sending.md)"
            )
