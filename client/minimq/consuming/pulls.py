"""Carries out the pulls of queue readers over streams to the brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from minimq.connection.client import ClusterClient
from minimq.connection.connection import Connection
from minimq.connection.replica_selector import ReplicaSelector
from minimq.connection.stream import CorrelatedStream, Part
from minimq.consuming.member_state import Grant
from minimq.consuming.queue_decisions import Cancel, Decision, Frame, LeaseOver, OffsetReset, Pull
from minimq.consuming.received import EncodedRecords
from minimq_common.errors import MinimqError
from minimq_common.model import MessageQueue
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2

PullStream = CorrelatedStream[broker_pb2.PullRequest, broker_pb2.PullFrame, broker_pb2.PullFrame]


def open_pulls(connection: Connection, address: str) -> PullStream:
    """Open a stream that carries any number of pulls from one broker. Raises `Closed`."""
    return CorrelatedStream(
        connection, address, lambda stub: stub.Pull, lambda frame: (Part(frame.pull_id, frame, frame.end),)
    )


class PullingReader(Protocol):
    """Decides about the pulls of a queue: a `QueueReader`, or one that stops at the end of a range."""

    queue: MessageQueue
    lease: Grant

    def is_pulling(self, number: int) -> bool: ...
    def tick(self, now: float) -> list[Decision]: ...
    def cancel(self) -> list[Decision]: ...
    def frame_arrived(self, number: int, frame: Frame, now: float) -> list[Decision]: ...
    def pull_failed(self, number: int, error: MinimqError | None, now: float) -> list[Decision]: ...


R = TypeVar("R", bound=PullingReader)


class _UnderWay(NamedTuple):
    number: int
    stream: PullStream
    pull_id: int
    address: str


class Pulls(Generic[R]):
    """The pulls in flight, on one stream per broker. Lives on the event loop of the connection."""

    def __init__(
        self,
        changed: Callable[[R], None],
        places: ReplicaSelector,
        client: ClusterClient,
        tag_hashes: Callable[[str], Sequence[int]],
        decided: Callable[[R, LeaseOver | OffsetReset], None] | None = None,
        group: str = "",
        client_id: str = "",
    ) -> None:
        #: Called after a broker has answered the pull of a reader.
        self._changed = changed
        self._places = places
        self._client = client
        #: Returns the hashes of the wanted tags of a topic; none for all tags.
        self._tag_hashes = tag_hashes
        #: Receives all decisions but pulls and cancellations.
        self._decided = decided
        self._group = group
        self._client_id = client_id
        self._closed = False
        #: By broker address; read by any thread.
        self.streams: dict[str, PullStream] = {}
        self._under_way: dict[R, _UnderWay] = {}

    def carry_out(self, reader: R, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Pull():
                    self._begin(reader, decision)
                case Cancel():
                    under_way = self._under_way.pop(reader, None)
                    if under_way is not None:
                        farewell = broker_pb2.PullRequest(pull_id=under_way.pull_id, cancel=True)
                        under_way.stream.forget(under_way.pull_id, farewell)
                case _ if self._decided is not None:
                    self._decided(reader, decision)

    def tick(self, reader: R, now: float) -> None:
        """Begin the next pull if it is due; restart a pull whose queue is now read at another server."""
        under_way = self._under_way.get(reader)
        if under_way is not None and self._is_elsewhere(reader, under_way.address):
            self.carry_out(reader, reader.cancel())
        self.carry_out(reader, reader.tick(now))

    def give_up(self, reader: R, error: MinimqError, now: float) -> None:
        """Fail the pull of a reader whose broker does not answer, and close the stream to that broker."""
        under_way = self._under_way.pop(reader, None)
        if under_way is not None:
            self._places.failed(under_way.address, error)
            self.carry_out(reader, reader.pull_failed(under_way.number, error, now))
            if (stream := self.streams.pop(under_way.address, None)) is not None:
                stream.close()

    def close(self) -> None:
        """Close all streams; further pulls are ignored."""
        self._closed = True
        self._under_way.clear()
        while self.streams:
            self.streams.popitem()[1].close()

    def _begin(self, reader: R, pull: Pull) -> None:
        if self._closed:
            return
        request = _pull_request(reader.queue, pull)
        request.tag_hashes.extend(self._tag_hashes(reader.queue.topic))
        if pull.topic_id is not None:
            request.topic_id.number, request.topic_id.created_ms = pull.topic_id
        if pull.epoch:
            request.lease.group = self._group
            request.lease.client_id = self._client_id
            request.lease.epoch = pull.epoch
        address = ""
        try:
            address = self._address(reader)
            stream = self._stream(address)
            pull_id = stream.request(partial(_with_id, request), partial(self._receive, reader, pull.number, address))
        except MinimqError as error:
            if address:
                self._places.failed(address, error)
            self.carry_out(reader, reader.pull_failed(pull.number, error, time.monotonic()))
        else:
            self._under_way[reader] = _UnderWay(pull.number, stream, pull_id, address)

    def _stream(self, address: str) -> PullStream:
        stream = self.streams.get(address)
        if stream is None or stream.ended:
            stream = self.streams[address] = open_pulls(self._client.connection, address)
        return stream

    def _address(self, reader: R) -> str:
        return reader.lease.address or self._places.of(reader.queue).address

    def _is_elsewhere(self, reader: R, address: str) -> bool:
        try:
            return self._address(reader) != address
        except MinimqError:
            return False

    def _receive(
        self, reader: R, number: int, address: str, sent: broker_pb2.PullFrame | None, error: MinimqError | None
    ) -> None:
        if self._closed or not reader.is_pulling(number):
            return
        now = time.monotonic()
        if sent is None or sent.end:
            self._under_way.pop(reader, None)
        if sent is None:
            self._places.failed(address, error)
            self.carry_out(reader, reader.pull_failed(number, error, now))
        else:
            self.carry_out(reader, reader.frame_arrived(number, frame_of(sent), now))
        self._changed(reader)


def _pull_request(queue: MessageQueue, pull: Pull) -> broker_pb2.PullRequest:
    return broker_pb2.PullRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=pull.offset,
        max_messages=pull.max_messages,
        max_bytes=pull.max_bytes,
        wait_ms=round(pull.wait_s * 1000),
        term=pull.term,
    )


def _with_id(request: broker_pb2.PullRequest, pull_id: int) -> broker_pb2.PullRequest:
    request.pull_id = pull_id
    return request


def encoded(stored: broker_pb2.StoredBatch, *, is_compacted: bool) -> EncodedRecords:
    return EncodedRecords(
        stored.base_offset,
        stored.store_timestamp_ms,
        stored.position,
        stored.count,
        stored.batch,
        stored.held_until_ms,
        is_compacted,
    )


def frame_of(sent: broker_pb2.PullFrame) -> Frame:
    """Convert a frame of the protocol. Copies the bytes of its batches out of the message, once."""
    return Frame(
        [encoded(stored, is_compacted=sent.is_compacted) for stored in sent.batches],
        next_offset=sent.next_offset,
        min_offset=sent.min_offset,
        max_offset=sent.max_offset,
        term=sent.term,
        is_last=sent.end,
        from_slave=sent.from_slave,
        failure=from_failure(sent.failure) if sent.HasField("failure") else None,
    )
