"""The stream that brings the ends of transactions with half messages to one broker."""

from __future__ import annotations

from collections.abc import Callable

from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream
from minimq_common.errors import MiniMQError
from minimq_common.rpc import from_failure
from minimq_proto.v1 import halves_pb2


class EndStream(CorrelatedStream[halves_pb2.EndHalfRequest, halves_pb2.EndHalfResponse, halves_pb2.EndHalfResult]):
    """Brings the ends of transactions to one broker. Thread-safe."""

    def __init__(self, connection: Connection, address: str) -> None:
        super().__init__(connection, address, lambda stub: stub.EndHalves, lambda _: ())

    def end(
        self,
        request: halves_pb2.EndHalfRequest,
        answer: Callable[[halves_pb2.EndHalfResult | None, MiniMQError | None], None],
    ) -> None:
        """Send an end; `answer` is called once, unless this raises: the stream has ended."""

        def numbered(request_id: int) -> halves_pb2.EndHalfRequest:
            copied = halves_pb2.EndHalfRequest()
            copied.CopyFrom(request)
            copied.request_id = request_id
            return copied

        self.request(numbered, answer)

    def _respond(self, response: halves_pb2.EndHalfResponse) -> None:
        for result in response.results:
            with self._lock:
                answer = self._receivers.pop(result.request_id, None)
            if answer is not None:
                failure = from_failure(result.failure) if result.HasField("failure") else None
                answer(None if failure is not None else result, failure)
