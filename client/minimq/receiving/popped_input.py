"""The input of a transaction from a simple consumer: messages of one broker, which it settles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from minimq.connection.client import ClusterClient
from minimq.receiving.pop_stream import merged
from minimq.receiving.popped import PoppedMessage
from minimq.receiving.receipts import receipts_of
from minimq.receiving.settler import Settler
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


class PoppedInput:
    """The messages of one `receive` in a transaction; see `TransactionInput`.

    Args:
        client: of the consumer.
        group: of the consumer.
        settler: says what becomes of messages.
        receive: returns messages.
        let_go: returns messages that nobody has looked at.
    """

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        settler: Settler,
        receive: Callable[[float, int], Any],
        let_go: Callable[[list[PoppedMessage]], None],
    ) -> None:
        self.client = client
        self._group = group
        self._settler = settler
        self._let_go = let_go
        self.receive = receive
        self.queue: MessageQueue | None = None
        self._messages: list[PoppedMessage] = []

    def took(self, messages: Sequence[PoppedMessage]) -> list[PoppedMessage]:
        """Note messages that were received; return those of one broker, and let others have the rest."""
        if messages:
            self.queue = messages[0].queue
            broker_name = self.queue.broker_name
            self._messages = [message for message in messages if message.queue.broker_name == broker_name]
            if rest := [message for message in messages if message.queue.broker_name != broker_name]:
                self._let_go(rest)
        return [*self._messages]

    def progress(self) -> broker_pb2.AtomicProgress:
        """Return the settles of the messages."""
        settles = []
        for (queue, epoch), spans in receipts_of(self._messages, self._group).items():
            flat = [number for first, end in merged(spans) for number in (first, end - first)]
            settles.append(broker_pb2.PopSettle(topic=queue.topic, queue_id=queue.queue_id, epoch=epoch, spans=flat))
        return broker_pb2.AtomicProgress(group=self._group, settles=settles)

    def answered(self, error: MiniMQError | None) -> None:
        """Note that the messages are settled; a settle has its outcome at the broker alone."""
        if error is None:
            self._settler.in_hand.settled(receipts_of(self._messages, self._group))

    def may_pass(self) -> bool:
        """Return False: a handle that has expired stays so."""
        return False

    async def go_back(self, *, rolled_back: bool) -> None:
        """Let others, or this consumer, have the messages again; if the transaction was rolled back, they have failed.

        If it is stored, it settled them, and nothing changes.
        """
        outcome = broker_pb2.POP_OUTCOME_FREE if rolled_back else broker_pb2.POP_OUTCOME_RETURN
        with suppress(MiniMQError):  # they are redelivered after their invisible duration
            await self._settler.settle(self._messages, outcome, 0)
