"""The options of a subscriber."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from minimq import errors

_RETRY_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@dataclass(frozen=True, slots=True)
class SubscriberOptions:
    """The options of a subscriber: its filter, how it reads, and its retries.

    Attributes:
        group: the consumer group; by default that of the router or the broker.
        tags: "*" for all messages, tags joined by "||", or a collection of tags.
        where: a filter on properties, such as "amount > 100". A group has one filter for each topic.
        orderly: read queues in order, by committed offsets, instead of messages one by one as a work queue.
        max_workers: maximum number of concurrent handlers. In an orderly subscriber, they run for different queues.
        batch: call the handler with lists of messages.
        batch_size: maximum number of messages in one call of a batch subscriber.
        invisible_s: seconds after which the messages of a hanging process are redelivered. It is extended while a
            handler runs.
        max_deliveries: deliveries of a message, including the first, before it becomes a dead letter. None for no
            limit, which only an orderly subscriber may have.
        retry_delays_s: seconds before each retry; the last value applies to all further ones.
        orderly_retry_delay_s: seconds before an orderly subscriber retries, 0.01 to 30.
        start: where a new group begins: "earliest", "latest" or a time.

    Raises:
        InvalidArgument: a number is out of its range, or missing.
    """

    group: str | None = None
    tags: str | Sequence[str] = "*"
    where: str | None = None
    orderly: bool = False
    max_workers: int = 1
    batch: bool = False
    batch_size: int = 100
    invisible_s: float = 30.0
    max_deliveries: int | None = 16
    retry_delays_s: Sequence[float] = _RETRY_DELAYS_S
    orderly_retry_delay_s: float = 1.0
    start: Any = "earliest"

    def __post_init__(self) -> None:
        for name in ("max_workers", "batch_size"):
            if type(value := getattr(self, name)) is not int or not 1 <= value <= 10_000:
                raise errors.InvalidArgument(f"{name} is {value!r}: it must be a whole number from 1 to 10,000")
        if not self.retry_delays_s or not all(0 <= delay <= 43_200 for delay in self.retry_delays_s):
            raise errors.InvalidArgument(
                f"retry_delays_s is {self.retry_delays_s!r}: give at least one number of seconds from 0 to 43200"
            )
        if self.max_deliveries is None and not self.orderly:
            raise errors.InvalidArgument("max_deliveries is None: a work queue needs a number from 1 on")

    def delay_s(self, delivery_count: int) -> float:
        """Return the seconds before the retry of a message that has failed `delivery_count` times."""
        return self.retry_delays_s[min(delivery_count, len(self.retry_delays_s)) - 1]


class SubscriberFields(TypedDict, total=False):
    """The fields of `SubscriberOptions`, for functions that take them by name."""

    group: str | None
    tags: str | Sequence[str]
    where: str | None
    orderly: bool
    max_workers: int
    batch: bool
    batch_size: int
    invisible_s: float
    max_deliveries: int | None
    retry_delays_s: Sequence[float]
    orderly_retry_delay_s: float
    start: Any
