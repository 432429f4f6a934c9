"""Jobs for the writer about delayed batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minimq_broker.core.delays import DueKey, RecallOutcome
from minimq_broker.store.job import Job


class DelayJob(Job, ABC):
    """A job about delayed batches."""

    __slots__ = ()

    @abstractmethod
    def tell(self) -> None:
        """Tell whoever made the job that it is done."""


@dataclass(slots=True, eq=False)
class DueJob(DelayJob):
    """The next delayed batches that are due by the clock of the writer, as many as one commit takes, to be published.

    Results: how many batches and messages were published, and how late each batch was, in ms; how many batches were
    passed over since they were recalled, their topic was deleted, or they are damaged; whether more are due.
    """

    done: Callable[[DueJob], None]
    messages: int = field(default=0, init=False)
    late_ms: list[int] = field(default_factory=list, init=False)
    recalled: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    lost: int = field(default=0, init=False)
    has_more: bool = field(default=False, init=False)

    @property
    def published(self) -> int:
        """The number of published batches."""
        return len(self.late_ms)

    def tell(self) -> None:
        """Tell whoever made the job that it is done."""
        self.done(self)

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return 256


@dataclass(slots=True, eq=False)
class RecallJob(DelayJob):
    """Delayed batches of a topic, to be taken back if they still wait.

    Results: what has become of each, in their order.
    """

    topic: str
    keys: Sequence[DueKey]
    done: Callable[[RecallJob], None]
    outcomes: list[RecallOutcome] = field(default_factory=list, init=False)

    def tell(self) -> None:
        """Tell whoever made the job that it is done."""
        self.done(self)

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return 256 + 64 * len(self.keys)
