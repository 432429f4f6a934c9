"""A producer and a consumer that want nothing but their messages, while others play."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Final

from minimq import Message, MinimqError, Producer, PullConsumer

TOPIC: Final = "canary"
GROUP: Final = "canary-group"
_PAUSE_S: Final = 0.02


def body_of(number: int) -> bytes:
    """Return the body of a message."""
    return b"%d " % number + hashlib.sha256(b"%d" % number).hexdigest().encode()


class Canary:
    """Sends numbered messages in a thread, reads them in another, until it is stopped."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._stop = threading.Event()
        self._sent_all = threading.Event()
        #: Numbers of messages, as they were acknowledged, and as they were read.
        self.acknowledged: list[int] = []
        self.read: list[bytes] = []
        self.failures: list[str] = []
        self.slowest_s = 0.0
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more, and return when the reader was given everything, or seems not to get it."""
        for event, thread in zip((self._stop, self._sent_all), self._threads, strict=True):
            event.set()
            thread.join(120)

    def _send(self) -> None:
        number = 0
        with Producer(self._nameserver, send_timeout_s=20.0) as producer:
            while not self._stop.is_set():
                begun = time.monotonic()
                try:
                    producer.send(Message(TOPIC, body_of(number)))
                    self.acknowledged.append(number)
                except MinimqError as error:
                    self.failures.append(f"message {number}: {error!r:.300}")
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
                number += 1
                self._stop.wait(_PAUSE_S)

    def _receive(self) -> None:
        with PullConsumer(self._nameserver, group=GROUP, start="earliest") as consumer:
            consumer.subscribe(TOPIC)
            max_wait = 0
            while not (self._sent_all.is_set() and (self._has_all() or max_wait > 100)):
                found = consumer.poll(0.2)
                self.read += [message.body for message in found]
                max_wait = 0 if found else max_wait + self._sent_all.is_set()

    def _has_all(self) -> bool:
        return not self.acknowledged or body_of(self.acknowledged[-1]) in self.read[-100:]


def losses(acknowledged: list[int], bodies: list[bytes], *, once_more: bool = False) -> list[str]:
    """Return what is wrong with what was read: each message that was acknowledged has to be there once, in order.

    Args:
        acknowledged: the numbers of the messages.
        bodies: as they were read.
        once_more: whether messages may be read again, after their first time.
    """
    numbers = [int(body.split()[0]) for body in bodies if body == body_of(int(body.split()[0] or b"0"))]
    found = [f"{len(bodies) - len(numbers)} messages of the canary are others"] if len(numbers) < len(bodies) else []
    known = set(acknowledged)
    wanted = [number for number in numbers if number in known]
    if once_more:  # a queue that is lost before a commit is read again from its last one
        wanted = list(dict.fromkeys(wanted))
    if wanted != acknowledged:
        missing = sorted(known - set(wanted))
        found.append(
            f"the canary was told of {len(acknowledged)} messages and read {len(wanted)} of them; missing: "
            f"{missing[:10]}, in order: {wanted == sorted(wanted)}"
        )
    return found
