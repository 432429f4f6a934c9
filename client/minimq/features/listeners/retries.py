"""Redelivered messages: how often, and after what delay."""

from __future__ import annotations

from minimq.consuming.received import ReceivedMessage
from minimq.features.listeners.listener_options import RETRY_DELAYS_S, PushConsumerOptions
from minimq.features.work_queues.work_queue_options import MAX_DELIVERIES, invisible_ms

#: Default delay of orderly consumers: their queue waits meanwhile.
ORDERLY_RETRY_DELAY_S = 1.0
#: Reasons of dead letters, besides those of the listener.
TIMED_OUT = "listener did not return in time"
CANCELLED = "listener was cancelled"


class RetryRule:
    """Decides how often a message is delivered, and with which delays."""

    def __init__(self, options: PushConsumerOptions, *, in_order: bool = False) -> None:
        delays_s = options.retry_delays_s or ((ORDERLY_RETRY_DELAY_S,) if in_order else RETRY_DELAYS_S)
        self._delays_ms = [invisible_ms(delay_s, "a wait of retry_delays_s", 0) for delay_s in delays_s]
        #: None: unlimited.
        self.max_deliveries = (
            MAX_DELIVERIES if options.max_deliveries is None and not in_order else options.max_deliveries
        )

    def is_over(self, message: ReceivedMessage, *, is_final: bool = False) -> bool:
        """Return whether a message has no delivery left after this one."""
        return is_final or (self.max_deliveries is not None and message.delivery_count >= self.max_deliveries)

    def delay_ms(self, message: ReceivedMessage, chosen: int | None) -> int:
        """Return how many ms a failed message waits: the delay of that index, or the one of its delivery count."""
        level = message.delivery_count - 1 if chosen is None else chosen
        return self._delays_ms[min(level, len(self._delays_ms) - 1)]


class RepeatedMessage(ReceivedMessage, frozen=True, gc=False):
    """A message that the same consumer has delivered before."""

    delivered: int

    @property
    def delivery_count(self) -> int:
        return self.delivered + 1


def repeated(message: ReceivedMessage) -> RepeatedMessage:
    """Return the same message for another delivery."""
    return RepeatedMessage(message.batch, message.index, message.body, message.tag, message.delivery_count)
