"""Pull streams: one to each broker, on it any number of pulls at once, each with its own id and its own receiver."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from minimq.receiving.queue_decisions import Frame, Pull
from minimq.receiving.received import StoredBatch
from minimq.transport.broker_link import BrokerLink
from minimq.transport.duplex import Duplex
from minimq_common.errors import MiniMQError, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.rpc import from_failure
from minimq_proto.v1 import broker_pb2

#: Called with each frame of a pull, and with an error when the stream breaks under it. Must not block.
FrameReceiver = Callable[[broker_pb2.PullFrame | None, MiniMQError | None], None]


class PullStream:
    """Reads queues of one broker. Thread-safe; frames come on the stream's own thread."""

    def __init__(self, link: BrokerLink) -> None:
        self._peer = f"broker {link.address}"
        self._ids = itertools.count(1)
        #: Protects `_receivers` and `_end`.
        self._lock = threading.Lock()
        self._receivers: dict[int, FrameReceiver] = {}
        self._end: MiniMQError | None = None
        self._stream: Duplex[broker_pb2.PullRequest, broker_pb2.PullFrame] = Duplex(
            link.stub.Pull, self._peer, self._on_frame, self._on_end
        )

    @property
    def ended(self) -> bool:
        """True if the stream is over, so that a new one is needed."""
        return self._end is not None

    def pull(self, request: broker_pb2.PullRequest, receiver: FrameReceiver) -> int:
        """Begin a pull; its id is set here and returned. After the last frame the receiver is forgotten.

        Raises:
            MiniMQError: the stream is over.
        """
        with self._lock:
            if self._end is not None:
                raise self._end
            request.pull_id = next(self._ids)
            self._receivers[request.pull_id] = receiver
        self._stream.send(request)
        return request.pull_id

    def cancel(self, pull_id: int) -> None:
        """End a pull; no further frame of it is delivered, but one may be under way just now."""
        with self._lock:
            known = self._receivers.pop(pull_id, None)
        if known is not None:
            self._stream.send(broker_pb2.PullRequest(pull_id=pull_id, cancel=True))

    def close(self) -> None:
        """End the stream and its thread."""
        self._stream.cancel()
        self._stream.finish()
        self._stream.join(1.0)

    def _on_frame(self, frame: broker_pb2.PullFrame) -> None:
        with self._lock:
            find = self._receivers.pop if frame.end else self._receivers.get
            receiver = find(frame.pull_id, None)
        if receiver is not None:
            receiver(frame, None)

    def _on_end(self, error: MiniMQError | None) -> None:
        reason = error or Unavailable(f"{self._peer} ended the connection")
        with self._lock:
            self._end = reason
            receivers = list(self._receivers.values())
            self._receivers.clear()
        for receiver in receivers:
            receiver(None, reason)


def pull_request(queue: MessageQueue, pull: Pull) -> broker_pb2.PullRequest:
    """Return the request for a pull, without its tags and its lease."""
    return broker_pb2.PullRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=pull.offset,
        max_messages=pull.max_messages,
        max_bytes=pull.max_bytes,
        wait_ms=round(pull.wait_s * 1000),
        term=pull.term,
    )


def frame_of(sent: broker_pb2.PullFrame) -> Frame:
    """Return a frame as a reader takes it. The bytes of its batches are copied out of the message, once."""
    return Frame(
        [
            StoredBatch(stored.base_offset, stored.store_timestamp_ms, stored.position, stored.count, stored.batch)
            for stored in sent.batches
        ],
        next_offset=sent.next_offset,
        min_offset=sent.min_offset,
        max_offset=sent.max_offset,
        term=sent.term,
        now_ms=sent.now_ms,
        is_last=sent.end,
        from_slave=sent.from_slave,
        advised_slave=sent.suggested_broker_id,
        failure=from_failure(sent.failure) if sent.HasField("failure") else None,
    )
