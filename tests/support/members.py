"""Members of a consumer group that note what they read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from minimq import MessageQueue, MinimqError, PullConsumer
from minimq_common.errors import TopicNotFound


class Log:
    """The messages that all members of a test have read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: Counter[tuple[MessageQueue, int]] = Counter()

    def add(self, queue: MessageQueue, offset: int) -> None:
        with self._lock:
            self._read[queue, offset] += 1

    def __len__(self) -> int:
        return len(self._read)

    def missing(self, expected: set[tuple[MessageQueue, int]]) -> set[tuple[MessageQueue, int]]:
        with self._lock:
            return expected - self._read.keys()

    @property
    def repeated(self) -> dict[tuple[MessageQueue, int], int]:
        with self._lock:
            return {place: times for place, times in self._read.items() if times > 1}


class Member:
    """A pull consumer that polls in a thread of its own."""

    def __init__(
        self,
        nameserver: str,
        group: str,
        topic: str,
        log: Log,
        prepare: Callable[[PullConsumer], None] = lambda _: None,
        **options: Any,
    ) -> None:
        self.consumer = PullConsumer(nameserver, group=group, **options)
        prepare(self.consumer)
        self.consumer.subscribe(topic)
        self.error: MinimqError | None = None
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member-{self.consumer.client_id}")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    @property
    def queues(self) -> list[MessageQueue]:
        return self.consumer.assignment

    def leave(self) -> None:
        """End in order."""
        self._stop.set()
        self._thread.join(30.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    for message in self.consumer.poll(0.1, max_messages=100):
                        self._log.add(message.queue, message.queue_offset)
                except TopicNotFound as error:  # once, if it is not made anew quickly: reading goes on when it is
                    self.error = error
        except MinimqError as error:
            self.error = error
        finally:
            self.consumer.close()


def shared_evenly(*members: Member, queues: int) -> Callable[[], bool]:
    """Return a condition: all queues are assigned, each to one member, and the shares are even."""

    def condition() -> bool:
        shares = [member.queues for member in members]
        every = [queue for share in shares for queue in share]
        even = max(map(len, shares)) - min(map(len, shares)) <= 1
        return even and len(every) == len(set(every)) == queues

    return condition
