"""The end of each delivery of a push consumer: finished, tried again, passed on, or given up."""

from __future__ import annotations

import logging
import queue as queues
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from minimq.administration.group_topics import make_group_topic
from minimq.connection.client import ClusterClient
from minimq.receiving.consumer_options import MAX_TRIES, ConsumerOptions
from minimq.receiving.listening.in_flight import Delivery, InFlightDeliveries
from minimq.receiving.listening.listener import Verdict, described
from minimq.receiving.listening.redelivery import (
    TRIES_USED_UP,
    copy_of,
    dead_letter_of,
    level_of,
    origin_of,
    passed_on,
    tried_again,
)
from minimq.receiving.received import ReceivedMessage
from minimq.sending.producer import Producer
from minimq.sending.receipt import SendReceipt
from minimq.transport.client_log import client_logger
from minimq_common.errors import MiniMQError, TopicNotFound, Unavailable
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import dead_letter_topic, retry_topic
from minimq_common.outage_log import OutageLog

log = client_logger(__name__)

#: A broker that did not take a copy comes last for so long.
_AVOID_S = 10.0
#: The most that any broker takes: what was received has passed the limit of its own.
_MOST_BYTES = 32 << 20


class Failed(NamedTuple):
    """A message that was not consumed."""

    message: ReceivedMessage
    #: Index of its wait, None when the number of tries decides.
    level: int | None
    reason: str = TRIES_USED_UP
    #: How often somebody had it, this time included unless it was not looked at.
    tries: int | None = None
    is_final: bool = False
    is_wanted: bool = False

    @property
    def attempts(self) -> int:
        """Number of consumption attempts."""
        return self.message.reconsume_times + 1 if self.tries is None else self.tries


class RetrySender:
    """Makes the topics of a group when they are first needed, and sends to them. Used by one thread."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        group: str,
        levels: int,
        max_tries: int,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._routes = client.routes
        self._queues = {retry_topic(group): levels, dead_letter_topic(group): 1}
        self._group = group
        self._max_tries = max_tries
        self._timeout_s = timeout_s
        self._producer: Producer | None = None
        self._outages = {topic: OutageLog(log) for topic in self._queues}
        self._complete: set[str] = set()
        self._avoided: dict[str, float] = {}

    def send(self, failed: Sequence[Failed]) -> list[bool]:
        """Send copies and wait for the outcome; tell which of them are on disk."""
        sent = [False] * len(failed)
        by_place: dict[tuple[str, int], list[int]] = {}
        for index, item in enumerate(failed):
            by_place.setdefault(self._place(item), []).append(index)
        for (topic, level), indices in by_place.items():
            outage = self._outages[topic]
            try:
                self._send_to(topic, level, [failed[index] for index in indices], indices, sent)
                if all(sent[index] for index in indices):
                    outage.worked("consumer: sends again group=%s topic=%s", self._group, topic)
            except MiniMQError as error:
                message = "consumer: cannot send, will try again group=%s topic=%s error=%s"
                outage.failed(message, self._group, topic, error, cause=error, level=logging.ERROR)
        return sent

    def close(self) -> None:
        """End all connections."""
        if self._producer is not None:
            try:
                self._producer.close(0.0)
            except MiniMQError as error:
                log.warning("consumer: copies may have been sent twice group=%s error=%s", self._group, error)

    # ---- sending --------------------------------------------------------------------------------

    def _place(self, item: Failed) -> tuple[str, int]:
        times = item.message.reconsume_times
        if item.is_final or 1 + times >= self._max_tries:
            return dead_letter_topic(self._group), 0
        topic = retry_topic(self._group)
        return topic, level_of(times, item.level, self._queues[topic])

    def _send_to(
        self, topic: str, level: int, failed: Sequence[Failed], indices: Sequence[int], sent: list[bool]
    ) -> None:
        queues = self._queues_at(self._route(topic), level, failed[0].message.queue.broker_name)
        if not queues:
            raise Unavailable(f"no broker takes messages for topic {topic}")
        is_dead = topic == dead_letter_topic(self._group)
        copies = [
            dead_letter_of(item.message, self._group, item.reason, item.attempts)
            if is_dead
            else copy_of(item.message, topic)
            for item in failed
        ]
        for queue in queues:
            left = [number for number, index in enumerate(indices) if not sent[index]]
            for number, error in self._send_copies([copies[number] for number in left], queue):
                if error is None:
                    sent[indices[left[number]]] = True
                    if is_dead:
                        self._log_dead_letter(failed[left[number]])
                else:
                    message = "consumer: cannot send, will try again group=%s queue=%s error=%s"
                    self._outages[topic].failed(message, self._group, queue, error, cause=error)
                    self._complete.discard(topic)  # somebody may have deleted it
                    self._avoided[queue.broker_name] = time.monotonic() + _AVOID_S
            if all(sent[index] for index in indices):
                return

    def _log_dead_letter(self, failed: Failed) -> None:
        queue, offset = origin_of(failed.message)
        log.log(
            logging.INFO if failed.is_wanted else logging.ERROR,
            "consumer: a dead letter group=%s topic=%s queue=%s offset=%s calls=%s reason=%s",
            self._group,
            failed.message.topic,
            queue,
            offset,
            failed.attempts,
            failed.reason,
        )

    def _send_copies(self, copies: Sequence[Message], queue: MessageQueue) -> list[tuple[int, MiniMQError | None]]:
        if self._producer is None:
            self._producer = Producer(self._client.cluster, send_timeout_s=self._timeout_s, max_body_bytes=_MOST_BYTES)
        under_way: list[Future[SendReceipt] | MiniMQError] = []
        for copy in copies:
            try:
                under_way.append(self._producer.send_async(copy, queue=queue))
            except MiniMQError as error:
                under_way.append(error)
        return [(number, _outcome(item)) for number, item in enumerate(under_way)]

    def _queues_at(self, route: TopicRoute, level: int, near: str) -> list[MessageQueue]:
        now = time.monotonic()
        of_broker: dict[str, MessageQueue] = {}
        for queue in route.write_queues():
            if queue.queue_id <= level:  # somebody may have made the topic with fewer queues
                of_broker[queue.broker_name] = queue
        return sorted(
            of_broker.values(),
            key=lambda queue: (self._avoided.get(queue.broker_name, 0) > now, queue.broker_name != near),
        )

    # ---- the topics -----------------------------------------------------------------------------

    def _route(self, topic: str) -> TopicRoute:
        if topic not in self._complete:
            make_group_topic(self._client, topic, self._queues[topic], self._timeout_s)
            self._complete.add(topic)
        try:
            return self._routes.route(topic)
        except TopicNotFound:  # it was deleted meanwhile
            self._complete.discard(topic)
            raise


class RetryWorker:
    """A thread that sends messages to the retry topic, so that listeners need not wait for it. Thread-safe."""

    def __init__(
        self,
        send: Callable[[Sequence[Failed]], Sequence[bool]],
        is_current: Callable[[Delivery], bool],
        done: Callable[[Delivery, list[ReceivedMessage]], None],
        name: str,
    ) -> None:
        self._send = send
        self._is_current = is_current
        self._done = done
        self._to_do: queues.SimpleQueue[tuple[Delivery, int | None, str, bool] | None] = queues.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(
        self, delivery: Delivery, level: int | None, reason: str = TRIES_USED_UP, *, is_final: bool = False
    ) -> None:
        """Have the messages of a call that failed for a reason sent back, to wait for so long as the level says.

        If the failure is final, they go to the dead letters instead.
        """
        self._to_do.put((delivery, level, reason, is_final))

    def close(self, timeout_s: float) -> None:
        """End when that is done which is under way. Idempotent."""
        if self._thread.is_alive():
            self._to_do.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (first := self._to_do.get()) is not None:
            waiting = [first]
            ended = False
            while not self._to_do.empty():
                item = self._to_do.get()
                if item is None:
                    ended = True
                    break
                waiting.append(item)
            self._return(waiting)
            if ended:
                return

    def _return(self, waiting: Sequence[tuple[Delivery, int | None, str, bool]]) -> None:
        wanted = [item for item in waiting if self._is_current(item[0])]
        failed = [
            Failed(message, level, why, is_final=is_final)
            for delivery, level, why, is_final in wanted
            for message in delivery.messages
        ]
        try:
            sent = iter(self._send(failed))
        except Exception:  # the messages stay in hand, and the thread serves all queues
            log.exception("consumer: messages could not be sent back")
            sent = iter([False] * len(failed))
        current = {delivery for delivery, _, _, _ in wanted}
        for delivery, _, _, _ in waiting:
            left = [message for message in delivery.messages if not next(sent)] if delivery in current else []
            self._done(delivery, left)


def _outcome(item: Future[SendReceipt] | MiniMQError) -> MiniMQError | None:
    if isinstance(item, MiniMQError):
        return item
    error = item.exception()
    if error is None or isinstance(error, MiniMQError):
        return error
    raise error


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
