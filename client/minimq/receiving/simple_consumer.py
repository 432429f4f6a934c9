"""The simple consumer: messages are taken one by one, and settled one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.receiving.consumer_options import invisible_ms
from minimq.receiving.popped import PoppedMessage
from minimq.receiving.redelivery import REJECTED
from minimq.receiving.settler import Receivables
from minimq.receiving.simple_options import SimpleOptions
from minimq.receiving.simple_reader import SimpleReader
from minimq.transport.dropped import WhenDropped
from minimq.transport.start_position import Start
from minimq_common.errors import Closed
from minimq_common.security.credentials import CredentialsArgument
from minimq_proto.v1 import broker_pb2

#: Seconds for which `close` waits for brokers.
CLOSE_S = 5.0


class SimpleConsumer:
    """Takes messages from the queues of its group one by one: a work queue. Thread-safe.

    A message that is received is in no other hand for its invisible duration. Acknowledge it when its work is done. One
    that is released, or whose invisible duration is over, is handed out again, to any consumer of the group; after
    `max_tries` consumption attempts it goes to the dead letters of the group. So there may be any number of consumers,
    more than queues, and a slow message holds up no other one. In return there is no order among messages.

    Who acknowledges, extends or releases needs the `handle` of the message and a consumer of its group, in any process.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        group: the consumer group; all of its consumers take messages one by one.
        invisible_s: invisible duration in seconds, from 1 to 43200, which is 12 hours.
        max_tries: consumption attempts after which a message is a dead letter.
        start: where a new group begins: "earliest", "latest" or a time. Decided once per group and topic.
        free_on_close: let others have what is not settled as soon as this consumer closes or dies. Without it each
            message keeps its invisible duration, so that another process may settle it by its handle.
        client_id: name among all clients; made up unless given.
        request_timeout_s: seconds for which a settle is tried, and that a broker may take to answer.
        credentials: path of the credentials file of a user, or `Credentials`; by default that which the variable
            MINIMQ_CREDENTIALS names.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        invisible_s: float = 30.0,
        max_tries: int = 16,
        start: Start = "earliest",
        free_on_close: bool = True,
        client_id: str | None = None,
        request_timeout_s: float = 10.0,
        credentials: CredentialsArgument | None = None,
    ) -> None:
        options = SimpleOptions(invisible_s, max_tries, start, free_on_close, request_timeout_s)
        self._reader = SimpleReader(nameserver, group, client_id, options, credentials)
        self._client = self._reader.client
        self._when_dropped = WhenDropped(self, self._reader.release)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._reader.group

    @property
    def client_id(self) -> str:
        """Name of this consumer among all clients."""
        return self._reader.client_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def subscribe(self, topic: str, expression: TagExpression = "*", where: str | None = None) -> None:
        """Take messages of a topic.

        Args:
            topic: its name; call again for further topics.
            expression: which tags: "*", for example "paid || refunded", or ["paid", "refunded"].
            where: which properties, for example "region = 'eu' AND amount > 10"; see docs/filtering.md. A message must
                have both. All consumers of a group need the same filter of a topic.

        Raises:
            InvalidArgument: the name or an expression is wrong.
        """
        self._reader.subscribe(topic, expression, where)

    def receive(
        self, max_messages: int = 32, *, invisible_s: float | None = None, timeout: float = 10.0
    ) -> list[PoppedMessage]:
        """Return messages, all of one queue; nothing when none came in time.

        Args:
            max_messages: most messages to return.
            invisible_s: their invisible duration in seconds; that of the consumer unless given.
            timeout: seconds to wait for the first message.

        Raises:
            GroupConflict: members of the group have queues to themselves, or consumers of it filter by something else.
            TopicNotFound: a topic does not exist.
            Unavailable, TopicUnavailable, DeadlineExceeded: no broker has answered for the whole time.
            CorruptBatch, CorruptEntry: a batch is damaged. Its messages are set aside for an hour; what others there
                are, the next call returns.
            InvalidArgument: nothing is subscribed to, or a number is wrong.
            Closed: the consumer was closed, perhaps meanwhile, or is of a process that was forked.
        """
        found: list[PoppedMessage] = []
        try:
            self._client.wait(lambda: self._reader.receive(max_messages, invisible_s, timeout, found))
            return found
        except BaseException:  # such as Ctrl-C, which may come when the messages are here
            self._reader.let_go(found)
            raise

    def __iter__(self) -> Iterator[PoppedMessage]:
        """Yield messages for ever, each of them taken by itself: it has the whole of its invisible duration."""
        while True:
            yield from self.receive(1)

    def ack(self, messages: Receivables) -> None:
        """Acknowledge messages, and wait until that is on disk: they are never handed out again.

        Repeating it is no error. One that comes after the invisible duration counts as long as nobody else has got the
        message since.

        Args:
            messages: one that was received, or its handle, or an iterable of those.

        Raises:
            HandleExpired: somebody else has got some of them since; all others are acknowledged.
            InvalidArgument: one is no message or handle, or is of another group; nothing is acknowledged. Or a handle
                points where nothing was handed out; others may be acknowledged.
            SystemBusy: a queue would fall into too many pieces; see docs/work-queues.md. Again later.
            MiniMQError: a broker refused, or did not answer in time; it may be repeated.
        """
        self._client.wait(lambda: self._reader.settler.settle(messages, broker_pb2.POP_OUTCOME_DONE, 0))

    def ack_async(self, messages: Receivables) -> Future[None]:
        """Acknowledge messages without waiting: all that come while some are under way travel together.

        Returns:
            A future that is done when they are on disk, and raises what `ack` would.
        """
        self._client.check_open()
        return self._client.connection.submit(self._reader.settler.settle(messages, broker_pb2.POP_OUTCOME_DONE, 0))

    def release(self, messages: Receivables, delay_s: float = 0.0) -> None:
        """Give messages up: they failed, and are handed out again.

        Args:
            messages: as of `ack`.
            delay_s: seconds before that, up to 43200, which is 12 hours.

        Raises:
            MiniMQError: as of `ack`.
        """
        delay_ms = invisible_ms(delay_s, "delay_s", 0)
        self._client.wait(lambda: self._reader.settler.settle(messages, broker_pb2.POP_OUTCOME_FREE, delay_ms))

    def extend(self, messages: Receivables, invisible_s: float | None = None) -> None:
        """Keep messages for longer: their invisible duration begins anew.

        Args:
            messages: as of `ack`.
            invisible_s: seconds from now on; that of the consumer unless given.

        Raises:
            HandleExpired: somebody else has got some of them since, or they are settled.
            MiniMQError: as of `ack`.
        """
        kept_ms = self._reader.kept_ms(invisible_s)
        self._client.wait(lambda: self._reader.settler.settle(messages, broker_pb2.POP_OUTCOME_EXTEND, kept_ms))

    def reject(self, messages: PoppedMessage | Iterable[PoppedMessage], reason: str = REJECTED) -> None:
        """Send messages to the dead letters of the group, and acknowledge them: nobody shall try them again.

        Args:
            messages: one that was received, or several; not handles.
            reason: why, in at most 200 characters; `minimq dlq list` counts by it.

        Raises:
            HandleExpired: somebody else has got some of them since, or they are settled; none is sent.
            Unavailable: some were not sent; they come again after their invisible duration.
            MiniMQError: as of `ack`.
        """
        self._client.wait(lambda: self._reader.reject(messages, reason))

    def close(self) -> None:
        """Leave the group, and end. Idempotent. A `receive` that runs in another thread raises `Closed`.

        What is not settled goes to others at once, unless `free_on_close` is False.
        """
        self._when_dropped.closed()
        if self._client.connection.is_forked or self._reader.is_closed:
            return
        try:
            self._client.wait(lambda: self._reader.close(CLOSE_S))
        except Closed:  # so is the `Cluster`
            pass
        finally:
            self._reader.release()
