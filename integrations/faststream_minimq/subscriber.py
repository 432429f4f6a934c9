"""The base class of subscribers, for all kinds of consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream.exceptions import SetupError

from faststream_minimq.config import MinimqBrokerConfig, MinimqSubscriberConfig
from faststream_minimq.message import MinimqParser, Settlement
from faststream_minimq.publisher import ReplyPublisher
from minimq import ReceivedMessage

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage


class MinimqSubscriber(SubscriberUsecase[Any], Settlement):
    """Calls handlers for the messages of a topic. Subclasses receive the messages, and settle them."""

    _outer_config: MinimqBrokerConfig

    def __init__(
        self,
        config: MinimqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        parser = MinimqParser(self)
        is_batch = config.options.batch
        config.parser = parser.parse_batch if is_batch else parser.parse_message
        config.decoder = parser.decode_batch if is_batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._topic, self.options = config.topic, config.options

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def group(self) -> str | None:
        """The consumer group; None if neither the subscriber nor its router or broker has one."""
        return self.options.group or self._outer_config.group

    def checked_group(self) -> str:
        """Return the consumer group. Raises `SetupError` if there is none."""
        if self.group is None:
            raise SetupError(
                f"the subscriber of topic {self.topic!r} has no consumer group: give "
                "broker.subscriber(..., group=...), or MinimqBroker(..., group=...) for all subscribers"
            )
        return self.group

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return the columns of log lines about a message."""
        return {
            "topic": self.topic,
            "group": self.group or "",
            "message_id": getattr(message, "message_id", ""),
            "place": _place_of(message),
        }


def _place_of(message: StreamMessage[Any] | None) -> str:
    """Return BROKER:QUEUE@OFFSET of the first message; empty for messages in memory."""
    raw = getattr(message, "raw_message", None)
    first = raw[0] if isinstance(raw, tuple) else raw
    if not isinstance(first, ReceivedMessage):
        return ""
    more = f" and {len(raw) - 1} more" if isinstance(raw, tuple) and len(raw) > 1 else ""
    return f"{first.queue.broker_name}:{first.queue.queue_id}@{first.queue_offset}{more}"
