"""The pulls of a consumer: one at a time for each queue, which fill its fetcher."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.fetcher import Fetcher
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.pull_stream import PullStreams
from minimq.routes.read_places import ReadPlaces
from minimq_common.errors import Fenced, MiniMQError, OffsetOutOfRange, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.rpc import from_failure
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Wait before a pull that failed is tried again.
_RETRY_S = 0.2
#: For so long no advice of the master is taken after a slave that it had advised has failed, in seconds.
_NO_ADVICE_S = 10.0


class Puller:
    """Begins pulls and takes in what they bring. The caller of its methods holds the lock.

    Args:
        changed: the lock of all fetchers; notified when a pull has brought something.
        streams: to the brokers.
        places: where queues are read without a lease.
        group: the consumer group.
        client_id: under which leases are held.
        options: of the consumer.
        lease_over: called with a queue, its epoch and the reason when its broker does not know the lease; must not
            block.

    Attributes:
        tag_hashes: by topic, the hashes of the tags that are wanted; all tags where there are none.
        closed: no pull begins any more.
        resets: which fetchers have gone on elsewhere, until the user is told.
    """

    def __init__(
        self,
        changed: threading.Condition,
        streams: PullStreams,
        places: ReadPlaces,
        group: str,
        client_id: str,
        options: ConsumerOptions,
        lease_over: Callable[[MessageQueue, int, MiniMQError], None],
    ) -> None:
        self.tag_hashes: dict[str, tuple[int, ...]] = {}
        self.closed = False
        self.resets: list[tuple[Fetcher, OffsetReset]] = []
        self._changed = changed
        self._streams = streams
        self._places = places
        self._group = group
        self._client_id = client_id
        self._options = options
        self._lease_over = lease_over

    def cancel(self, fetcher: Fetcher) -> None:
        """End the pull that is under way, if any; what it still brings is dropped."""
        fetcher.generation += 1
        if fetcher.pull is not None:
            stream, pull_id = fetcher.pull
            stream.cancel(pull_id)
            fetcher.pull = None

    def pull(self, fetcher: Fetcher) -> None:
        """Begin a pull unless one is under way or enough is buffered."""
        if fetcher.pull is not None or fetcher.error or fetcher.leaving or self.closed:
            return
        max_messages, max_bytes = fetcher.room(self._options.prefetch_messages, self._options.prefetch_bytes)
        if not max_messages:
            return
        generation = fetcher.generation
        try:
            address = self._address(fetcher)
        except MiniMQError:
            fetcher.retry_at = time.monotonic() + _RETRY_S
            return
        request = fetcher.request(max_messages, max_bytes, self._options.wait_s)
        request.tag_hashes.extend(self.tag_hashes.get(fetcher.queue.topic, ()))
        if (
            fetcher.epoch and not fetcher.slave
        ):  # a slave knows no lease of its master; that it holds this consumer sees
            request.lease.group = self._group
            request.lease.client_id = self._client_id
            request.lease.epoch = fetcher.epoch

        def receive(frame: broker_pb2.PullFrame | None, error: MiniMQError | None) -> None:
            self._receive(fetcher, generation, frame, error)

        fetcher.pulled_at = address
        try:
            stream = self._streams.to(address)
            fetcher.pull = stream, stream.pull(request, receive)
        except MiniMQError as error:
            self._places.failed(address, error)
            fetcher.retry_at = time.monotonic() + _RETRY_S

    def tick(self, fetcher: Fetcher, now: float) -> None:
        """Try a failed pull again, and go elsewhere with one that belongs there now."""
        if fetcher.pull is not None and fetcher.pulled_at != self._address_or(fetcher, fetcher.pulled_at):
            self.cancel(fetcher)
        if fetcher.pull is None and fetcher.retry_at <= now:
            self.pull(fetcher)

    def _address(self, fetcher: Fetcher) -> str:
        """Return where a queue is to be pulled now. Raises `Unavailable`."""
        slave = self._places.slave(fetcher.queue, fetcher.slave) if fetcher.slave else None
        if slave is not None:
            return slave.address
        fetcher.slave = 0
        return fetcher.leased_by or self._places.of(fetcher.queue).address

    def _address_or(self, fetcher: Fetcher, otherwise: str) -> str:
        try:
            return self._address(fetcher)
        except MiniMQError:
            return otherwise

    def _receive(
        self, fetcher: Fetcher, generation: int, frame: broker_pb2.PullFrame | None, error: MiniMQError | None
    ) -> None:
        with self._changed:
            if generation != fetcher.generation:
                return
            if frame is None or frame.end:
                fetcher.pull = None
            if frame is None:
                self._places.failed(fetcher.pulled_at, error)
            elif frame.HasField("failure"):
                error = _failure(frame)
            if frame is not None and error is None:
                fetcher.add(frame)
                self._take_advice(fetcher, frame)
                self.pull(fetcher)
            elif frame is not None and isinstance(error, OffsetOutOfRange) and self._options.offset_reset != "error":
                self._go_on_elsewhere(fetcher, frame)
            else:
                self._pull_failed(fetcher, error)
            self._changed.notify_all()

    def _take_advice(self, fetcher: Fetcher, frame: broker_pb2.PullFrame) -> None:
        """Read a slave next, or the master again."""
        if fetcher.slave:
            if frame.end and not frame.batches:  # it has caught up with what the slave has
                fetcher.slave = 0
        elif frame.end and self._options.read_from_slaves and time.monotonic() >= fetcher.no_advice_until:
            fetcher.slave = frame.suggested_broker_id

    def _go_on_elsewhere(self, fetcher: Fetcher, frame: broker_pb2.PullFrame) -> None:
        reset = fetcher.reset(frame.min_offset, frame.max_offset, self._options.offset_reset)
        fetcher.term = frame.term
        if reset is not None:
            log.warning("consumer: group=%s %s", self._group, reset)
            self.resets.append((fetcher, reset))
        self.pull(fetcher)

    def _pull_failed(self, fetcher: Fetcher, error: MiniMQError | None) -> None:
        now = time.monotonic()
        if fetcher.slave:  # the master has all that there is
            fetcher.slave, fetcher.no_advice_until = 0, now + _NO_ADVICE_S
            self.pull(fetcher)
            return
        if error is None or error.retriable:
            fetcher.retry_at = now + max(_RETRY_S, error.retry_after_s if error else 0)
            return
        fetcher.error = error
        if fetcher.epoch and isinstance(error, Fenced | TopicNotFound | QueueNotFound):
            # No failure of this consumer: the queue is another member's, or gone; it is asked for again.
            log.info("consumer: lost queue=%s reason=%s", fetcher.queue, error)
            self._lease_over(fetcher.queue, fetcher.epoch, error)
        else:
            fetcher.error_told = False


def _failure(frame: broker_pb2.PullFrame) -> MiniMQError:
    """Return why a pull has failed. What a slave does not have its master may have: that is waited for."""
    error = from_failure(frame.failure)
    if frame.from_slave and isinstance(error, OffsetOutOfRange | QueueNotFound | TopicNotFound):
        return Unavailable(f"a slave does not have it: {error.message}")
    return error
