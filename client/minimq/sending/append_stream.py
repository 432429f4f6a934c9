"""The append stream to one broker: requests with an id, results by that id."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from minimq.sending.decisions import Transaction
from minimq.transport.broker_link import BrokerLink
from minimq.transport.duplex import Duplex
from minimq_common.errors import MiniMQError, Unavailable
from minimq_common.large_fields import field_head
from minimq_common.model import MessageQueue
from minimq_common.rpc import from_failure
from minimq_proto.v1 import broker_pb2

#: Called with the result, or with the reason why there is none.
Answer = Callable[[broker_pb2.AppendResult | None, MiniMQError | None], None]

_BATCH = broker_pb2.AppendRequest.BATCH_FIELD_NUMBER


class AppendStream:
    """Sends batches to one broker. Thread-safe; answers come on the stream's own thread.

    Attributes:
        address: HOST:PORT of the broker.
    """

    def __init__(self, link: BrokerLink) -> None:
        self.address = link.address
        self._peer = f"broker {link.address}"
        self._ids = itertools.count(1)
        #: Protects `_waiting` and `_end`.
        self._lock = threading.Lock()
        self._waiting: dict[int, Answer] = {}
        self._end: MiniMQError | None = None
        self._stream: Duplex[tuple[bytes, ...], broker_pb2.AppendResponse] = Duplex(
            link.append, self._peer, self._on_response, self._on_end
        )

    @property
    def ended(self) -> bool:
        """True once the stream is over, so that a new one is needed."""
        return self._end is not None

    def append(
        self, queue: MessageQueue, data: bytes, answer: Answer, transaction: Transaction | None = None
    ) -> MiniMQError | None:
        """Send a batch, to be staged if it is of a transaction; `answer` is called once.

        Returns the reason when the stream has ended: then it never is.
        """
        with self._lock:
            request_id = next(self._ids)
            end = self._end
            if end is None:
                self._waiting[request_id] = answer
        if end is None:
            request = broker_pb2.AppendRequest(request_id=request_id, topic=queue.topic, queue_id=queue.queue_id)
            if transaction is not None:
                request.transaction.name = transaction.name
                request.transaction.number = transaction.number
            self._stream.send((request.SerializeToString(), field_head(_BATCH, len(data)), data))
        return end

    def give_up(self, reason: MiniMQError) -> None:
        """End at once: what is under way fails with this reason, and what was not sent yet never will be."""
        self._conclude(reason)
        self._stream.cancel()

    def close(self, timeout_s: float) -> None:
        """Let the broker answer what is under way, and end."""
        self._stream.finish()
        if not self._stream.join(timeout_s):
            self._stream.cancel()
            self._stream.join(1.0)

    def cancel(self) -> None:
        """End at once; what is under way fails."""
        self._stream.cancel()

    def _on_response(self, response: broker_pb2.AppendResponse) -> None:
        for result in response.results:
            with self._lock:
                answer = self._waiting.pop(result.request_id, None)
            if answer is None:
                continue
            if result.HasField("failure"):
                answer(None, from_failure(result.failure))
            else:
                answer(result, None)

    def _on_end(self, error: MiniMQError | None) -> None:
        self._conclude(error or Unavailable(f"{self._peer} ended the connection"))

    def _conclude(self, reason: MiniMQError) -> None:
        with self._lock:
            self._end = self._end or reason
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for answer in waiting:
            answer(None, reason)
