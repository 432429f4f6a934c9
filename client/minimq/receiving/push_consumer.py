"""The push consumer: calls a listener with messages, on a pool of threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from types import TracebackType
from typing import Any, Self

from minimq.options import DEFAULT_NAMESERVER, with_changes
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import Consumer, Start
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.group_member import Grant
from minimq.receiving.process_queue import ProcessQueue
from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import Closed, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

_WAIT_S = 0.2
_DRAIN_WAIT_S = 0.05


class ConsumeResult(Enum):
    """What a listener says of the messages it was given."""

    SUCCESS = "success"
    RETRY_LATER = "retry-later"


Listener = Callable[[list[ReceivedMessage]], ConsumeResult]


class PushConsumer(Consumer):
    """Calls a listener with the messages of the queues that its group gives it.

    The listener is called by several threads at once, also with messages of one queue. It returns
    `ConsumeResult.SUCCESS`, or `RETRY_LATER` to be given the same messages again after `retry_delay_s`; an exception
    counts as `RETRY_LATER`. The group's offset never passes a message that has not succeeded.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses.
        group: the consumer group.
        allocation: how the group divides queues, by name or as an object.
        start: where a new group begins: "earliest", "latest" or a time.
        threads: how many calls of the listener may run at once.
        batch_size: most messages in one call.
        client_id: name among all clients; made up unless given.
        options: how to read; single options may be given by name instead.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        group: str,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        threads: int = 8,
        batch_size: int = 32,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Any,  # noqa: ANN401 - the fields of ConsumerOptions
    ) -> None:
        super().__init__(
            nameserver,
            group,
            client_id=client_id,
            strategy=allocation,
            start=start,
            options=with_changes(options or ConsumerOptions(), changes),
        )
        if threads < 1 or batch_size < 1:
            raise InvalidArgument("threads and batch_size must be at least 1")
        self._batch_size = batch_size
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"minimq-listener-{group}")
        #: Calls of the listener that may wait for a thread: bounds what is in hand.
        self._places = threading.BoundedSemaphore(2 * threads)
        #: Protects `_work` and all that is in it; notified when a call of the listener has ended.
        self._finished = threading.Condition()
        self._work: dict[MessageQueue, ProcessQueue] = {}
        #: Tasks of the pool that are not over; guarded like `_work`.
        self._calls = 0
        self._listener: Listener | None = None
        self._stop = threading.Event()
        self._dispatcher = threading.Thread(target=self._dispatch, name=f"minimq-push-{group}", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Read a topic; before `start`. Raises `InvalidArgument`.

        Args:
            topic: its name; call again for further topics.
            expression: which tags: "*", or for example "paid || refunded".
        """
        self._subscribe(topic, expression)

    def start(self, listener: Listener) -> None:
        """Join the group and begin to call the listener.

        Raises:
            InvalidArgument: nothing is subscribed to, or it was started before.
            TopicNotFound, Unavailable: a topic is not found.
        """
        if not self._filters or self._listener is not None:
            raise InvalidArgument("subscribe to at least one topic, and start once")
        self._join()
        self._listener = listener
        self._dispatcher.start()

    def close(self, timeout: float = 30.0) -> None:
        """Let running calls of the listener end, commit, leave the group. Idempotent.

        Args:
            timeout: seconds to wait for the running calls; what they have not finished is given to another member.
        """
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._listener is not None:
            self._dispatcher.join()
        with self._finished:
            self._finished.wait_for(lambda: not self._calls, timeout)
        try:
            self._commit()
        except MiniMQError as error:
            log.warning("consumer: last commit failed group=%s error=%s", self.group, error)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._shut_down()

    # ---- as the owner of queues -------------------------------------------------------------------

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Begin to read a queue, or go on where it was read before the lease had to be renewed."""
        if not self._core.renew(queue, grant):
            with self._finished:
                self._work[queue] = ProcessQueue(grant.offset)
            self._core.start(queue, grant.offset, grant.epoch, grant.topic_id)

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Read queues no more that were taken away."""
        with self._finished:
            for queue in queues:
                self._work.pop(queue, None)
        super().lost(queues)

    # ---- dispatching ----------------------------------------------------------------------------

    def _dispatch(self) -> None:
        commit_at = time.monotonic() + self._options.commit_interval_s
        while not self._stop.is_set():
            try:
                draining = self._hand_over()
                if self._options.commit_interval_s and time.monotonic() >= commit_at:
                    commit_at = time.monotonic() + self._options.commit_interval_s
                    self._commit()
                messages = self._core.take(self._batch_size, _WAIT_S)
            except Closed:
                return
            except MiniMQError as error:
                log.error("consumer: group=%s error=%s", self.group, error)
                self._stop.wait(_WAIT_S)
                continue
            if messages:
                self._submit(messages)
            elif draining:
                with self._finished:
                    self._finished.wait(_DRAIN_WAIT_S)

    def _submit(self, messages: list[ReceivedMessage]) -> None:
        queue, first = messages[0].queue, messages[0].queue_offset
        wanted = self._filters[queue.topic].apply(messages)
        with self._finished:
            work = self._work.get(queue)
            if work is None:
                return  # taken away meanwhile
            work.begin(first, messages[-1].queue_offset + 1)
            if not wanted:
                work.finish(first)
                return
        while not self._places.acquire(timeout=_WAIT_S):
            if self._stop.is_set():
                return
        with self._finished:
            self._calls += 1
        self._pool.submit(self._call, work, first, wanted)

    def _call(self, work: ProcessQueue, first: int, messages: list[ReceivedMessage]) -> None:
        """Call the listener until it succeeds, or the consumer closes."""
        try:
            while not self._succeeds(messages):
                if self._stop.wait(self._options.retry_delay_s):
                    return
            with self._finished:
                work.finish(first)
        finally:
            self._places.release()
            with self._finished:
                self._calls -= 1
                self._finished.notify_all()

    def _succeeds(self, messages: list[ReceivedMessage]) -> bool:
        listener = self._listener
        try:
            return listener is not None and listener(messages) is ConsumeResult.SUCCESS
        except Exception:  # whatever the listener raises is the user's, and means "later"
            log.exception("consumer: the listener failed, will try again group=%s", self.group)
            return False

    def _hand_over(self) -> bool:
        """Give back queues whose messages are finished. Returns whether others still wait for theirs."""
        leaving = self._core.leaving()
        if not leaving:
            return False
        with self._finished:
            done = [queue for queue in leaving if queue not in self._work or self._work[queue].idle]
            offsets = {queue: self._work.pop(queue).commit_position for queue in done if queue in self._work}
        if offsets:
            self._hand_back(offsets, commit=True)
        return len(done) < len(leaving)

    def _commit(self) -> None:
        with self._finished:
            offsets = {queue: work.commit_position for queue, work in self._work.items()}
        self._core.commit(offsets)
