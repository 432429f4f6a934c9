"""Listeners that note what they are given."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from minimq import ConsumeResult, ReceivedMessage, RetryLater

Answer = ConsumeResult | RetryLater


class Given(NamedTuple):
    """A message as a listener got it, and when, on the monotonic clock."""

    message: ReceivedMessage
    at: float


class Listener:
    """Notes what it is given, and answers as it is told: by a function of the message and how often it came."""

    def __init__(self, answer: Callable[[ReceivedMessage, int], Answer] = lambda *_: ConsumeResult.SUCCESS) -> None:
        self.answer = answer
        self.lock = threading.Lock()
        self.calls: Counter[bytes] = Counter()
        self.given: list[Given] = []

    def __call__(self, messages: list[ReceivedMessage]) -> Answer:
        answers = []
        for message in messages:
            with self.lock:
                self.calls[message.body] += 1
                self.given.append(Given(message, time.monotonic()))
                times = self.calls[message.body]
            answers.append(self.answer(message, times))
        return next((answer for answer in answers if answer is not ConsumeResult.SUCCESS), ConsumeResult.SUCCESS)

    def times_of(self, body: bytes) -> list[float]:
        """Return when a message came."""
        with self.lock:
            return [given.at for given in self.given if given.message.body == body]

    def delivery_counts_of(self, body: bytes) -> list[int]:
        """Return the delivery count of each delivery of a message."""
        with self.lock:
            return [given.message.delivery_count for given in self.given if given.message.body == body]
