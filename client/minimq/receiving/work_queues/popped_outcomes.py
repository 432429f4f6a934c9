"""The calls of a listener for messages of a work queue: in turn, and acknowledged, retried, or made dead letters."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Container, Iterator, Sequence

from minimq.receiving.consumer_options import MAX_TRIES, ConsumerOptions, invisible_ms
from minimq.receiving.listening.delivery_outcomes import Failed
from minimq.receiving.listening.listener import Verdict
from minimq.receiving.listening.redelivery import level_of
from minimq.receiving.work_queues.popped import PoppedMessage
from minimq.receiving.work_queues.simple_reader import SimpleReader
from minimq.transport.client_log import client_logger
from minimq_common.errors import HandleExpired, MiniMQError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


class PoppedDelivery:
    """A call of the listener, from its messages until they are settled."""

    def __init__(self, messages: Sequence[PoppedMessage], now: float) -> None:
        self.messages = messages
        self.kept = messages
        self.kept_at = now
        self.began_at: float | None = None
        self.is_being_kept = False
        self.is_answered = False
        self.is_lost = False
        self.hangs = False
        self._claim = threading.Lock()

    @property
    def queue(self) -> MessageQueue:
        """Queue of the messages."""
        return self.messages[0].queue

    @property
    def lane(self) -> int:
        """Hash of the message group of the messages; 0 if their topic is not FIFO."""
        return self.messages[0].lane

    @property
    def epoch(self) -> int:
        """The epoch of their delivery by the broker."""
        return self.messages[0].epoch

    def cut(self, count: int) -> Sequence[PoppedMessage]:
        """Keep the first messages, and return the others."""
        rest, self.messages = self.messages[count:], self.messages[:count]
        self.kept = self.messages
        return rest

    def claim(self) -> bool:
        """Return True to the first caller, who either calls the listener or returns the messages. Thread-safe."""
        return self._claim.acquire(blocking=False)


def deliveries(messages: Sequence[PoppedMessage], batch_size: int, now: float) -> Iterator[PoppedDelivery]:
    """Yield the calls of the listener for messages.

    A message that was tried before has a call of its own, so that it does not make others fail. Those of a FIFO
    topic stay in order within their message group.
    """
    if messages and messages[0].lane:
        yield from _in_order(messages, batch_size, now)
        return
    fresh = [message for message in messages if message.tries == 1]
    for first in range(0, len(fresh), batch_size):
        yield PoppedDelivery(fresh[first : first + batch_size], now)
    for message in messages:
        if message.tries > 1:
            yield PoppedDelivery([message], now)


def _in_order(messages: Sequence[PoppedMessage], batch_size: int, now: float) -> Iterator[PoppedDelivery]:
    by_lane: dict[int, list[PoppedMessage]] = {}
    for message in messages:
        by_lane.setdefault(message.lane, []).append(message)
    for lane in by_lane.values():
        part: list[PoppedMessage] = []
        for message in lane:
            if part and (len(part) == batch_size or message.tries > 1 or part[-1].tries > 1):
                yield PoppedDelivery(part, now)
                part = []
            part.append(message)
        yield PoppedDelivery(part, now)


class LaneQueues:
    """The deliveries of each lane, of which one may be at work and the others wait. Not thread-safe."""

    def __init__(self) -> None:
        #: By queue and lane, the deliveries that wait for the one at work.
        self._waiting: dict[tuple[MessageQueue, int], deque[PoppedDelivery]] = {}

    def add(self, delivery: PoppedDelivery) -> bool:
        """Add a delivery; return whether it may begin now. Otherwise `following` returns it when its turn has come."""
        waiting = self._waiting.get((delivery.queue, delivery.lane))
        if waiting is not None:
            waiting.append(delivery)
        elif delivery.lane:
            self._waiting[delivery.queue, delivery.lane] = deque()
        return waiting is None

    def withdraw(self, delivery: PoppedDelivery) -> list[PoppedDelivery]:
        """Remove and return the deliveries that wait for one and came from the broker together with it."""
        waiting = self._waiting[delivery.queue, delivery.lane]
        found = [each for each in waiting if each.epoch == delivery.epoch]
        self._waiting[delivery.queue, delivery.lane] = deque(each for each in waiting if each not in found)
        return found

    def following(self, delivery: PoppedDelivery, among: Container[PoppedDelivery]) -> PoppedDelivery | None:
        """Return the delivery whose turn has come; None if none waits."""
        waiting = self._waiting[delivery.queue, delivery.lane]
        while waiting:
            if (found := waiting.popleft()) in among:
                return found
        del self._waiting[delivery.queue, delivery.lane]
        return None


log = client_logger(__name__)

#: Delay before a settle that failed is tried again, in seconds.
_AGAIN_S = 0.5


def most_tries(options: ConsumerOptions) -> int:
    """Return the number of deliveries after which a message is a dead letter."""
    return MAX_TRIES if options.max_tries is None else options.max_tries


class PoppedOutcomes:
    """Settles the messages of deliveries by the results of the listener. Lives on the event loop of the connection."""

    def __init__(self, reader: SimpleReader, options: ConsumerOptions) -> None:
        self._reader = reader
        self._delays_ms = [invisible_ms(delay_s, "a wait of retry_delays_s", 0) for delay_s in options.retry_delays_s]
        self._invisible_ms = invisible_ms(options.invisible_s)
        self._most_tries = most_tries(options)

    async def settle(self, delivery: PoppedDelivery, found: Verdict) -> None:
        """Acknowledge the successful messages; release the others, or make dead letters of them."""
        if not found.again:  # as in most calls
            delivery.is_answered = True
            await self._finish(delivery, delivery.messages)
            return
        again = set(found.again)
        done = [message for index, message in enumerate(delivery.messages) if index not in again]
        failed = [delivery.messages[index] for index in found.again]
        used_up = [message for message in failed if found.is_final or message.tries >= self._most_tries]
        by_delay: dict[int, list[PoppedMessage]] = {}
        for message in failed:
            if not found.is_final and message.tries < self._most_tries:
                level = level_of(message.reconsume_times, found.level, len(self._delays_ms))
                by_delay.setdefault(self._delays_ms[level], []).append(message)
        delivery.kept, delivery.is_answered = [*done, *used_up], True
        await asyncio.gather(
            self._finish(delivery, done),
            self._bury(delivery, used_up, found.reason),
            *(
                self._insist(delivery, messages, broker_pb2.POP_OUTCOME_FREE, delay_ms)
                for delay_ms, messages in by_delay.items()
            ),
        )

    async def give_back(self, delivery: PoppedDelivery, messages: Sequence[PoppedMessage]) -> None:
        """Return messages that nobody has looked at, however long that takes; this delivery counts no try."""
        if messages:
            await self._insist(delivery, messages, broker_pb2.POP_OUTCOME_RETURN)

    async def _finish(self, delivery: PoppedDelivery, messages: Sequence[PoppedMessage]) -> None:
        if messages:
            await self._insist(delivery, messages, broker_pb2.POP_OUTCOME_DONE)

    async def _bury(self, delivery: PoppedDelivery, messages: Sequence[PoppedMessage], reason: str) -> None:
        left = messages
        while left and not self._reader.is_closed:
            sent = await self._reader.send_to_dead_letters(
                [Failed(message, None, reason, message.tries) for message in left]
            )
            await self._finish(delivery, [message for message, is_sent in zip(left, sent, strict=True) if is_sent])
            left = [message for message, is_sent in zip(left, sent, strict=True) if not is_sent]
            if left:
                await asyncio.sleep(_AGAIN_S)

    async def _insist(
        self,
        delivery: PoppedDelivery,
        messages: Sequence[PoppedMessage],
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int = 0,
    ) -> None:
        while not self._reader.is_closed:
            try:
                await self._reader.settler.settle(messages, outcome, duration_ms)
                return
            except HandleExpired as error:
                self._log_expired(delivery, error)
                return
            except MiniMQError as error:
                if not error.retriable and not self._reader.is_closed:
                    text = "consumer: messages are not settled, and will be redelivered group=%s queue=%s error=%s"
                    log.error(text, self._reader.group, delivery.queue, error)
                    delivery.is_lost = True
                    return
            await asyncio.sleep(_AGAIN_S)

    def _log_expired(self, delivery: PoppedDelivery, error: HandleExpired) -> None:
        if not delivery.is_lost:
            text = "consumer: others were given messages that a listener has here group=%s queue=%s error=%s"
            log.warning(text, self._reader.group, delivery.queue, error)
        delivery.is_lost = True

    async def still_held(self, messages: Sequence[PoppedMessage]) -> Sequence[PoppedMessage]:
        """Extend messages that may have expired on their way; return those that were not redelivered to others."""
        try:
            await self._reader.settler.settle(messages, broker_pb2.POP_OUTCOME_EXTEND, self._invisible_ms)
        except HandleExpired as error:
            expired = set(error.handles)
            return [message for message in messages if message.handle not in expired]
        return messages

    async def keep(self, delivery: PoppedDelivery, now: float) -> None:
        """Restart the invisible duration of the messages of a delivery."""
        delivery.is_being_kept = True
        kept, extend = delivery.kept, broker_pb2.POP_OUTCOME_EXTEND
        try:
            await self._reader.settler.settle(kept, extend, self._invisible_ms)
            delivery.kept_at = now
        except HandleExpired as error:
            if not delivery.is_answered:  # else they are just being settled
                self._log_expired(delivery, error)
        except MiniMQError as error:
            log.debug("consumer: not kept for longer, will try again group=%s error=%s", self._reader.group, error)
        finally:
            delivery.is_being_kept = False
