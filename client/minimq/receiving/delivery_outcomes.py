"""The end of each delivery of a push consumer: finished, tried again, passed on, or given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from minimq.connection.client import ClusterClient
from minimq.receiving.consumer_options import MAX_TRIES, ConsumerOptions
from minimq.receiving.in_flight import Delivery, InFlightDeliveries
from minimq.receiving.listener import Verdict, described
from minimq.receiving.received import ReceivedMessage
from minimq.receiving.redelivery import TRIES_USED_UP, passed_on, tried_again
from minimq.receiving.retry_worker import RetrySender, RetryWorker
from minimq.transport.client_log import client_logger
from minimq_common.names import retry_topic

log = client_logger(__name__)

_WAIT_S = 0.2
#: The index of the wait of a message that another member is to try.
_PASS_ON_LEVEL = 0


class DeliveryOutcomes:
    """Carries out what becomes of deliveries. Thread-safe."""

    def __init__(
        self,
        client: ClusterClient,
        in_flight: InFlightDeliveries,
        submit: Callable[[Delivery], None],
        topics_of_others: Callable[[], Collection[str]],
        group: str,
        options: ConsumerOptions,
        *,
        orderly: bool,
    ) -> None:
        self.retry_topic = retry_topic(group) if options.model == "clustering" else None
        self._in_flight = in_flight
        self._submit = submit
        self._topics_of_others = topics_of_others
        self._group = group
        self._orderly = orderly
        self._pause_s = options.suspend_s if orderly else options.local_retry_s
        #: None: without end.
        self.max_tries = MAX_TRIES if options.max_tries is None and not orderly else options.max_tries
        self.sender = RetrySender(
            client,
            group=group,
            levels=len(options.retry_delays_s),
            max_tries=self.max_tries or 0,
            timeout_s=options.request_timeout_s,
        )
        self._retry_worker = RetryWorker(
            self.sender.send, in_flight.is_current, self._returned, name=f"minimq-retry-{group}"
        )

    def start(self) -> None:
        """Begin to send messages to the retry topic."""
        self._retry_worker.start()

    def close(self) -> None:
        """End; what is being sent may still arrive. Idempotent."""
        self._retry_worker.close(_WAIT_S)
        self.sender.close()

    def begin(self, delivery: Delivery) -> bool:
        """Note that the listener is about to be called; return whether it is to be, and not another member's."""
        if not self._in_flight.begin(delivery, time.monotonic()):
            return False
        if delivery.gives_up:
            if self._in_flight.answered(delivery):
                self._retry_worker.put(delivery, None, delivery.gives_up, is_final=True)
            return False
        if delivery.queue.topic != self.retry_topic or delivery.messages[0].topic not in self._topics_of_others():
            return True
        # It waited for another try of a topic that others of the group know. It waits again until it comes to one of
        # them; that is no try.
        if self._in_flight.answered(delivery):
            log.info("consumer: passed on to another member group=%s topic=%s", self._group, delivery.messages[0].topic)
            self._in_flight.narrow(delivery, [passed_on(message) for message in delivery.messages])
            self._retry_worker.put(delivery, _PASS_ON_LEVEL)
        return False

    def answered(self, delivery: Delivery, found: Verdict) -> None:
        """Act on what the listener has answered, if that still matters."""
        if not self._in_flight.answered(delivery):
            return
        if not found.again:
            self._finish(delivery)
            return
        if len(found.again) < len(delivery.messages):
            self._in_flight.narrow(delivery, [delivery.messages[index] for index in found.again])
        self.try_again(delivery, found.level, found.reason, is_final=found.is_final)

    def try_again(
        self, delivery: Delivery, level: int | None, reason: str = TRIES_USED_UP, *, is_final: bool = False
    ) -> None:
        """Have messages tried again: from the retry topic, or here when they must not be overtaken."""
        tries = 1 + delivery.messages[0].reconsume_times
        used_up = is_final or (self.max_tries is not None and tries >= self.max_tries)
        if self.retry_topic is None and used_up:
            log.error(
                "consumer: passed over after %s tries group=%s queue=%s messages=%s",
                tries,
                self._group,
                delivery.queue,
                described(delivery.messages),
            )
            self._finish(delivery)
        elif self.retry_topic is not None and (used_up or not self._orderly):
            self._retry_worker.put(delivery, level, reason, is_final=is_final)
        else:
            self._try_here(delivery, delivery.messages)

    def _try_here(self, delivery: Delivery, messages: Sequence[ReceivedMessage]) -> None:
        again = messages if delivery.gives_up else [tried_again(message) for message in messages]
        self._in_flight.put_aside(delivery, again, time.monotonic() + self._pause_s)

    def _returned(self, delivery: Delivery, left: list[ReceivedMessage]) -> None:
        if left:
            self._try_here(delivery, left)
        else:
            self._finish(delivery)

    def _finish(self, delivery: Delivery) -> None:
        following = self._in_flight.finish(delivery)
        if following is not None:
            self._submit(following)
