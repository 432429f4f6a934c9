"""Where a channel finds out whether it is encrypted, and whom it trusts."""

from __future__ import annotations

from typing import Final, Protocol

from minimq_common.security.certificates import Trust


class ChannelSecurity(Protocol):
    """Known to whoever opens channels. Thread-safe."""

    def trust(self, *, at_once: bool = False) -> Trust | None:
        """Return whom a channel trusts and what it shows, as it is now; None for a channel without TLS.

        The same object as long as nothing has changed.

        Args:
            at_once: look at the files, even if somebody did a moment ago.
        """


class _Plain:
    def trust(self, *, at_once: bool = False) -> None:
        """Return None: nothing is encrypted."""
        return


#: Of channels without TLS.
PLAIN: Final[ChannelSecurity] = _Plain()
