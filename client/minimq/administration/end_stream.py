"""The stream that brings the ends of transactions with half messages to one broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream
from minimq_common.errors import MiniMQError
from minimq_common.wire.protocol_bounds import MAX_ENDS
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import halves_pb2


class EndStream(CorrelatedStream[halves_pb2.EndHalvesRequest, halves_pb2.EndHalfResponse, halves_pb2.EndHalfResult]):
    """Brings the ends of transactions to one broker, those that have gathered together. Thread-safe."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._gathered: deque[halves_pb2.EndHalvesRequest] = deque()
        #: The event loop has been woken, and has not looked yet.
        self._is_woken = False
        super().__init__(connection, address, lambda stub: stub.EndHalves, lambda _: ())

    def end(
        self,
        request: halves_pb2.EndHalfRequest,
        answer: Callable[[halves_pb2.EndHalfResult | None, MiniMQError | None], None],
    ) -> None:
        """Send an end; `answer` is called once, unless this raises: the stream has ended."""

        def numbered(request_id: int) -> halves_pb2.EndHalvesRequest:
            made = halves_pb2.EndHalvesRequest(ends=[request])
            made.ends[0].request_id = request_id
            return made

        self.request(numbered, answer)

    def _send(self, request: halves_pb2.EndHalvesRequest) -> None:
        self._gathered.append(request)
        if not self._is_woken:
            self._is_woken = True
            self._connection.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_woken = False  # first: whoever adds one from here on wakes the loop again
        while self._gathered:
            together = self._gathered.popleft()
            for _ in range(min(len(self._gathered), MAX_ENDS - 1)):
                together.MergeFrom(self._gathered.popleft())
            self._stream.send(together)

    def _respond(self, response: halves_pb2.EndHalfResponse) -> None:
        for result in response.results:
            answer = self._receivers.pop(result.request_id, None)
            if answer is not None:
                failure = from_failure(result.failure) if result.HasField("failure") else None
                answer(None if failure is not None else result, failure)
