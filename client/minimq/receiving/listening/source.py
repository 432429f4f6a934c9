"""Where the messages of a listener come from, as a `ListenerRunner` uses it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from minimq.connection.client import ClusterClient
from minimq.receiving.listening.listener import Verdict
from minimq.receiving.received import ReceivedMessage
from minimq_common.model import MessageQueue

if TYPE_CHECKING:  # it has a source
    from minimq.receiving.listening.listener_runner import ListenerRunner


class Delivery:
    """Messages of one queue and topic that the listener is called with together."""

    __slots__ = ("began_at", "hangs", "has_slot", "is_over", "keeps_slot", "messages", "queue", "verdict")

    def __init__(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        self.queue = queue
        self.messages = messages
        #: When the listener was called; set by its thread.
        self.began_at: float | None = None
        #: Given before the listener is asked, which then is not.
        self.verdict: Verdict | None = None
        self.hangs = False
        #: Its verdict was acted on: a later one does not matter.
        self.is_over = False
        #: It takes a slot of the listener until its verdict is there.
        self.has_slot = False
        #: Until its messages are settled.
        self.keeps_slot = False


D = TypeVar("D", bound=Delivery)


class Source(ABC, Generic[D]):
    """Where messages come from, and what becomes of them. Lives on the event loop unless a method says otherwise."""

    client: ClusterClient
    #: Calls that run or wait for each thread of the listener.
    calls_per_thread = 1
    #: Messages of a call that hangs are tried again meanwhile.
    retries_hanging = False
    group: str
    host: ListenerRunner[D]

    @property
    def is_member(self) -> bool:
        """True once a broker serves it. On any thread."""
        return True

    @property
    @abstractmethod
    def topics(self) -> Collection[str]:
        """The topics that are subscribed to."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a fork. On any thread."""

    async def begin(self) -> None:
        """Begin to read the topics, which were found."""

    @abstractmethod
    async def take(self, room: int) -> None:
        """Submit at most `room` deliveries to the host; return soon if there is something else to do."""

    def may_begin(self, delivery: D) -> bool:
        """Tell whether the messages are still this consumer's. On the listener's thread."""
        return True

    @abstractmethod
    def act_on(self, delivery: D, verdict: Verdict | None) -> Coroutine[Any, Any, None] | None:
        """Settle the messages, or return what waits for brokers to do so. No verdict: the call did not begin."""

    def is_current(self, delivery: D) -> bool:
        """Tell whether a delivery that was put off is to be made."""
        return True

    def tick(self, now: float) -> None:
        """Do what is due; called a few times a second."""

    @abstractmethod
    def stop(self, taking: asyncio.Task[None]) -> None:
        """Let `take` return."""

    async def give_back(self, withdrawn: Sequence[D]) -> None:
        """Let others have what no listener will be called with."""

    @abstractmethod
    async def end(self, timeout_s: float) -> None:
        """Finish with the brokers what was settled, and leave the group; a callback may take that long."""

    def is_callback(self) -> bool:
        """Tell whether the caller is a callback of the user, for whose end `end` waits. On any thread."""
        return False

    @abstractmethod
    def drop(self) -> None:
        """End everything at once. On any thread but that of the loop."""
