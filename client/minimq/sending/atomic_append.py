"""The attempts of an atomic append at one broker. On the event loop of a connection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from minimq.connection.client import ClusterClient, RoutedMaster
from minimq.connection.master_calls import call_master
from minimq.connection.retry_schedule import MAX_PROXY_ATTEMPTS
from minimq.sending.append_stream import AtomicStream, StreamsByAddress
from minimq.sending.pending_batch import IN_DOUBT, number_taken
from minimq.sending.placement import PlacedMessages
from minimq_common.errors import Closed, Fenced, MinimqError, QueueNotFound, RejectedByProxy, SendFailed, StaleSequence
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

#: Error answers of a broker after which the transaction may nevertheless be stored.
_IN_DOUBT = (*IN_DOUBT, StaleSequence)


class Consumed(Protocol):
    """The messages that an atomic append consumes. Used on the event loop of the sender's connection."""

    @property
    def queue(self) -> MessageQueue | None:
        """A queue of the broker of the messages, which must store the append; None if nothing was received."""

    def progress(self) -> broker_pb2.AtomicProgress:
        """Return the progress to commit, for one attempt. Raises `Fenced` if other consumers have got the messages."""

    def answered(self, error: MinimqError | None) -> None:
        """Record the outcome of an attempt."""

    def may_pass(self) -> bool:
        """Return whether a retry may succeed after `Fenced`: a new master may renew the lease."""


class TryOtherBroker(Exception):
    """A broker has rejected a transaction, and another one may accept it."""


class AtomicAppend:
    """Sends one transaction to its broker until the outcome is known."""

    def __init__(
        self,
        client: ClusterClient,
        streams: StreamsByAddress[AtomicStream],
        placed: PlacedMessages,
        source: Consumed | None,
        deadline: float,
    ) -> None:
        self._client = client
        self._streams = streams
        self._placed = placed
        self._source = source
        self._deadline = deadline
        self._attempts: list[str] = []
        self._is_sent = False
        #: Whether an attempt may have stored it.
        self._in_doubt = False

    async def run(self) -> Sequence[broker_pb2.AppendResult]:
        """Return the result of each batch. Raises `TryOtherBroker`, or as `Producer.transaction`."""
        placed = self._placed
        master = RoutedMaster(self._client, placed.topic, placed.broker_name)
        try:
            results = await call_master(master, self._attempt, self._deadline - time.monotonic(), again=self._again)
        except MinimqError as error:
            if isinstance(error, Closed | Fenced) or not (error.retriable or self._in_doubt):
                raise
            raise not_acknowledged(error, self._attempts, placed.messages, in_doubt=self._in_doubt) from None
        stored_before = any(each.status == broker_pb2.SEND_STATUS_ALREADY_STORED for each in results)
        if stored_before and not self._in_doubt:
            raise number_taken(placed.broker_name)
        return results

    async def _attempt(self, address: str, limit_s: float) -> Sequence[broker_pb2.AppendResult]:
        self._is_sent = False
        until = time.monotonic() + limit_s
        if address not in self._streams:  # a new stream is opened only to a broker that answers a probe
            calls, timeout_s = self._client.connection.brokers, min(limit_s, self._client.timeout_s)
            await calls.call(address, lambda stub: stub.Probe, broker_pb2.ProbeRequest(), timeout_s)
        stream, known = self._streams[address], self._client.routes.known
        batches = [(part.place(queue, known(queue.topic)), part.data) for queue, part in self._placed.parts]
        progress = self._source.progress() if self._source is not None else None
        self._is_sent = True
        append = partial(stream.append, broker_pb2.AtomicAppend(progress=progress), batches)
        result = await stream.answer(append, until - time.monotonic())
        if self._source is not None:
            self._source.answered(None)
        return result.batches

    def _again(self, address: str, error: MinimqError) -> bool:
        source, placed = self._source, self._placed
        if source is not None and self._is_sent:
            source.answered(error)
        if isinstance(error, Closed):
            return False
        self._in_doubt |= self._is_sent and _is_in_doubt(error)
        self._is_sent = False
        attempt = len(self._attempts) + 1
        self._attempts.append(f"attempt {attempt}: {placed.broker_name} at {address or '?'}: {error.message}")
        if isinstance(error, Fenced):  # no attempt was stored: the broker checks for duplicates first
            return source is not None and source.may_pass()
        is_safe = placed.others and not self._in_doubt and time.monotonic() < self._deadline
        if is_safe and (error.retriable or error.refresh_route):
            raise TryOtherBroker
        return self._may_succeed(error)

    def _may_succeed(self, error: MinimqError) -> bool:
        if isinstance(error, RejectedByProxy):
            return len(self._attempts) < MAX_PROXY_ATTEMPTS
        if isinstance(error, QueueNotFound):
            return self._placed.may_move
        return error.retriable and not isinstance(error, StaleSequence)


def _is_in_doubt(error: MinimqError) -> bool:
    return (error.was_sent and not error.answered) or isinstance(error, _IN_DOUBT)


def not_acknowledged(error: MinimqError, attempts: Sequence[str], count: int, *, in_doubt: bool) -> SendFailed:
    """Return the error of a transaction after its last attempt."""
    outcome = "it may be stored, as a whole" if in_doubt else "nothing of it is stored"
    return SendFailed(
        f"the transaction is not acknowledged, and {outcome}: {error.message}",
        tuple(attempts),
        may_be_stored=count * in_doubt,
        not_stored=count * (not in_doubt),
    )
