"""Batches sent to a broker exactly as a test wants, and its answers as they come."""

from __future__ import annotations

import grpc

from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink

TIMEOUT_S = 30.0


class RawSender:
    """One connection to a broker, for append streams.

    Args:
        address: HOST:PORT of the broker.
    """

    def __init__(self, address: str) -> None:
        self._link = BrokerLink(address)
        #: All calls of the broker.
        self.stub = self._link.stub
        self.of = self._link.of

    def __enter__(self) -> RawSender:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    def send(
        self, topic: str, batches: list[tuple[int, bytes]], transaction: broker_pb2.Transaction | None = None
    ) -> list[broker_pb2.AppendResult]:
        """Send batches to queues in one stream, and return the answers in the order of the batches.

        Args:
            topic: of all of them.
            batches: queue ids and batches.
            transaction: for which they are staged.

        Raises:
            Broken: the stream broke ahead of some answers.
        """
        requests = [
            broker_pb2.AppendRequest(
                appends=[
                    broker_pb2.Append(
                        request_id=index, topic=topic, queue_id=queue_id, batch=data, transaction=transaction
                    )
                ]
            )
            for index, (queue_id, data) in enumerate(batches)
        ]
        answered: dict[int, broker_pb2.AppendResult] = {}
        try:
            for response in self._link.stub.Append(iter(requests), timeout=TIMEOUT_S):
                answered.update({result.request_id: result for result in response.results})
        except grpc.RpcError:
            if len(answered) < len(batches):
                raise Broken(answered) from None
        return [answered[index] for index in range(len(batches))]


class Broken(Exception):
    """A stream that broke. `answered` holds the answers that came before, by the index of their batch."""

    def __init__(self, answered: dict[int, broker_pb2.AppendResult]) -> None:
        super().__init__(f"the stream broke after {len(answered)} answers")
        self.answered = answered
