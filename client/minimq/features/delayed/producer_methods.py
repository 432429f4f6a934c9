"""The methods of producers for delayed messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from minimq.features.delayed.due_times import due_time
from minimq.features.delayed.recalls import RecallResult, recall
from minimq.sending.producer import BaseProducer


class DelayParts(BaseProducer):
    """The part that the blocking and the asyncio producer share."""

    _hold_of = staticmethod(due_time)

    def _recalling(self, handle: str | None) -> Callable[[], Awaitable[RecallResult]]:
        return partial(recall, self._core.client, handle, self._core.options.send_timeout_s)


class Delays(DelayParts):
    """The method of `minimq.Producer`."""

    def recall(self, handle: str | None) -> RecallResult:
        """Recall a delayed message, so that it is never delivered.

        The broker decides: a message is either recalled or delivered. Any producer, and `Admin`, may recall it.

        Args:
            handle: `receipt.recall_handle` of a message that was sent with `recallable=True`.

        Returns:
            RECALLED or ALREADY_RECALLED, which are true, or TOO_LATE, which is false.

        Raises:
            InvalidArgument: this is not a recall handle, or it belongs to another cluster.
            TopicNotFound: the topic was deleted, and the message with it.
            AccessDenied: another user sent it, and this user may not manage the topic.
            MinimqError: the broker was not reached within `send_timeout_s`, or rejected: repeat the call to find out
                whether the message is recalled.
            Closed: the producer was closed.
        """
        return self._core.client.wait(self._recalling(handle))


class AsyncDelays(DelayParts):
    """The method of `minimq.aio.Producer`."""

    async def recall(self, handle: str | None) -> RecallResult:
        """Recall a delayed message, so that it is never delivered; see `minimq.Producer.recall`."""
        return await self._core.client.result(self._recalling(handle))
