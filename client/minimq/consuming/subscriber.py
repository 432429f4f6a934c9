"""Base classes of the consumers of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minimq.consuming.message_filter import MessageFilter, TagExpression
from minimq_common.model import MessageQueue


class Subscriber:
    """Base of the consumer classes of users: delegates to the internal consumer."""

    _reader: Any
    #: Makes the filter of a subscription from tags and `where`.
    _make_filter: Callable[[TagExpression, str | None], MessageFilter]

    @property
    def group(self) -> str:
        """The consumer group; empty for a consumer without one, which has no leases and commits nothing."""
        return str(self._reader.group)

    @property
    def client_id(self) -> str:
        """Unique name of this consumer in its group."""
        return str(self._reader.client_id)

    def subscribe(self, topic: str, tags: TagExpression = "*", *, where: str | None = None) -> None:
        """Subscribe to a topic, before the first message is requested.

        Args:
            topic: its name; call again for further topics.
            tags: which ones: "*", for example "paid || refunded", or ["paid", "refunded"].
            where: which properties, for example "region = 'eu' AND amount > 10"; see docs/filtering.md. A message must
                match both. All members of a group need the same filter of a topic.

        Raises:
            InvalidArgument: the name or an expression is wrong, or queues were assigned.
        """
        self._reader.subscribe(topic, self._make_filter(tags, where))


class BaseConsumer(Subscriber):
    """Base of the consumers that may lease queues."""

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return list(self._reader.assignment)

    @property
    def missed_messages(self) -> int:
        """Number of messages skipped because they were deleted before they were read."""
        return int(self._reader.missed_messages)

    @property
    def filtered_messages(self) -> int:
        """Number of messages that were read but filtered out."""
        return int(self._reader.filtered_messages)
