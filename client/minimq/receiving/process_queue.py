"""The messages of one queue in flight, and the offset from which its group would have to start again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class InFlightLimits(NamedTuple):
    """The limits of one queue: at any of them no more of it is taken."""

    messages: int
    #: Bytes of their bodies.
    size: int
    #: Offsets from the first message that is not finished to the last one that was taken: so many may have to be read
    #: again after a crash.
    span: int


class _Range:
    __slots__ = ("first", "messages", "size")

    def __init__(self, first: int, messages: int, size: int) -> None:
        self.first = first
        self.messages = messages
        self.size = size


class ProcessQueue:
    """Ranges of offsets in hand. Not thread-safe.

    The commit position is the lowest offset that is not finished, so that messages may be finished in any order and
    none is ever passed over.
    """

    def __init__(self, offset: int) -> None:
        self.messages = 0
        self.size = 0
        self._end = offset
        #: By the offset at which each range began, in the order of the offsets.
        self._in_hand: dict[int, _Range] = {}

    @property
    def idle(self) -> bool:
        """True if nothing is in flight."""
        return not self._in_hand

    @property
    def commit_position(self) -> int:
        """Offset from which the group would go on."""
        lowest = next(iter(self._in_hand.values()), None)
        return self._end if lowest is None else lowest.first

    @property
    def span(self) -> int:
        """Offsets between the commit position and the end of what was taken."""
        return self._end - self.commit_position

    def is_full(self, limits: InFlightLimits) -> bool:
        """Tell whether no more may be taken. What is taken while it is not may go beyond the limits, once."""
        return self.messages >= limits.messages or self.size >= limits.size or self.span >= limits.span

    def begin(self, first: int, end: int, messages: int = 1, size: int = 0) -> None:
        """Offsets from `first` up to `end` are in hand, with so many messages; they come after all earlier ones."""
        self._in_hand[first] = _Range(first, messages, size)
        self._end = end
        self.messages += messages
        self.size += size

    def narrow(self, first: int, rest: int, messages: int, size: int) -> None:
        """Of the range that began at `first` only so many messages are left in hand, the first of them at `rest`."""
        found = self._in_hand[first]
        self.messages += messages - found.messages
        self.size += size - found.size
        found.first, found.messages, found.size = rest, messages, size

    def split(self, first: int, rest: Sequence[tuple[int, int]]) -> None:
        """Of the range that began at `first` only these messages are left, by offset and size: each is a range now."""
        found = self._in_hand[first]
        self.messages += len(rest) - found.messages
        self.size += sum(size for _, size in rest) - found.size
        parts = {offset: _Range(offset, 1, size) for offset, size in rest}
        ranges, self._in_hand = self._in_hand, {}
        for began_at, item in ranges.items():
            self._in_hand.update(parts if item is found else {began_at: item})

    def finish(self, first: int) -> None:
        """The range that began at `first` is finished. Nothing happens when it is not in hand."""
        found = self._in_hand.pop(first, None)
        if found is not None:
            self.messages -= found.messages
            self.size -= found.size

    def pass_over(self, end: int) -> None:
        """There is nothing to do with offsets up to `end` that were not in hand."""
        self._end = max(self._end, end)
