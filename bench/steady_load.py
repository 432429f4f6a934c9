"""A steady load on a producer, and concurrent faults at set times."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from minimq import Message, MinimqError, Producer, SendReceipt


class Load:
    """Sends numbered messages at a steady rate, and records the outcome of each.

    The messages are prepared beforehand, and sent when they are due, regardless of the outcome of earlier ones.

    Args:
        producer: sends the messages.
        topic: topic of the messages.
        rate: messages per second.
        seconds: duration of the load.
        step_s: interval between bursts; the messages of a burst are sent one after the other.
    """

    def __init__(self, producer: Producer, topic: str, rate: int, seconds: float, step_s: float) -> None:
        self._producer = producer
        self._step_s = step_s
        self._per_step = round(rate * step_s)
        count = round(seconds / step_s) * self._per_step
        self._messages = [Message(topic, b"%d" % number + bytes(90)) for number in range(count)]
        self.handed_in = array("d", bytes(8 * count))
        self.done = array("d", bytes(8 * count))
        self.receipts: list[SendReceipt | None] = [None] * count
        self.errors: list[MinimqError] = []
        self.behind_s = 0.0

    def run(self, began: float, tell: Callable[[], None]) -> None:
        """Send everything, starting at the time `began`, and wait for all outcomes."""
        for step, first in enumerate(range(0, len(self._messages), self._per_step)):
            due = began + step * self._step_s
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            else:
                self.behind_s = max(self.behind_s, -left)
            for number in range(first, first + self._per_step):
                callback = partial(self._note, number)
                self.handed_in[number] = time.perf_counter()
                self._producer.send_async(self._messages[number], callback=callback)
            tell()
        self._producer.flush()

    def latencies_ms(self, since: float, until: float) -> list[float]:
        """Return the sorted latencies of messages that were sent in a period."""
        pairs = zip(self.handed_in, self.done, strict=True)
        return sorted((done - start) * 1000 for start, done in pairs if since <= start < until)

    def acknowledged(self) -> Iterator[tuple[float, SendReceipt]]:
        """Yield the time and the receipt of each acknowledged message."""
        return ((done, receipt) for done, receipt in zip(self.done, self.receipts, strict=True) if receipt)

    def _note(self, number: int, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        self.done[number] = time.perf_counter()
        self.receipts[number] = receipt
        if error is not None:
            self.errors.append(error)


@dataclass
class Faults:
    """Faults of a broker: a plan with due times in seconds from the start, and the actual times."""

    plan: Sequence[tuple[float, Callable[[], None]]]
    began_at: list[float] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)

    def carry_out(self, began: float) -> None:
        for after_s, action in self.plan:
            time.sleep(max(0.0, began + after_s - time.perf_counter()))
            self.began_at.append(time.perf_counter())
            action()
            self.ended_at.append(time.perf_counter())
