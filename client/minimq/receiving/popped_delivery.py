"""Messages of a work queue that a listener gets in one call, until they are settled."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from minimq.receiving.popped import PoppedMessage
from minimq_common.model import MessageQueue


class PoppedDelivery:
    """A call of the listener, from its messages until they are settled."""

    def __init__(self, messages: Sequence[PoppedMessage], now: float) -> None:
        self.messages = messages
        self.kept = messages
        self.kept_at = now
        self.began_at: float | None = None
        self.is_being_kept = False
        self.is_answered = False
        self.is_lost = False
        self.hangs = False
        self._claim = threading.Lock()

    @property
    def queue(self) -> MessageQueue:
        """Queue of the messages."""
        return self.messages[0].queue

    @property
    def lane(self) -> int:
        """Hash of the message group of the messages; 0 if their topic is not FIFO."""
        return self.messages[0].lane

    @property
    def epoch(self) -> int:
        """The epoch of their delivery by the broker."""
        return self.messages[0].epoch

    def cut(self, count: int) -> Sequence[PoppedMessage]:
        """Keep the first messages, and return the others."""
        rest, self.messages = self.messages[count:], self.messages[:count]
        self.kept = self.messages
        return rest

    def claim(self) -> bool:
        """Return True to the first caller, who either calls the listener or returns the messages. Thread-safe."""
        return self._claim.acquire(blocking=False)


def deliveries(messages: Sequence[PoppedMessage], batch_size: int, now: float) -> Iterator[PoppedDelivery]:
    """Yield the calls of the listener for messages.

    A message that was tried before has a call of its own, so that it does not make others fail. Those of a FIFO
    topic stay in order within their message group.
    """
    if messages and messages[0].lane:
        yield from _in_order(messages, batch_size, now)
        return
    fresh = [message for message in messages if message.tries == 1]
    for first in range(0, len(fresh), batch_size):
        yield PoppedDelivery(fresh[first : first + batch_size], now)
    for message in messages:
        if message.tries > 1:
            yield PoppedDelivery([message], now)


def _in_order(messages: Sequence[PoppedMessage], batch_size: int, now: float) -> Iterator[PoppedDelivery]:
    by_lane: dict[int, list[PoppedMessage]] = {}
    for message in messages:
        by_lane.setdefault(message.lane, []).append(message)
    for lane in by_lane.values():
        part: list[PoppedMessage] = []
        for message in lane:
            if part and (len(part) == batch_size or message.tries > 1 or part[-1].tries > 1):
                yield PoppedDelivery(part, now)
                part = []
            part.append(message)
        yield PoppedDelivery(part, now)
