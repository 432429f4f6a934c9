"""The messages of one poll, on their way to the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minimq.receiving.received import ReceivedMessage


class PollBatch:
    """Messages of one poll that a loop hands out one by one, or that wait for somebody to take them all.

    A message counts as done when the user asks for the next one: he may have failed with it.

    Args:
        messages: in the order of the queue.

    Attributes:
        over: nothing more of it is to be handed out; the rest is read again.
    """

    __slots__ = ("_done", "_given", "_messages", "over")

    def __init__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.over = False
        self._messages = messages
        self._given = 0
        self._done = 0

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Hand the messages out, until the batch is over."""
        for index, message in enumerate(self._messages):
            if self.over:
                return
            self._done, self._given = index, index + 1
            yield message
        self._done = len(self._messages)

    @property
    def not_given(self) -> Sequence[ReceivedMessage]:
        """The messages that nobody has seen yet."""
        return self._messages[self._given :]

    @property
    def not_done(self) -> Sequence[ReceivedMessage]:
        """The messages that must not be committed: the one in hand, and all that nobody has seen yet."""
        return self._messages[self._done :]
