"""Looks up the queues of a subscription at the brokers, to plan batch queries and streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from minimq import MessageQueue, MinimqError, errors
from minimq.connection.master_calls import with_retries
from minimq.connection.offline_brokers import describe_offline
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.stored_offsets import StoredOffsets, TopicOnBroker
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.options import Position
from pyspark_minimq.planning import LookupResult, Offsets, Subscription, TimesByQueue, place_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class Lookup:
    """Looks up the queues of a subscription. Not thread-safe."""

    def __init__(self, finder: QueueFinder, subscription: Subscription, timeout_s: float) -> None:
        self._finder = finder
        self._subscription = subscription
        self._timeout_s = timeout_s

    def names(self) -> list[str]:
        """Return the topics to read. Raises `Unavailable` if there is a pattern and no name server answers."""
        return self._subscription.names(self._finder.topics() if self._subscription.pattern is not None else ())

    def look(self, topics: Iterable[str], known: Iterable[TopicOnBroker] = ()) -> LookupResult:
        """Ask brokers for the queues of topics. Brokers that do not answer are listed in the result."""
        found = self._finder.find(topics, known)
        for (topic, broker), error in found.failures.items():
            if not error.retriable:
                raise error.with_message(f"topic {topic} cannot be looked up on {broker}: {error.message}")
        for queue, about in found.queues.items():
            if not about.is_readable:
                raise MinimqSparkError(
                    f"topic {queue.topic} is not readable on {queue.broker_name}: allow it with "
                    f"`minimq topic update {queue.topic} --permission read-write`"
                )
        return LookupResult(
            found.queues,
            found.absent,
            silent={
                place: f"{place.broker_name}: does not answer ({error.message})"
                for place, error in found.failures.items()
            },
            offline={place: describe_offline([each], "not read")[0] for place, each in found.offline.items()},
        )

    def with_retries(self, attempt: Callable[[], T]) -> T:
        """Call `attempt`, and retry until the read timeout while a server is offline."""
        return with_retries(lambda _: attempt(), self._timeout_s, option="readTimeout")

    def whole(self, *, partial: bool) -> dict[MessageQueue, StoredOffsets]:
        """Return the bounds of all queues to read; with `partial`, without brokers that do not answer in time."""
        try:
            return self.with_retries(lambda: self._whole(without_offline=partial))
        except errors.Unavailable:
            if not partial:
                raise
            return self._whole(without_offline=True, without_silent=True)

    def _whole(self, *, without_offline: bool, without_silent: bool = False) -> dict[MessageQueue, StoredOffsets]:
        topics = self.names()
        if not topics:
            log.warning("subscribePattern %r matches no topic: there is nothing to read", self._subscription.pattern)
        sight = self.look(topics)
        self.check(sight, partial=without_silent or (without_offline and not sight.silent))
        for topic in sorted(set(topics) - {queue.topic for queue in sight.bounds}):
            for place, text in sight.unseen.items():
                if place.topic == topic:
                    raise errors.Unavailable(f"topic {topic} is on no other broker: {text}; start it again")
            if not (without_offline and self._subscription.queues):
                raise errors.TopicNotFound.nowhere(topic)
        missing = {queue for queue in self._subscription.queues if place_of(queue) in sight.unseen}
        self._subscription.check(sight.bounds.keys() | missing, fail_on_data_loss=not without_offline)
        return self._subscription.chosen(sight.bounds)

    def check(self, sight: LookupResult, *, partial: bool) -> None:
        """Raise `Unavailable` if brokers with queues to read are silent or offline; with `partial`, only warn."""
        unseen = self._subscription.unseen(sight.unseen)
        what = "; ".join(f"topic {place.topic}: {text}" for place, text in unseen.items())
        if unseen and not partial:
            raise errors.Unavailable(f"{what}; start it again, or read the others with failOnDataLoss=false")
        if unseen:
            log.warning("reading what is there: %s", what)

    def offsets_at(
        self, position: Position, bounds: Mapping[MessageQueue, StoredOffsets], *, fail_on_data_loss: bool
    ) -> Offsets:
        """Convert times to offsets within the bounds; returns offsets unchanged."""
        if isinstance(position, datetime):
            moments = dict.fromkeys(bounds, position)
        elif isinstance(position, TimesByQueue):
            position.check(bounds, fail_on_data_loss=fail_on_data_loss)
            moments = dict(position.times)
        else:
            return position
        found: dict[MessageQueue, int] = {}
        for moment in dict.fromkeys(moments.values()):
            queues = [queue for queue in bounds if moments[queue] == moment]
            found |= self._finder.offsets_at(queues, moment)
        # Messages after the bounds arrived later and do not belong to the query; those before are deleted.
        return {queue: min(max(found[queue], at.first), at.end) for queue, at in bounds.items()}

    def publish(self, group: str, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, MinimqError]:
        """Commit progress for a group. Returns the queues for which that failed, with the errors."""
        try:
            return self._finder.publish(group, offsets)
        except errors.InvalidArgument as error:
            raise MinimqSparkError(f"consumerGroup: {error.message}") from None
