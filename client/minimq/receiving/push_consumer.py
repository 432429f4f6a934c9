"""The push consumer: calls a listener with messages, on threads of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self, Unpack, get_args

from minimq.arguments import check_count, check_timeout
from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.options import with_changes
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import check_text
from minimq.receiving.consumer_face import ConsumerFace
from minimq.receiving.consumer_options import (
    ConsumerChanges,
    ConsumerOptions,
)
from minimq.receiving.listener import AsyncListener, AsyncListenerAdapter, Listener, ListenerAdapter, ListenerCalls
from minimq.receiving.message_dispatcher import MessageDispatcher
from minimq.receiving.queue_dispatcher import QueueDispatcher
from minimq.transport.dropped import WhenDropped
from minimq.transport.start_position import Start
from minimq_common.errors import InvalidArgument, MiniMQError

log = logging.getLogger(__name__)

#: What the members of a group divide.
Balance = Literal["queues", "messages"]

#: Most messages in one call unless told otherwise: where each is taken by itself, none waits for another.
_BATCH_SIZE: dict[Balance, int] = {"queues": 32, "messages": 1}


class PushConsumer(ConsumerFace):
    """Calls a listener with the messages of the queues that its group gives it.

    The listener answers `ConsumeResult.SUCCESS`, or `RETRY_LATER` when the messages shall be tried again, or
    `RetryLater(indexes=[3, 5])` when that is true only of some; an exception counts as `RETRY_LATER`. The group's
    offset never passes a message that is not finished, so a message is never lost, but may come twice after a fault.
    Messages that are tried again come one by one, so that one that fails always does not take others with it.

    A *concurrent* consumer calls the listener by several threads at once, also with messages of one queue. Messages
    that are to be tried again are sent to the topic `%RETRY%group`, where they wait longer each time, and count as
    finished here; after `max_tries` of that they go to `%DLQ%group`. Both topics are made when they are first needed.

    An *orderly* consumer makes one call at a time for each queue, in its order. A queue whose messages are to be tried
    again stands still for `suspend_s`, then the same messages are given again, one after the other; no other overtakes
    them.

    A call that lasts longer than `consume_timeout_s` is logged. Its thread is lost until the listener returns; a
    concurrent consumer has the messages tried again meanwhile, and does not look at what the listener answers later.

    With `balance="messages"` the group is a work queue, as with `SimpleConsumer`: there may be more consumers than
    queues, a call that lasts holds up no other message, and there is no order. A message is in no other hand while its
    call runs, however long that is. It is acknowledged when the listener has succeeded, and waits at its broker when it
    is to be tried again. Those of a consumer that dies go to others.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        group: the consumer group.
        allocation: how the group divides queues, by name or as an object.
        start: where a new group begins: "earliest", "latest" or a time.
        threads: how many calls of the listener may run at once.
        batch_size: most messages in one call; 32 unless given, and 1 with `balance="messages"`.
        balance: what the members of the group divide: "queues", or "messages", which they take one by one.
        orderly: whether the order of a queue is kept.
        client_id: name among all clients; made up unless given.
        options: how to read; single options may be given by name instead.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    _reader: QueueDispatcher | MessageDispatcher

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        threads: int = 8,
        batch_size: int | None = None,
        balance: Balance = "queues",
        orderly: bool = False,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Unpack[ConsumerChanges],
    ) -> None:
        check_text("group", group)  # there is no push consumer without one
        chosen = with_changes(options or ConsumerOptions(), changes, PushConsumer)
        if balance not in get_args(Balance):
            raise InvalidArgument(f"balance is {balance!r}: it must be one of {', '.join(get_args(Balance))}")
        check_count("threads", threads)
        most = _BATCH_SIZE[balance] if batch_size is None else batch_size
        check_count("batch_size", most)
        calls = ListenerCalls(threads, most, orderly)
        self._in_order = orderly
        if balance == "queues":
            self._reader = QueueDispatcher(
                nameserver,
                group,
                client_id=client_id,
                allocation=allocation,
                start=start,
                calls=calls,
                options=chosen,
            )
        else:
            if orderly:
                raise InvalidArgument("messages that are taken one by one have no order: leave out orderly or balance")
            if allocation != "averagely":
                raise InvalidArgument("there are no queues to divide with balance='messages': leave out allocation")
            self._reader = MessageDispatcher(
                nameserver, group, client_id=client_id, start=start, calls=calls, options=chosen
            )
        self._when_dropped = WhenDropped(self, self._reader.drop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except MiniMQError:
            if error is None:
                raise
            log.warning("consumer: had stopped reading before group=%s", self.group)  # not the first failure

    def subscribe(self, topic: str, expression: TagExpression = "*", *, where: str | None = None) -> None:
        """Read a topic; before `start`. Raises `InvalidArgument`.

        Args:
            topic: its name; call again for further topics.
            expression: which tags: "*", or for example "paid || refunded".
            where: which properties, for example "region = 'EU'"; see docs/filtering.md.
        """
        self._reader.subscribe(topic, expression, where)

    def start(self, listener: Listener) -> None:
        """Join the group and begin to call the listener.

        A name server, or brokers, that are not there yet are waited for, for up to `start_timeout_s`.

        Args:
            listener: gets messages of one queue and one topic, at most `batch_size`.

        Raises:
            InvalidArgument: nothing is subscribed to, it was started before, or the listener is no plain function.
            TopicNotFound, TopicUnavailable, Unavailable: a topic is not found.
            Closed: the consumer was closed meanwhile.
        """
        self._reader.start(ListenerAdapter(listener, self.group, in_order=self._in_order))
        self._when_dropped.closed()  # it runs on, whoever has this object

    def _start_on(self, loop: asyncio.AbstractEventLoop, listener: AsyncListener) -> None:
        """Do as `start`, and await the listener on an event loop that runs in another thread."""
        self._reader.start_on(loop, AsyncListenerAdapter(listener, self.group, in_order=self._in_order))
        self._when_dropped.closed()

    def _check_may_close(self) -> None:
        self._reader.check_may_close()

    def close(self, timeout: float = 30.0) -> None:
        """Take no more, let running calls of the listener end, commit, leave the group. Idempotent.

        Args:
            timeout: seconds to wait for the calls, and for messages that are just being sent to the retry topic; what
                is not finished then is given to another member. `on_revoked` may take as long after that.

        Raises:
            InvalidArgument: it is called by a callback or by the listener, for whose end it would have to wait, or the
                timeout is no number.
            InternalError: its dispatcher had ended before, and so had all reading; the consumer is closed all the same.
        """
        check_timeout(timeout)
        self._when_dropped.closed()
        self._reader.close(timeout)
