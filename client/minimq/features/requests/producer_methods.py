"""The methods of producers for requests and replies."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from functools import cached_property
from queue import SimpleQueue

from minimq.arguments import waiting_s
from minimq.features.requests.replier import Replier
from minimq.features.requests.reply import Reply, RequestMessage
from minimq.features.requests.requester import OpenRequest, Requester
from minimq.sending.aio_producer import AsyncProducer
from minimq.sending.producer import BaseProducer
from minimq.sending.receipt_future import ReceiptFuture
from minimq.sending.selectors import Selector
from minimq_common.errors import DeadlineExceeded, MinimqError
from minimq_common.model import Message, MessageQueue


class RequestParts(BaseProducer):
    """The parts that the blocking and the asyncio producer share."""

    @cached_property
    def _requester(self) -> Requester:
        return Requester(self._core)

    @cached_property
    def _replier(self) -> Replier:
        return Replier(self._core)


class RequestMethods(RequestParts):
    """The methods of `minimq.Producer`."""

    def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> Reply:
        """Send a message, and wait until one of its consumers replies; see docs/request-reply.md.

        Args:
            message: the request. It is stored like any other message, and delivered at least once.
            timeout: total seconds to wait; a later reply is dropped.
            queue: send to this queue only.
            selector: chooses the queue, as for `send`.

        Raises:
            DeadlineExceeded: no reply came in time; the message may be stored, and may still be consumed. Or the buffer
                stayed full, and nothing was sent.
            RequestFailed: the reply says that the service failed.
            InvalidArgument, TopicNotFound, TopicUnavailable, Unavailable, BufferFull, SendFailed, Closed: as `send`.
        """
        self._core.check_may_wait()
        arrived: SimpleQueue[Reply | MinimqError] = SimpleQueue()
        request = self._requester.send(message, queue, selector, arrived.put, waiting_s(timeout))
        try:
            outcome = arrived.get()
        finally:
            self._requester.forget(request)  # after an interruption such as Ctrl-C
        if isinstance(outcome, MinimqError):
            raise outcome
        return outcome

    def request_async(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> Future[Reply]:
        """Like `request`, without waiting for the reply. If the buffer is full, `block_when_full` decides.

        It waits for room no longer than `timeout`. The first request waits until the queue for its replies is read.

        Returns:
            A future of the reply. It raises as `request`.
        """
        future: ReceiptFuture[Reply] = ReceiptFuture()
        self._requester.send(message, queue, selector, future, waiting_s(timeout))
        return future

    def reply(self, request: RequestMessage, reply: Reply) -> None:
        """Reply to a request that any kind of consumer has received; a listener may return the reply instead.

        Returns at once: the reply is sent in the background, and `flush` and `close` wait for that. Its arrival is not
        confirmed. The requester takes the first reply to its request, and none after its deadline.

        Args:
            request: the received message.
            reply: the reply.

        Raises:
            InvalidArgument: the message is not a request, or the reply is invalid.
            MessageTooLarge: the body of the reply is over `max_body_bytes`.
            Closed: the producer was closed.
        """
        self._replier.answer(request, reply)


class AsyncRequestMethods(RequestParts, AsyncProducer):
    """The methods of `minimq.aio.Producer`."""

    async def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> Reply:
        """Send a message and wait until one of its consumers replies; see `minimq.Producer.request`.

        If it is cancelled, the message may have been sent, and a reply is dropped.
        """
        future, request = await self._request(message, waiting_s(timeout), queue, selector)
        try:
            return await future
        finally:
            self._requester.forget(request)

    async def request_async(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> asyncio.Future[Reply]:
        """Send a request without waiting for its reply. Returns once it is buffered.

        Returns:
            A future of the reply. It raises as `request`. Cancelling it does not stop the request.
        """
        future, _ = await self._request(message, waiting_s(timeout), queue, selector)
        return future

    async def reply(self, request: RequestMessage, reply: Reply) -> None:
        """Reply to a request; see `minimq.Producer.reply`."""
        self._replier.answer(request, reply)

    async def _request(
        self, message: Message, timeout_s: float, queue: MessageQueue | None, selector: Selector | None
    ) -> tuple[asyncio.Future[Reply], OpenRequest]:
        requester = self._requester
        future, outcome = self._future()
        request = requester.new(message, outcome, timeout_s)
        try:
            if not requester.is_ready(message.topic):
                await self._core.client.result(lambda: requester.prepare(message, request.deadline), cancels=True)
            later = self._hand_in(requester.begin(request, message), queue, selector, request)
            if later is not None:
                limit = asyncio.timeout(request.deadline - time.monotonic())
                try:
                    async with limit:
                        await later
                except TimeoutError:
                    if not limit.expired():
                        raise
                    raise DeadlineExceeded(
                        f"the message was not sent within {timeout_s:g} s, as it waited behind others or for room in "
                        "the buffer: send more slowly, raise buffer_bytes, or wait longer"
                    ) from None
        except BaseException:
            requester.forget(request)
            if not future.cancel():  # the request has just expired
                future.exception()  # else asyncio logs it
            raise
        return future, request
