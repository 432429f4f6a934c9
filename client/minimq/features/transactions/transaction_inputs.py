"""The input of a transaction that polls: the messages of one `poll`, which the transaction commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from minimq.connection.client import ClusterClient
from minimq.consuming.commits import OffsetLookup, commit_request
from minimq.consuming.fetcher import Fetcher
from minimq.consuming.queue_decisions import Commit
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.received import ReceivedMessage
from minimq_common.errors import Fenced, MinimqError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


class PullInput:
    """The messages of one poll in a transaction; see `TransactionInput`."""

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        client_id: str,
        fetcher: Fetcher,
        starts: OffsetLookup,
        poll: Callable[[float, int], Any],
    ) -> None:
        self.client = client
        self._group = group
        self._client_id = client_id
        self._fetcher = fetcher
        self._starts = starts
        self.receive = poll
        self.queue: MessageQueue | None = None
        #: The reader of the queue and its `moves` at the poll: the input is stale if either has changed.
        self._reader: QueueReader | None = None
        self._moves = 0
        self._begin = self._end = self._term = 0
        self._commit: Commit | None = None

    def took(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Record polled messages as the input; return them."""
        if messages:
            self.queue = messages[0].queue
            self._begin = messages[0].queue_offset
            self._end = messages[-1].queue_offset + 1
            self._reader = self._fetcher.reader(self.queue)
            if self._reader is not None:
                self._end = max(self._end, self._reader.position)
                self._moves, self._term = self._reader.moves, self._reader.term_taken
        return [*messages]

    def progress(self) -> broker_pb2.AtomicProgress:
        """Return the commit of the offset after the messages, under the current lease. Raises `Fenced`."""
        assert self.queue is not None
        reader = self._current()
        commit = self._commit = (
            None if reader is None else reader.commit_due(self._end, self._term, time.monotonic(), automatic=False)
        )
        if commit is None:
            raise Fenced(
                f"queue {self.queue} no longer belongs to this consumer, or was moved to another offset since the "
                "poll: nothing of the transaction is stored"
            )
        request = commit_request(self._group, self._client_id, [commit])
        return broker_pb2.AtomicProgress(commit=request, begins=[self._begin])

    def answered(self, error: MinimqError | None) -> None:
        reader = self._current()
        if reader is not None and self._commit is not None:
            reader.commit_answered(self._commit, time.monotonic(), error)

    def may_pass(self) -> bool:
        """Return whether a fenced commit may succeed later; see `QueueReader.may_be_recorded`."""
        reader = self._current()
        return reader is not None and self._commit is not None and reader.may_be_recorded(self._commit.epoch)

    async def go_back(self, *, rolled_back: bool) -> None:
        """Move the consumer back: to the first message of the input, or to the commit of the group if that is later."""
        assert self.queue is not None
        offset = self._begin
        was_sought = self._commit is not None and self._commit.sought
        if not rolled_back and not was_sought:
            with suppress(MinimqError):  # a wrong offset does no harm: the broker rejects messages consumed before
                offset = max(offset, await self._starts.committed(self._group, self.queue) or 0)
        if self._current() is not None:
            self._fetcher.go_back(self.queue, offset)

    def _current(self) -> QueueReader | None:
        assert self.queue is not None
        reader = self._fetcher.reader(self.queue)
        return reader if reader is self._reader and reader is not None and reader.moves == self._moves else None
