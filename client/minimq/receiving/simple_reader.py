"""A consumer that takes messages one by one, on the loop of its connection: both simple consumers are its faces."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.filtering.message_filter import MessageFilter
from minimq.filtering.tag_filter import TagExpression
from minimq.receiving.consumer import check_subscriptions, check_text, new_client_id
from minimq.receiving.consumer_options import check_count, check_timeout
from minimq.receiving.pop_stream import PopStream, SettleKey, Span, merged
from minimq.receiving.popped import OpenedBatch, PoppedMessage
from minimq.receiving.received import StoredBatch
from minimq.receiving.redelivery import REJECTED, TRIES_USED_UP, check_reason
from minimq.receiving.retry_worker import Failed, RetrySender
from minimq.receiving.settler import Settler
from minimq.receiving.simple_options import SimpleOptions, invisible_ms
from minimq.transport.home_process import HomeProcess
from minimq.transport.start_position import start_position
from minimq_common.errors import (
    Closed,
    CorruptBatch,
    DeadlineExceeded,
    InvalidArgument,
    MiniMQError,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import MessageQueue
from minimq_common.names import check_client_id, check_group, check_topic
from minimq_common.protocol_bounds import MAX_TAKEN
from minimq_common.security.credentials import CredentialsArgument
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Bytes of batches that one take brings, about.
_MAX_BYTES = 4 << 20
#: How long a broker holds a take while there is nothing, in seconds.
_LONGEST_WAIT_S = 20.0
#: When a broker that has failed is asked again, in seconds.
_AGAIN_S = 0.1
#: How long it is waited for others while a broker is away, in seconds.
_LOOK_S = 2.0
#: When messages of a batch that is damaged come again, in ms.
_DAMAGED_MS = 3_600_000


class _Place(NamedTuple):
    """A topic at one of its brokers."""

    topic: str
    broker_name: str
    address: str


class SimpleReader:
    """Takes messages and settles them. Coroutines run on the event loop of `client.connection`.

    Args:
        nameserver: as of `ClusterClient`.
        group: the consumer group.
        client_id: name among all clients; made up unless given.
        options: how to read.
        credentials: as of `Cluster`.

    Attributes:
        client: the share of the connection.
        settler: says what becomes of messages.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        client_id: str | None,
        options: SimpleOptions,
        credentials: CredentialsArgument | None,
    ) -> None:
        check_text("group", group)
        self.group = check_group(group)
        self.client_id = new_client_id() if client_id is None else check_client_id(client_id)
        self._options = options
        self._invisible_ms = invisible_ms(options.invisible_s)
        self._start = start_position(options.start)
        self._process = HomeProcess("consumer")
        self.client = ClusterClient(nameserver, credentials=credentials)
        self._filters: dict[str, MessageFilter] = {}
        self._turn = random.randrange(1 << 16)  # consumers do not all begin at the same broker
        self._damage: list[MiniMQError] = []
        self._dead_letters = RetrySender(
            self.client, group=group, levels=1, max_tries=0, timeout_s=options.request_timeout_s
        )
        self._burying = asyncio.Lock()
        self._is_closed = False
        self.settler = Settler(self.client, group, self.client_id, options.request_timeout_s, self.check)

    def subscribe(self, topic: str, expression: TagExpression, where: str | None) -> None:
        """Take from a topic as well."""
        self._process.check()
        filters = {**self._filters, check_topic(topic): MessageFilter(expression, where)}
        self._filters = check_subscriptions(filters)

    def check(self) -> None:
        """Raise `Closed` after `close`, and in a fork."""
        self._process.check()
        if self._is_closed:
            raise Closed("the consumer is closed")

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._is_closed

    def kept_ms(self, invisible_s: float | None) -> int:
        """Return an invisible duration in ms: that of the consumer unless given. Raises `InvalidArgument`."""
        return self._invisible_ms if invisible_s is None else invisible_ms(invisible_s)

    # ---- receiving ---------------------------------------------------------------------------------

    async def receive(self, max_messages: int, invisible_s: float | None, timeout_s: float) -> list[PoppedMessage]:
        """Return messages, those of one queue; nothing when none came in time. See `SimpleConsumer.receive`."""
        self.check()
        check_count("max_messages", max_messages)
        check_timeout(timeout_s)
        if not self._filters:
            raise InvalidArgument("nothing is subscribed to: call subscribe(topic) first")
        kept_ms = self.kept_ms(invisible_s)
        most = min(max_messages, MAX_TAKEN)
        loop = asyncio.get_running_loop()
        until = loop.time() + max(0.0, timeout_s)
        while True:
            if self._damage:
                raise self._damage.pop(0)
            found, failure = await self._receive_once(most, kept_ms, until)
            if found:
                return found
            if loop.time() >= until:
                if failure is not None:
                    raise failure
                return []
            if failure is not None:
                await asyncio.sleep(min(_AGAIN_S, max(0.0, until - loop.time())))

    async def _receive_once(
        self, most: int, kept_ms: int, until: float
    ) -> tuple[list[PoppedMessage], MiniMQError | None]:
        """Return messages from the first broker that has some, and why there may be none."""
        places, failure = await self._places(until)
        found: list[PoppedMessage] = []
        answered = False
        self._turn += 1
        turn = self._turn % max(1, len(places))
        for place in places[turn:] + places[:turn]:
            wait_s = until - asyncio.get_running_loop().time() if len(places) == 1 else 0.0
            try:
                found = await self._take(place, most, kept_ms, wait_s)
                answered = True
            except MiniMQError as error:
                failure = self._tolerated(place, error)
            if found:
                return found, None
        if len(places) > 1 and until > asyncio.get_running_loop().time():
            missing = failure is not None
            found, other = await self._take_first(places, most, kept_ms, until, places_missing=missing)
            failure = failure or other
        return found, None if answered and failure is not None and failure.retriable else failure

    async def _take_first(
        self, places: Sequence[_Place], most: int, kept_ms: int, until: float, *, places_missing: bool
    ) -> tuple[list[PoppedMessage], MiniMQError | None]:
        """Wait at all brokers at once; what comes from a second one goes back."""
        wait_s = until - asyncio.get_running_loop().time()
        if places_missing:
            wait_s = min(wait_s, _LOOK_S)
        tasks = {asyncio.create_task(self._take(place, most, kept_ms, wait_s)): place for place in places}
        found: list[PoppedMessage] = []
        failure: MiniMQError | None = None
        pending: set[asyncio.Task[list[PoppedMessage]]] = set(tasks)
        try:
            while pending and not found:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        messages = task.result()
                    except MiniMQError as error:
                        failure = self._tolerated(tasks[task], error)
                        continue
                    if not found:
                        found = messages
                    elif messages:
                        await self.settler.settle(messages, broker_pb2.POP_OUTCOME_RETURN, 0)
        finally:
            for task in pending:
                task.cancel()
        return found, failure

    def _tolerated(self, place: _Place, error: MiniMQError) -> MiniMQError:
        """Return an error that may pass; raise any other."""
        if error.refresh_route:
            self.client.connection.routes.refresh_soon(place.topic)
        if not (error.retriable or isinstance(error, TopicNotFound)):
            raise error
        return error

    async def _places(self, until: float) -> tuple[list[_Place], MiniMQError | None]:
        """Return the topics at their brokers. Raises `TopicNotFound`."""
        found, failure = list[_Place](), None
        routes = self.client.connection.routes
        for topic in self._filters:
            route = self.client.routes.known(topic)
            if route is None:
                left_s = max(0.2, min(until - asyncio.get_running_loop().time(), self.client.timeout_s))
                try:
                    route = await routes.route(topic, left_s)
                except MiniMQError as error:
                    if not error.retriable:
                        raise
                    failure = error
                    continue
                self.client.routes.known(topic)  # which has it watched
            for name in dict.fromkeys(queue.broker_name for queue in route.read_queues()):
                address = route.master_of(name)
                if address is None:
                    failure = Unavailable(f"broker {name} of topic {topic!r} has no master now")
                else:
                    found.append(_Place(topic, name, address))
        if not found and failure is None:
            failure = Unavailable(f"no broker has queues of {', '.join(self._filters)} that may be read")
        return found, failure

    async def _take(self, place: _Place, most: int, kept_ms: int, wait_s: float) -> list[PoppedMessage]:
        """Return the messages of one take that are wanted."""
        stream = self.settler.stream(place.address)
        wanted = self._filters[place.topic]
        kept = stream.opened.kept()
        wait_s = max(0.0, min(wait_s, _LONGEST_WAIT_S))
        take = broker_pb2.PopTake(
            topic=place.topic,
            max_messages=most,
            max_bytes=_MAX_BYTES,
            invisible_ms=kept_ms,
            wait_ms=round(wait_s * 1000),
            start=self._start,
            have=kept,
            filter=wanted.text,
            tag_hashes=wanted.tag_hashes,
            unbound=not self._options.free_on_close,
        )
        try:
            async with asyncio.timeout(wait_s + self._options.request_timeout_s):
                popped = await stream.take(take)
        except TimeoutError:
            stream.cancel()
            limit_s = self._options.request_timeout_s
            raise DeadlineExceeded(f"broker {place.address} gave no answer within {limit_s:g} s") from None
        if not popped.runs:
            return []
        return await self._opened(place, stream, popped, kept)

    async def _opened(
        self, place: _Place, stream: PopStream, popped: broker_pb2.PoppedMessages, kept: dict[int, OpenedBatch]
    ) -> list[PoppedMessage]:
        """Return the messages that were handed out, without those that nobody wants and dead letters."""
        queue = MessageQueue(place.topic, place.broker_name, popped.queue_id)
        messages: list[PoppedMessage] = []
        damaged: list[Span] = []
        for item in popped.batches:
            stored = StoredBatch(item.base_offset, item.store_timestamp_ms, item.position, item.count, item.batch)
            behind = stored.base_offset + stored.count
            spans = [
                (max(run.first, stored.base_offset), min(run.first + run.count, behind), run.tries)
                for run in popped.runs
                if run.first < behind and run.first + run.count > stored.base_offset
            ]
            try:
                opened = stream.opened.get(queue, stored, kept)
            except CorruptBatch as error:
                reason = error.message.partition("; what follows")[0]
                self._damage.append(
                    error.with_message(
                        f"{reason}; its messages are set aside for {_DAMAGED_MS // 60_000} minutes, and the group goes "
                        "on with others"
                    )
                )
                damaged += [(first, end) for first, end, _ in spans]
                continue
            for first, end, tries in spans:
                messages += opened.messages(first, end, tries, popped.epoch, self.group)
        if damaged:
            key = SettleKey(place.topic, popped.queue_id, popped.epoch, broker_pb2.POP_OUTCOME_FREE, _DAMAGED_MS)
            await stream.settle(key, merged(damaged))
        wanted = self._filters[place.topic].apply(messages)
        if len(wanted) < len(messages):
            chosen = set(map(id, wanted))
            unwanted = [message for message in messages if id(message) not in chosen]
            await self.settler.settle(unwanted, broker_pb2.POP_OUTCOME_DONE, 0)
        if any(message.tries > self._options.max_tries for message in wanted):
            # Nobody has looked at them this time.
            used_up = [message for message in wanted if message.tries > self._options.max_tries]
            await self._bury(used_up, [Failed(message, None, TRIES_USED_UP, message.tries - 1) for message in used_up])
            wanted = [message for message in wanted if message.tries <= self._options.max_tries]
        return wanted

    # ---- dead letters ------------------------------------------------------------------------------

    async def reject(self, messages: PoppedMessage | Iterable[PoppedMessage], reason: str = REJECTED) -> None:
        """Send messages to the dead letters of the group, then acknowledge them."""
        self.check()
        why = check_reason(reason)
        chosen = [messages] if isinstance(messages, PoppedMessage) else list(messages)
        for message in chosen:
            if not isinstance(message, PoppedMessage):
                raise InvalidArgument(
                    "a dead letter is a copy of its message: reject the message itself, not its handle"
                )
        self.settler.receipts(chosen)
        await self._bury(chosen, [Failed(message, None, why, message.tries) for message in chosen])

    async def _bury(self, messages: Sequence[PoppedMessage], failed: Sequence[Failed]) -> None:
        """Send messages to the dead letters of the group, then acknowledge them."""
        async with self._burying:
            sent = await asyncio.to_thread(self._dead_letters.send, failed)
        buried = [message for message, is_sent in zip(messages, sent, strict=True) if is_sent]
        if buried:
            await self.settler.settle(buried, broker_pb2.POP_OUTCOME_DONE, 0)
        if left := len(messages) - len(buried):
            raise Unavailable(
                f"{left} messages were not sent to the dead letters of group {self.group!r}: they "
                "come again after their invisible duration"
            )

    async def close(self, timeout_s: float) -> None:
        """End all streams: brokers have heard then that the consumer goes."""
        self._is_closed = True
        await self.settler.close(timeout_s)

    def release(self) -> None:
        """End everything at once; on any thread but that of the loop."""
        self._is_closed = True
        self._dead_letters.close()
        self.client.close()
