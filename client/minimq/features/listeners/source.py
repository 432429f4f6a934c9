"""The deliveries of a push consumer, and the `Source` that takes and settles their messages."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from minimq.connection.client import ClusterClient
from minimq.consuming.received import ReceivedMessage
from minimq.features.listeners.listener import ListenerResult


class Delivery:
    """Messages of one queue and topic for one call of the listener."""

    __slots__ = ("began_at", "hangs", "has_slot", "is_over", "keeps_slot", "messages", "queue", "source")

    def __init__(self, source: Source[Any], messages: Sequence[ReceivedMessage]) -> None:
        self.source = source
        self.queue = messages[0].queue
        self.messages = messages
        #: When the call began; set by the listener's thread.
        self.began_at: float | None = None
        self.hangs = False
        #: The verdict was processed; later ones are ignored.
        self.is_over = False
        #: It occupies one of the concurrent calls, normally until its verdict.
        self.has_slot = False
        #: It does so until its messages are settled.
        self.keeps_slot = False


D = TypeVar("D", bound=Delivery)


class Source(ABC, Generic[D]):
    """Takes messages from brokers and settles them. Lives on the event loop unless a method says otherwise."""

    client: ClusterClient
    #: Number of running and queued calls per listener thread.
    calls_per_thread = 1
    #: The messages of a call that hangs are retried while it still runs.
    retries_hanging = False
    group: str

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """True once a broker has accepted the consumer, and every position is fixed. On any thread."""

    @property
    @abstractmethod
    def topics(self) -> Collection[str]:
        """The subscribed topics."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a fork. On any thread."""

    async def begin(self) -> None:
        """Begin to read the topics, whose routes are known."""

    @abstractmethod
    async def take(self, room: int) -> None:
        """Submit about `room` deliveries to the host; return early if other work is due."""

    def may_begin(self, delivery: D) -> bool:
        """Return whether this consumer still owns the messages. On the listener's thread."""
        return True

    @abstractmethod
    def act_on(self, delivery: D, verdict: ListenerResult | None) -> Coroutine[Any, Any, None] | None:
        """Settle the messages, or return a coroutine that does; without a verdict, `may_begin` was false."""

    def is_current(self, delivery: D) -> bool:
        """Return whether a postponed delivery is still to be made."""
        return True

    def tick(self, now: float) -> None:
        """Do periodic work; called a few times a second."""

    @abstractmethod
    def stop(self, taking: asyncio.Task[None]) -> None:
        """Make `take` return."""

    async def give_back(self, withdrawn: Sequence[D]) -> None:
        """Return messages that will not be delivered, so that other consumers get them."""

    @abstractmethod
    async def end(self) -> None:
        """Commit or settle what is finished, and leave the group."""

    @abstractmethod
    def drop(self) -> None:
        """Close everything at once. On any thread but that of the loop."""
