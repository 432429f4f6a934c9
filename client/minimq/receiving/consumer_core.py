"""The core of consuming: fetches the assigned queues ahead, hands messages out, commits offsets.

Frames arrive on the threads of the pull streams, messages leave on the caller's thread, and failed pulls are tried
again by `tick`, which the owner calls from time to time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.fetcher import Fetcher
from minimq.receiving.group_member import Grant
from minimq.receiving.pull_stream import PullStream
from minimq.receiving.received import ReceivedMessage
from minimq.routes.routing import RouteCache
from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import Closed, Fenced, InvalidArgument, MiniMQError, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.rpc import from_failure
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Wait before a pull that failed is tried again.
_RETRY_S = 0.2


class _Commit(NamedTuple):
    queue: MessageQueue
    offset: int
    fetcher: Fetcher | None

    def message(self) -> broker_pb2.QueueOffset:
        epoch = self.fetcher.epoch if self.fetcher is not None else 0
        return broker_pb2.QueueOffset(
            topic=self.queue.topic, queue_id=self.queue.queue_id, offset=self.offset, epoch=epoch
        )


class ConsumerCore:
    """The queues that one consumer reads. Thread-safe, but only one thread may take messages.

    Args:
        routes: where the queues are.
        links: connections to brokers.
        group: the consumer group.
        client_id: under which leases are held.
        options: of the consumer.
        lease_over: called with a queue and its epoch when its broker says so; must not block.

    Attributes:
        leased: whether queues are read and committed under leases, as a member of the group does.
    """

    def __init__(
        self,
        routes: RouteCache,
        links: BrokerLinks,
        group: str,
        client_id: str,
        options: ConsumerOptions,
        lease_over: Callable[[MessageQueue, int], None],
    ) -> None:
        self.leased = False
        self._lease_over = lease_over
        self._routes = routes
        self._links = links
        self._group = group
        self._client_id = client_id
        self._options = options
        #: Protects everything below and all fetchers; notified when there may be something to take or to do.
        self.changed = threading.Condition()
        self._fetchers: dict[MessageQueue, Fetcher] = {}
        self._streams: dict[str, PullStream] = {}
        self._failure: MiniMQError | None = None
        self._closed = False

    # ---- assignment -----------------------------------------------------------------------------

    def start(self, queue: MessageQueue, offset: int, epoch: int = 0, topic_id: int = 0) -> None:
        """Read a queue from an offset on; under a lease when there is an epoch. A queue that is read begins anew."""
        with self.changed:
            self._stop(queue)
            fetcher = self._fetchers[queue] = Fetcher(queue, offset, epoch, topic_id)
            self._pull(fetcher)
            self.changed.notify_all()

    def renew(self, queue: MessageQueue, grant: Grant) -> bool:
        """Go on reading a queue under a new lease, where it is read now: nothing is handed out twice.

        Returns:
            False when that cannot be: it is not read, or leaves, or is another topic's, or its group is further.
        """
        with self.changed:
            fetcher = self._fetchers.get(queue)
            if fetcher is None or fetcher.leaving or fetcher.topic_id != grant.topic_id:
                return False
            if grant.offset > fetcher.position:
                return False
            self._cancel(fetcher)
            fetcher.epoch = grant.epoch
            fetcher.error = fetcher.committed = None
            fetcher.retry_at = 0.0
            self._pull(fetcher)
            self.changed.notify_all()
            return True

    def stop(self, queue: MessageQueue) -> None:
        """Read a queue no more, and forget what was fetched."""
        with self.changed:
            self._stop(queue)
            self.changed.notify_all()

    def leave(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing more out of these queues; they wait for their owner to commit and stop them."""
        with self.changed:
            for queue in queues:
                fetcher = self._fetchers.get(queue)
                if fetcher is not None:
                    fetcher.leaving = True
                    self._cancel(fetcher)
            self.changed.notify_all()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        with self.changed:
            return sorted(self._fetchers)

    def leaving(self) -> list[MessageQueue]:
        """Return the queues that wait to be committed and stopped."""
        with self.changed:
            return [queue for queue, fetcher in self._fetchers.items() if fetcher.leaving]

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Hand nothing out of some queues, or again."""
        with self.changed:
            for queue in queues:
                self._fetcher(queue).paused = paused
            self.changed.notify_all()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset. Raises `InvalidArgument` when the queue is not read."""
        with self.changed:
            fetcher = self._fetcher(queue)
            self._cancel(fetcher)
            fetcher.seek(offset)
            fetcher.sought = True
            self._pull(fetcher)
            self.changed.notify_all()

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset that each queue's next message has."""
        with self.changed:
            return {queue: fetcher.position for queue, fetcher in self._fetchers.items()}

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been handed out."""
        with self.changed:
            return all(
                fetcher.end_offset is not None and fetcher.position >= fetcher.end_offset
                for fetcher in self._fetchers.values()
            )

    # ---- taking ---------------------------------------------------------------------------------

    def take(self, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        """Return messages of one queue, all of one batch; nothing when none came in time or a queue has to leave.

        Raises:
            MiniMQError: a queue cannot be read; other queues go on when called again.
            Closed: the consumer was closed.
        """
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                self._raise_failure()
                fetcher = next((item for item in self._fetchers.values() if item.has_messages), None)
                if fetcher is not None:
                    break
                left = deadline - time.monotonic()
                if left <= 0 or any(item.leaving for item in self._fetchers.values()):
                    return []
                self.changed.wait(left)
            # To the back, so that every queue gets its turn, also when this one is damaged.
            self._fetchers[fetcher.queue] = self._fetchers.pop(fetcher.queue)
            messages = fetcher.take(max_messages)
            self._pull(fetcher)
            return messages

    def fail(self, error: MiniMQError) -> None:
        """Let the next `take` raise an error."""
        with self.changed:
            self._failure = error
            self.changed.notify_all()

    def _raise_failure(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        for fetcher in self._fetchers.values():
            if fetcher.error is not None and not fetcher.error_told:
                fetcher.error_told = True
                raise fetcher.error

    # ---- committing -----------------------------------------------------------------------------

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Record offsets at their brokers and wait until they are on disk.

        What is recorded already is left out. After a seek the offset of a queue may go back. What can be recorded is,
        also when a broker does not answer or a queue was lost.

        Args:
            offsets: the next offset that the group will read, by queue.

        Raises:
            Fenced: another member owns a queue.
            MiniMQError: a broker refused or did not answer; the first of several such errors.
        """
        failures: list[MiniMQError] = []
        parts: defaultdict[tuple[str, bool], list[_Commit]] = defaultdict(list)
        with self.changed:
            for queue, offset in offsets.items():
                fetcher = self._fetchers.get(queue)
                if fetcher is not None and fetcher.committed == offset:
                    continue
                try:
                    address = self._address(queue)
                except MiniMQError as error:
                    failures.append(error)
                    continue
                parts[address, fetcher is not None and fetcher.sought].append(_Commit(queue, offset, fetcher))
        for (address, force), commits in parts.items():
            failures += self._commit_at(address, commits, force=force)
        if failures:
            raise failures[0]

    def _commit_at(self, address: str, commits: list[_Commit], *, force: bool) -> list[MiniMQError]:
        request = broker_pb2.CommitOffsetsRequest(
            group=self._group,
            # Under its name a commit needs the lease, so a former owner is refused.
            client_id=self._client_id if self.leased else "",
            offsets=[commit.message() for commit in commits],
            force=force,
        )
        try:
            link = self._links.to(address)
            link.call(link.stub.CommitOffsets, request, self._options.request_timeout_s)
        except MiniMQError as error:
            if len(commits) == 1 or error.retriable:
                return [error]
            # The broker takes all or none; queues that were not lost or deleted shall not suffer from those that were.
            return [failure for commit in commits for failure in self._commit_at(address, [commit], force=force)]
        with self.changed:
            for commit in commits:
                if commit.fetcher is not None:
                    commit.fetcher.committed = commit.offset
                    commit.fetcher.sought = False
        return []

    # ---- fetching -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Try failed pulls again; to be called a few times a second."""
        now = time.monotonic()
        with self.changed:
            for fetcher in self._fetchers.values():
                if fetcher.pull is None and fetcher.retry_at <= now:
                    self._pull(fetcher)

    def close(self) -> None:
        """End all streams. Idempotent."""
        with self.changed:
            self._closed = True
            streams = list(self._streams.values())
            self._fetchers.clear()
            self.changed.notify_all()
        for stream in streams:
            stream.close()

    def _fetcher(self, queue: MessageQueue) -> Fetcher:
        fetcher = self._fetchers.get(queue)
        if fetcher is None:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        return fetcher

    def _stop(self, queue: MessageQueue) -> None:
        fetcher = self._fetchers.pop(queue, None)
        if fetcher is not None:
            self._cancel(fetcher)
            fetcher.generation += 1

    def _cancel(self, fetcher: Fetcher) -> None:
        fetcher.generation += 1
        if fetcher.pull is not None:
            stream, pull_id = fetcher.pull
            stream.cancel(pull_id)
            fetcher.pull = None

    def _pull(self, fetcher: Fetcher) -> None:
        """Begin a pull unless one is under way or enough is buffered. The caller holds the lock."""
        if fetcher.pull is not None or fetcher.error or fetcher.leaving or self._closed:
            return
        max_messages, max_bytes = fetcher.room(self._options.prefetch_messages, self._options.prefetch_bytes)
        if not max_messages:
            return
        queue, generation = fetcher.queue, fetcher.generation
        request = broker_pb2.PullRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=fetcher.fetch_offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            # The first one tells where the queue ends, also when there is nothing to read.
            wait_ms=0 if fetcher.end_offset is None else round(self._options.wait_s * 1000),
        )
        if fetcher.epoch:
            request.lease.group = self._group
            request.lease.client_id = self._client_id
            request.lease.epoch = fetcher.epoch

        def receive(frame: broker_pb2.PullFrame | None, error: MiniMQError | None) -> None:
            self._receive(fetcher, generation, frame, error)

        try:
            stream = self._stream_to(queue)
            fetcher.pull = stream, stream.pull(request, receive)
        except MiniMQError:
            fetcher.retry_at = time.monotonic() + _RETRY_S

    def _receive(
        self, fetcher: Fetcher, generation: int, frame: broker_pb2.PullFrame | None, error: MiniMQError | None
    ) -> None:
        with self.changed:
            if generation != fetcher.generation:
                return
            if frame is None or frame.end:
                fetcher.pull = None
            if frame is not None and not frame.HasField("failure"):
                fetcher.add(frame)
                self._pull(fetcher)
            else:
                self._pull_failed(fetcher, from_failure(frame.failure) if frame is not None else error)
            self.changed.notify_all()

    def _pull_failed(self, fetcher: Fetcher, error: MiniMQError | None) -> None:
        if error is None or error.retriable:
            fetcher.retry_at = time.monotonic() + max(_RETRY_S, error.retry_after_s if error else 0)
            return
        fetcher.error = error
        if self.leased and isinstance(error, Fenced | TopicNotFound | QueueNotFound):
            # No failure of this consumer: the queue is another member's, or gone; it is asked for again.
            log.info("consumer: lost queue=%s reason=%s", fetcher.queue, error)
            self._lease_over(fetcher.queue, fetcher.epoch)
        else:
            fetcher.error_told = False

    def _stream_to(self, queue: MessageQueue) -> PullStream:
        address = self._address(queue)
        stream = self._streams.get(address)
        if stream is None or stream.ended:
            stream = self._streams[address] = PullStream(self._links.to(address))
        return stream

    def _address(self, queue: MessageQueue) -> str:
        route = self._routes.known(queue.topic)
        address = route.master_of(queue.broker_name) if route else None
        if address is None:
            raise Unavailable(f"no broker is known that carries queue {queue}")
        return address
