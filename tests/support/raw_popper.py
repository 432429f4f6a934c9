"""A consumer that takes messages one by one, by the protocol alone: what a client library is made of."""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

import grpc

from minimq_common.batch.records import RecordBatch
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from minimq_proto.v1.work_queues_pb2_grpc import WorkQueuesStub


class Popped(NamedTuple):
    """A message that was handed out."""

    queue_id: int
    offset: int
    body: bytes
    delivery_count: int
    epoch: int


class RawPopper:
    """One consumer of a group, with one stream, on which it makes one request after the other.

    Args:
        address: of the broker.
        group: of the consumer.
        client_id: of the consumer.
        topic: whose messages it takes.

    Attributes:
        client_id: as above; may be another one for each request.
        topic: as above.
    """

    def __init__(self, address: str, group: str, client_id: str, topic: str = "t") -> None:
        self._group, self.client_id, self.topic = group, client_id, topic
        self._ids = itertools.count(1)
        self._results: deque[work_queues_pb2.PopResult] = deque()
        self._channel = grpc.insecure_channel(address)
        self._requests: queue.SimpleQueue[work_queues_pb2.PopRequest | None] = queue.SimpleQueue()
        stub = WorkQueuesStub(self._channel)
        self._answers: Iterator[work_queues_pb2.PopResponse] = stub.Pop(iter(self._requests.get, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say that it goes, and wait until the broker has heard it. Idempotent."""
        self._requests.put(work_queues_pb2.PopRequest(group=self._group, client_id=self.client_id, leaves=True))
        self._requests.put(None)
        with suppress(grpc.RpcError):
            list(self._answers)
        self._channel.close()

    def die(self) -> None:
        """End the connection without a word."""
        self._channel.close()

    def begin(
        self, *, takes: Iterable[work_queues_pb2.PopTake] = (), settles: Iterable[broker_pb2.PopSettle] = ()
    ) -> list[int]:
        """Send a request, and return the ids of its takes and settles."""
        request = work_queues_pb2.PopRequest(group=self._group, client_id=self.client_id, takes=takes, settles=settles)
        for settle in request.settles:
            settle.id = next(self._ids)
        for take in request.takes:
            take.id = next(self._ids)
        self._requests.put(request)
        return [*(settle.id for settle in request.settles), *(take.id for take in request.takes)]

    def cancel(self, take_ids: Sequence[int]) -> None:
        """Have takes wait no longer."""
        self._requests.put(work_queues_pb2.PopRequest(group=self._group, client_id=self.client_id, cancels=take_ids))

    def answer(self) -> work_queues_pb2.PopResult:
        """Return the next result. Raises what the broker says."""
        result = self.result()
        if result.HasField("failure"):
            raise from_failure(result.failure)
        return result

    def result(self) -> work_queues_pb2.PopResult:
        """Return the next result, also a failure."""
        if not self._results:
            self._results.extend(next(self._answers).results)
        return self._results.popleft()

    def take(
        self, most: int = 100, invisible_s: float = 30, wait_s: float = 0, *, max_bytes: int = 8 << 20
    ) -> list[Popped]:
        self.begin(takes=[self.taking(most, invisible_s, wait_s, max_bytes=max_bytes)])
        return popped(self.answer())

    def taking(
        self, most: int = 100, invisible_s: float = 30, wait_s: float = 0, *, max_bytes: int = 8 << 20
    ) -> work_queues_pb2.PopTake:
        """Return what `take` asks for."""
        return work_queues_pb2.PopTake(
            topic=self.topic,
            max_messages=most,
            max_bytes=max_bytes,
            invisible_ms=round(invisible_s * 1000),
            wait_ms=round(wait_s * 1000),
            start=broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST),
        )

    def settle(
        self,
        messages: Iterable[Popped],
        outcome: broker_pb2.PopOutcome.ValueType = broker_pb2.POP_OUTCOME_DONE,
        duration_s: float = 0,
    ) -> list[int]:
        """Say what becomes of messages of one hand-out; return the offsets that somebody else has."""
        self.begin(settles=[self.settling(messages, outcome, duration_s)])
        turns = iter(self.answer().expired)
        return [at for first, count in zip(turns, turns, strict=True) for at in range(first, first + count)]

    def settling(
        self,
        messages: Iterable[Popped],
        outcome: broker_pb2.PopOutcome.ValueType = broker_pb2.POP_OUTCOME_DONE,
        duration_s: float = 0,
    ) -> broker_pb2.PopSettle:
        """Return what `settle` says."""
        messages = sorted(messages)
        return broker_pb2.PopSettle(
            topic=self.topic,
            queue_id=messages[0].queue_id,
            epoch=messages[0].epoch,
            spans=[number for message in messages for number in (message.offset, 1)],
            outcome=outcome,
            duration_ms=round(duration_s * 1000),
        )


def popped(result: work_queues_pb2.PopResult) -> list[Popped]:
    """Return the messages of an answer."""
    response = result.popped
    opened = [(item.base_offset, RecordBatch(item.batch)) for item in response.batches]
    found = []
    for run in response.runs:
        for offset in range(run.first, run.first + run.count):
            base, batch = next((base, batch) for base, batch in reversed(opened) if base <= offset)
            body = batch.bodies(offset - base)[0]
            found.append(Popped(response.queue_id, offset, body, run.delivery_count, response.epoch))
    return found
