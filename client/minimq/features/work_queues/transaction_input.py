"""The input of a transaction that receives: the messages of one `receive`, which the transaction settles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from minimq.connection.client import ClusterClient
from minimq.features.work_queues.settler import RETURNED, Settlement, Settler
from minimq.features.work_queues.work_queue_message import WorkQueueMessage, merged, receipts_of
from minimq_common.errors import MinimqError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


class WorkQueueInput:
    """The messages of one `receive` in a transaction; see `TransactionInput`."""

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        settler: Settler,
        receive: Callable[[float, int], Any],
        let_go: Callable[[list[WorkQueueMessage]], None],
    ) -> None:
        self.client = client
        self._group = group
        self._settler = settler
        self._let_go = let_go
        self.receive = receive
        self.queue: MessageQueue | None = None
        self._messages: list[WorkQueueMessage] = []

    def took(self, messages: Sequence[WorkQueueMessage]) -> list[WorkQueueMessage]:
        """Record received messages of one broker as the input and return them; return the rest to their brokers."""
        if messages:
            self.queue = messages[0].queue
            broker_name = self.queue.broker_name
            self._messages = [message for message in messages if message.queue.broker_name == broker_name]
            if rest := [message for message in messages if message.queue.broker_name != broker_name]:
                self._let_go(rest)
        return [*self._messages]

    def progress(self) -> broker_pb2.AtomicProgress:
        settles = []
        for (queue, epoch), spans in receipts_of(self._messages, self._group).items():
            flat = [number for first, end in merged(spans) for number in (first, end - first)]
            settles.append(broker_pb2.PopSettle(topic=queue.topic, queue_id=queue.queue_id, epoch=epoch, spans=flat))
        return broker_pb2.AtomicProgress(group=self._group, settles=settles)

    def answered(self, error: MinimqError | None) -> None:
        """Do nothing: the broker has settled the messages, or not."""

    def may_pass(self) -> bool:
        """Return False: an expired handle stays expired."""
        return False

    async def go_back(self, *, rolled_back: bool) -> None:
        """Release the messages for redelivery; a rollback counts as a failed delivery."""
        how = Settlement(broker_pb2.POP_OUTCOME_FREE) if rolled_back else RETURNED
        with suppress(MinimqError):  # otherwise redelivered after their invisible duration
            await self._settler.settle(self._messages, how)
