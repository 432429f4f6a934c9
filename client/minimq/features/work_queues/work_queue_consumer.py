"""The work queue consumer, which receives and settles single messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Unpack

from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import ClosedByWith, Finalizer
from minimq.consuming.interceptor import Operation, ReceiveInterceptor, ReceiveInterceptors
from minimq.consuming.start_position import Start
from minimq.consuming.subscriber import Subscriber
from minimq.features.work_queues.copies import REJECTED
from minimq.features.work_queues.settler import DONE, Settlement
from minimq.features.work_queues.taken_messages import TakenMessages
from minimq.features.work_queues.transaction_input import WorkQueueInput
from minimq.features.work_queues.work_queue_message import Receivables, WorkQueueMessage, each_of, receipts_of
from minimq.features.work_queues.work_queue_options import PREFETCH_MESSAGES, WorkQueueOptions
from minimq.features.work_queues.work_queue_reader import WorkQueueReader
from minimq.options import NoOptions, reject_options
from minimq_common.security.credentials import CredentialsArgument


class BaseWorkQueueConsumer(Subscriber):
    """The part of a work queue consumer that is the same for threads and asyncio: all that does not wait."""

    _reader: WorkQueueReader
    receive: Callable[..., Any]

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        invisible_s: float = 30.0,
        max_deliveries: int = 16,
        start: Start = "earliest",
        release_on_close: bool = True,
        client_id: str | None = None,
        request_timeout_s: float = 10.0,
        prefetch_messages: int = PREFETCH_MESSAGES,
        credentials: CredentialsArgument | None = None,
        interceptors: Sequence[ReceiveInterceptor] = (),
        **unknown: Unpack[NoOptions],
    ) -> None:
        reject_options(unknown, type(self))
        options = WorkQueueOptions(
            invisible_s, max_deliveries, start, release_on_close, request_timeout_s, prefetch_messages, credentials
        )
        self._reader = WorkQueueReader(nameserver, group, client_id, options)
        self._client = self._reader.client
        self._interceptors = ReceiveInterceptors(interceptors, self.group, self.client_id)
        self._finalizer = Finalizer(self, self._reader.drop)

    def _ack_soon(self, messages: Receivables) -> Future[None]:
        settle = partial(self._reader.settler.settle_soon, how=DONE)
        if not self._interceptors:
            return settle(messages)
        return self._interceptors.settle_later("ack", [*each_of(messages)], settle)

    def transaction_input(self) -> WorkQueueInput:
        """Return the input of one transaction, for `Producer.transaction`."""
        self._reader.check_open()

        def receive(timeout: float, max_messages: int) -> Any:
            return self.receive(max_messages, timeout=timeout)

        return WorkQueueInput(self._reader.client, self.group, self._reader.settler, receive, self._reader.let_go)


class BlockingWorkQueueConsumer(ClosedByWith, BaseWorkQueueConsumer):
    """The blocking methods of `minimq.WorkQueueConsumer`."""

    def start(self) -> None:
        """Fix where a new group begins; optional, since otherwise the first `receive` does it.

        With `start="latest"`, no message that is sent after this call is skipped. It waits at most 5 seconds for
        brokers that do not answer.

        Raises:
            InvalidArgument: there is no subscription.
            Closed: the consumer was closed.
        """
        self._client.wait(self._reader.begin)

    def receive(
        self, max_messages: int = 32, *, invisible_s: float | None = None, timeout: float = 10.0
    ) -> list[WorkQueueMessage]:
        """Return messages, all of one queue; an empty list if none arrived in time.

        Args:
            max_messages: maximum number of messages to return.
            invisible_s: their invisible duration in seconds; by default that of the consumer.
            timeout: seconds to wait for the first message.

        Raises:
            GroupConflict: members of the group divide its queues, or its consumers use another filter.
            Fenced: another consumer of the user has started with this `client_id`; raised by each call.
            TopicNotFound: a topic does not exist.
            Unavailable, TopicUnavailable, DeadlineExceeded: no broker answered in time.
            CorruptBatch, CorruptEntry: a batch is damaged. Its messages are set aside for an hour; the next call
                returns others.
            InvalidArgument: there is no subscription, or a number is invalid.
            Closed: the consumer was closed, perhaps meanwhile, or belongs to the parent of a forked process.
        """
        found = TakenMessages()
        try:
            if self._interceptors:
                with self._interceptors.receive() as call:
                    self._receive(max_messages, invisible_s, timeout, found)
                    call.found(found)
            else:
                self._receive(max_messages, invisible_s, timeout, found)
            return found
        except BaseException:  # such as Ctrl-C, which may arrive after the messages
            self._reader.abandon(found)
            raise

    def _receive(self, max_messages: int, invisible_s: float | None, timeout: float, found: TakenMessages) -> None:
        wanted = self._reader.wanted(max_messages, invisible_s, timeout)
        if self._reader.receive_prefetched(wanted, found):
            return
        while True:
            self._client.wait(lambda: self._reader.receive(wanted, found))
            if self._reader.open(found):
                return

    def __iter__(self) -> Iterator[WorkQueueMessage]:
        """Yield messages forever, each received by itself, with its whole invisible duration."""
        while True:
            yield from self.receive(1)

    def ack(self, messages: Receivables) -> None:
        """Acknowledge messages, and wait until that is on disk: they are never redelivered.

        Repeated calls are no error. A call after the invisible duration succeeds as long as the message has not been
        redelivered.

        Args:
            messages: a received message, or its handle, or an iterable of those.

        Raises:
            HandleExpired: some of them were redelivered; all others are acknowledged.
            InvalidArgument: a value is not a message or handle, or belongs to another group; nothing is acknowledged.
                Or a handle does not match a delivery; others may be acknowledged.
            SystemBusy: a queue would have too many ranges of unsettled messages; see docs/work-queues.md. Try again
                later.
            MinimqError: a broker rejected, or did not answer in time; it may be repeated.
        """
        self._settle("ack", messages, DONE)

    def ack_async(self, messages: Receivables) -> Future[None]:
        """Acknowledge messages without waiting: those of many calls go together.

        Returns:
            A future that is done when they are on disk, with the errors of `ack`.
        """
        return self._ack_soon(messages)

    def release(self, messages: Receivables, delay_s: float = 0.0) -> None:
        """Release failed messages, which are then redelivered.

        Args:
            messages: see `ack`.
            delay_s: seconds before the redelivery, up to 43200, which is 12 hours.

        Raises:
            MinimqError: see `ack`.
        """
        self._settle("release", messages, self._reader.freed(delay_s))

    def extend(self, messages: Receivables, invisible_s: float | None = None) -> None:
        """Restart the invisible duration of messages.

        Args:
            messages: see `ack`.
            invisible_s: seconds from now on; by default the invisible duration of the consumer.

        Raises:
            HandleExpired: some of them were redelivered or settled.
            MinimqError: see `ack`.
        """
        self._settle("extend", messages, self._reader.extended(invisible_s))

    def reject(self, messages: WorkQueueMessage | Iterable[WorkQueueMessage], reason: str = REJECTED) -> None:
        """Send messages to the dead letters of the group, and acknowledge them, so that they are not retried.

        Args:
            messages: a received message, or several; not handles.
            reason: the reason, in at most 200 characters; `minimq dlq list` counts by it.

        Raises:
            HandleExpired: some of them were redelivered or settled; none is sent.
            Unavailable: some were not sent; they are redelivered after their invisible duration.
            MinimqError: see `ack`.
        """
        given = [*each_of(messages)]
        with self._interceptors.settle("reject", given):
            self._client.wait(lambda: self._reader.reject(given, reason))

    def _settle(self, operation: Operation, messages: Receivables, how: Settlement) -> None:
        if not self._interceptors:
            self._settle_now(messages, how)
            return
        given = [*each_of(messages)]
        with self._interceptors.settle(operation, given):
            self._settle_now(given, how)

    def _settle_now(self, messages: Receivables, how: Settlement) -> None:
        receipts = receipts_of(messages, self.group)  # here: `messages` may run code of the user
        self._client.wait(lambda: self._reader.settler.settling(receipts, how))

    def close(self) -> None:
        """Leave the group, and end. Idempotent. A `receive` in another thread raises `Closed`.

        Unsettled messages are redelivered to others at once, unless `release_on_close` is False.
        """
        self._finalizer.close(self._reader.end)
