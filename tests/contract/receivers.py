"""The kinds of consumers, behind one small interface: take messages, finish or fail each, close."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, Self

import minimq
from contract.faces import Asyncio, Blocking
from minimq import ReceivedMessage

Face = Blocking | Asyncio
#: Bound of a wait for messages, for faults.
TAKE_S = 90.0


class Receiver(Protocol):
    """A consumer of a group, as a scenario uses it."""

    consumer: Any

    def take(self, count: int = 1) -> list[ReceivedMessage]:
        """Return so many unfinished messages, in the order of their delivery."""
        ...

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """These are done."""
        ...

    def fail(self, messages: Sequence[ReceivedMessage]) -> None:
        """These are to be delivered again."""
        ...

    def close(self) -> None: ...


class _Closing(ABC):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


class PullReceiver(_Closing):
    """Polls; what is finished is committed, what failed is read again."""

    def __init__(self, face: Face, nameserver: str, subscriptions: Sequence[tuple[Any, ...]], **options: Any) -> None:
        self.consumer = face.make("PullConsumer", nameserver, auto_commit=False, **options)
        self._polled: list[ReceivedMessage] = []
        for topic, tags, where in subscriptions:
            self.consumer.subscribe(topic, tags, where=where)

    def take(self, count: int = 1) -> list[ReceivedMessage]:
        waited = 0.0
        while len(self._polled) < count:
            found = self.consumer.poll(timeout=1.0, max_messages=count - len(self._polled))
            self._polled += found
            waited += not found
            assert waited < TAKE_S, f"{len(self._polled)} of {count} messages came"
        taken, self._polled = self._polled[:count], self._polled[count:]
        return taken

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        ends: dict[Any, int] = {}
        for message in messages:
            ends[message.queue] = max(ends.get(message.queue, 0), message.queue_offset + 1)
        self.consumer.commit(ends)

    def fail(self, messages: Sequence[ReceivedMessage]) -> None:
        first: dict[Any, int] = {}
        for message in messages:
            first[message.queue] = min(first.get(message.queue, message.queue_offset), message.queue_offset)
        for at, offset in first.items():
            self.consumer.seek(at, offset)
        self._polled = [message for message in self._polled if message.queue not in first]

    def close(self) -> None:
        self.consumer.close()


class ListenerReceiver(_Closing):
    """Holds each call of a listener until its message is finished or failed."""

    def __init__(self, face: Face, nameserver: str, subscriptions: Sequence[tuple[Any, ...]], **options: Any) -> None:
        options = {"threads": 32, "batch_size": 1, "retry_delays_s": (0.1,)} | options
        self.consumer = face.make("PushConsumer", nameserver, **options)
        self._delivered: queue.Queue[tuple[ReceivedMessage, Future[Any]]] = queue.Queue()
        self._held: dict[int, Future[Any]] = {}
        self._open: list[Future[Any]] = []
        self._lock, self._closed = threading.Lock(), False
        self.taken_at = 0.0
        for topic, tags, where in subscriptions:
            self.consumer.subscribe(topic, tags, where=where)
        self.consumer.start(face.listener(self._decide))

    def _decide(self, messages: list[ReceivedMessage]) -> Future[Any]:
        decision: Future[Any] = Future()
        with self._lock:
            if self._closed:
                decision.set_result(minimq.ConsumeResult.RETRY_LATER)
            self._open.append(decision)
        for message in messages:
            self._delivered.put((message, decision))
        return decision

    def take(self, count: int = 1) -> list[ReceivedMessage]:
        taken = []
        for _ in range(count):
            message, decision = self._delivered.get(timeout=TAKE_S)
            self.taken_at = time.monotonic()
            self._held[id(message)] = decision
            taken.append(message)
        return taken

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        self.end(messages, minimq.ConsumeResult.SUCCESS)

    def fail(self, messages: Sequence[ReceivedMessage]) -> None:
        self.end(messages, minimq.ConsumeResult.RETRY_LATER)

    def end(self, messages: Sequence[ReceivedMessage], result: Any) -> None:
        """End the calls of these messages with a result, or an error."""
        for message in messages:
            decision = self._held.pop(id(message))
            if decision.done():
                continue  # that of another message of the same call
            if isinstance(result, Exception):
                decision.set_exception(result)
            else:
                decision.set_result(result)

    def close(self) -> None:
        """Close; calls that are still held fail."""
        with self._lock:
            self._closed = True
            for decision in self._open:
                if not decision.done():
                    decision.set_result(minimq.ConsumeResult.RETRY_LATER)
        self.consumer.close()


class WorkQueueReceiver(_Closing):
    """Receives, acknowledges and releases."""

    def __init__(self, face: Face, nameserver: str, subscriptions: Sequence[tuple[Any, ...]], **options: Any) -> None:
        self.consumer = face.make("WorkQueueConsumer", nameserver, **options)
        for topic, tags, where in subscriptions:
            self.consumer.subscribe(topic, tags, where=where)

    def take(self, count: int = 1) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        waited = 0.0
        while len(taken) < count:
            found = self.consumer.receive(count - len(taken), timeout=1.0)
            taken += found
            waited += not found
            assert waited < TAKE_S, f"{len(taken)} of {count} messages came"
        return taken

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        self.consumer.ack(list(messages))

    def fail(self, messages: Sequence[ReceivedMessage]) -> None:
        self.consumer.release(list(messages))

    def close(self) -> None:
        self.consumer.close()


#: The kinds of a scenario that names none.
COMMON_KINDS = ("pull", "listener", "work_queue")
KINDS: dict[str, Callable[..., Any]] = {
    "pull": PullReceiver,
    "listener": ListenerReceiver,
    "work_queue": WorkQueueReceiver,
    "work_listener": partial(ListenerReceiver, mode="work_queue"),
}
