"""The stream that brings the ends of transactions with half messages to one broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from minimq.connection.at_master import answer_of
from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream, Part
from minimq_common.wire.protocol_bounds import MAX_ENDS
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import halves_pb2


class EndStream(CorrelatedStream[halves_pb2.EndHalvesRequest, halves_pb2.EndHalfResponse, halves_pb2.EndHalfResult]):
    """Sends ends to one broker, on the event loop of the connection; those that wait travel together."""

    def __init__(self, connection: Connection, address: str) -> None:
        super().__init__(connection, address, lambda stub: stub.EndHalves, _parts, _joined)

    async def end(self, request: halves_pb2.EndHalfRequest) -> halves_pb2.EndHalfResult:
        """End a transaction; return the outcome that stands."""

        def numbered(request_id: int) -> halves_pb2.EndHalvesRequest:
            request.request_id = request_id
            return halves_pb2.EndHalvesRequest(ends=[request])

        result: halves_pb2.EndHalfResult = await answer_of(partial(self.request, numbered))
        if result.HasField("failure"):
            raise from_failure(result.failure)
        return result


def _joined(
    request: halves_pb2.EndHalvesRequest, others: deque[halves_pb2.EndHalvesRequest | None]
) -> halves_pb2.EndHalvesRequest:
    while others and (other := others[0]) is not None and len(request.ends) < MAX_ENDS:
        request.MergeFrom(other)
        others.popleft()
    return request


def _parts(response: halves_pb2.EndHalfResponse) -> Iterator[Part[halves_pb2.EndHalfResult]]:
    return (Part(result.request_id, result) for result in response.results)
