"""The push consumer, which calls a listener with messages on its own threads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Literal, Unpack, get_args

from minimq.arguments import check_count, check_switch, check_text, waiting_s
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import ClosedByWith, Finalizer
from minimq.consuming.consumer import MakeAssigner
from minimq.consuming.interceptor import ReceiveInterceptor, ReceiveInterceptors
from minimq.consuming.start_position import Start
from minimq.consuming.subscriber import BaseConsumer
from minimq.features.listeners.leased_source import LeasedSource
from minimq.features.listeners.listener import AsyncListener, Listener, ListenerAdapter, ListenerCalls
from minimq.features.listeners.listener_options import PushConsumerChanges, PushConsumerOptions
from minimq.features.listeners.listener_runner import ListenerRunner
from minimq.features.listeners.work_queue_source import WorkQueueSource
from minimq.options import build_options
from minimq.rebalance import AllocationStrategy
from minimq_common.errors import InvalidArgument, MinimqError

log = logging.getLogger(__name__)

#: What the members of a group share: whole queues, or single messages.
Mode = Literal["queues", "work_queue"]

#: Default of `batch_size`: in a work queue, no message should wait for others in its call.
_BATCH_SIZE: dict[Mode, int] = {"queues": 32, "work_queue": 1}


class BasePushConsumer(BaseConsumer):
    """The part of a push consumer that is the same for threads and asyncio: all but start and close."""

    _reader: LeasedSource | WorkQueueSource
    _runner: ListenerRunner
    #: Gives consumers all queues, with `broadcast_dir`.
    _broadcasting: MakeAssigner | None = None

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        threads: int = 8,
        batch_size: int | None = None,
        mode: Mode = "queues",
        orderly: bool = False,
        client_id: str | None = None,
        interceptors: Sequence[ReceiveInterceptor] = (),
        **options: Unpack[PushConsumerChanges],
    ) -> None:
        check_text("group", group)  # a push consumer always has one
        chosen = build_options(PushConsumerOptions, options, type(self))
        if mode not in get_args(Mode):
            raise InvalidArgument(f"mode is {mode!r}: it must be one of {', '.join(get_args(Mode))}")
        check_count("threads", threads)
        most = _BATCH_SIZE[mode] if batch_size is None else batch_size
        check_count("batch_size", most)
        check_switch("orderly", orderly)
        calls = ListenerCalls(threads, most, orderly)
        self._in_order = orderly
        sources: list[LeasedSource | WorkQueueSource]
        if mode == "queues":
            self._reader = leased = LeasedSource(
                nameserver,
                group,
                client_id=client_id,
                allocation=allocation,
                start=start,
                calls=calls,
                options=chosen,
                broadcasting=type(self)._broadcasting,
            )
            sources = [leased]
            if chosen.broadcast_dir is None:
                sources.append(leased.retries())
        else:
            defaults = {"orderly": (orderly, False), "allocation": (allocation, "averagely")}
            for name, (value, default) in (defaults | {"broadcast_dir": (chosen.broadcast_dir, None)}).items():
                if value != default:
                    raise InvalidArgument(f"members of a work queue share its messages: leave out {name} or mode")
            self._reader = work_queue = WorkQueueSource(
                nameserver, group, client_id=client_id, start=start, calls=calls, options=chosen
            )
            sources = [work_queue]
        self._runner = ListenerRunner(sources, threads, chosen)
        for source in sources:
            source.host = self._runner
        self._interceptors = ReceiveInterceptors(interceptors, group, self._reader.client_id)
        self._finalizer = Finalizer(self, self._runner.drop)

    @property
    def is_ready(self) -> bool:
        """True while it reads: the group has accepted it, every position is fixed, and it is not closed."""
        return self._runner.is_ready

    @property
    def error(self) -> MinimqError | None:
        """The error of its latest attempt to read, such as `GroupConflict`; None if that worked. It keeps trying.

        After an `InternalError` it does not: it has stopped reading, and has left its group.
        """
        return self._runner.error

    def _adapter(self, listener: Listener | AsyncListener, *, awaited: bool) -> ListenerAdapter:
        replier, in_order = self._runner.replier, self._in_order
        return ListenerAdapter(listener, self.group, replier, self._interceptors, in_order=in_order, awaited=awaited)


class BlockingPushConsumer(ClosedByWith, BasePushConsumer):
    """The blocking methods of `minimq.PushConsumer`."""

    def start(self, listener: Listener) -> None:
        """Join the group and start calling the listener.

        Waits up to `start_timeout_s` for a name server and the brokers. With `start="latest"` it also waits until the
        brokers have recorded where the group begins, so that no message sent afterwards is skipped; but at most 5
        seconds for brokers that do not answer. `is_ready` is true once all have.

        Args:
            listener: called with messages of one queue and one topic, at most `batch_size`.

        Raises:
            InvalidArgument: there is no subscription, it was started before, or the listener is not a plain function.
            TopicNotFound, TopicUnavailable, Unavailable: a topic was not found.
            Closed: the consumer was closed meanwhile.
        """
        self._runner.start(self._adapter(listener, awaited=False))
        self._finalizer.detach()  # it keeps running without references to this object

    def close(self, timeout: float = 30.0) -> None:
        """Stop fetching, wait for running calls of the listener, commit, and leave the group. Idempotent.

        Args:
            timeout: seconds to wait for the calls, and for messages that are being sent to the retry topic; unfinished
                messages are then redelivered to another member.

        Raises:
            InvalidArgument: it is called by the listener, which it would have to wait for, or the timeout is not a
                number.
        """
        self._finalizer.close(partial(self._runner.close, waiting_s(timeout)))
