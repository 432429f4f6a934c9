"""The process that a client was made in."""

from __future__ import annotations

import os

from minimq_common.errors import Closed

#: This process. To ask the system before each message takes a tenth of the time of handing it in.
_pid = os.getpid()


def _forked() -> None:
    global _pid  # noqa: PLW0603 - there is one process
    _pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


class HomeProcess:
    """The process that made a client. gRPC and the client's threads do not come along into a fork of it.

    Args:
        what: the client, for the text of the error, such as "producer".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = _pid

    @property
    def is_forked(self) -> bool:
        """True if the caller runs in a fork of that process."""
        return self._process != _pid

    def check(self) -> None:
        """Raise `Closed` in a fork."""
        if self._process != _pid:
            raise Closed(
                f"the {self._what} was made in process {self._process}, and this is its fork {_pid}: start "
                "processes with spawn or forkserver, or fork before the first client is made (docs/sending.md)"
            )
