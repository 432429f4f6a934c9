"""What was said to be wrong: once, however often it is found to be wrong again."""

from __future__ import annotations


class Complaint:
    """What is wrong with one thing that is tried again and again. It is said once, until it is over or is another."""

    def __init__(self) -> None:
        self._kind: str | None = None

    def is_new(self, kind: str) -> bool:
        """Note what is wrong now, and tell whether that is to be said.

        Args:
            kind: what tells it from all else that may be wrong; a text with numbers in it would be new each time.
        """
        is_new, self._kind = kind != self._kind, kind
        return is_new

    def over(self) -> None:
        """Note that nothing is wrong any more: whatever comes next is new."""
        self._kind = None
