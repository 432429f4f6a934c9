"""The outcomes of listener calls for work queues: messages are acknowledged, retried, or become dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from minimq.receiving.consumer_options import MAX_TRIES, ConsumerOptions, invisible_ms
from minimq.receiving.listener import Verdict
from minimq.receiving.popped import PoppedMessage
from minimq.receiving.popped_delivery import PoppedDelivery
from minimq.receiving.redelivery import level_of
from minimq.receiving.retry_worker import Failed
from minimq.receiving.simple_reader import SimpleReader
from minimq.transport.client_log import client_logger
from minimq_common.errors import HandleExpired, MiniMQError
from minimq_proto.v1 import broker_pb2

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
