"""Which messages of one queue are in work, and from where its group would have to start again."""

from __future__ import annotations


class ProcessQueue:
    """Ranges of offsets in work. Not thread-safe.

    The commit position is the lowest offset that is not finished, so that messages may be finished in any order and
    none is ever passed over.
    """

    def __init__(self, offset: int) -> None:
        self._end = offset
        #: First offset of each range in work, in the order of the offsets.
        self._in_work: dict[int, int] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is in work."""
        return not self._in_work

    @property
    def commit_position(self) -> int:
        """Offset from which the group would go on."""
        return next(iter(self._in_work), self._end)

    def begin(self, first: int, end: int) -> None:
        """Offsets from `first` up to `end` are in work; they come after all earlier ones."""
        self._in_work[first] = end
        self._end = end

    def finish(self, first: int) -> None:
        """The range that starts at `first` is finished."""
        self._in_work.pop(first, None)
