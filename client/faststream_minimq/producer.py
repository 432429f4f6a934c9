"""The connection of a broker to a cluster, and its producer: it sends, asks and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from faststream_minimq.message import MinimqParser
from faststream_minimq.response import MinimqPublishCommand
from minimq import Admin, Cluster, Reply, SendInterceptor, SendReceipt, errors
from minimq.aio import Producer

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import AsyncCallable, CustomCallable

T = TypeVar("T")


class MinimqConnection:
    """The clients that all subscribers and publishers of a broker share.

    Args:
        cluster: the connection to the cluster, which this closes.
        create_queues: number of queues of a topic that is created because it is missing; 0 creates none.
        interceptors: of the producer.

    Attributes:
        cluster: for further clients.
        producer: sends and asks.
    """

    def __init__(self, cluster: Cluster, create_queues: int, interceptors: Sequence[SendInterceptor] = ()) -> None:
        self.cluster, self.create_queues = cluster, create_queues
        self.producer = Producer(cluster, interceptors=interceptors)

    def create_topic(self, topic: str) -> None:
        """Create a topic unless it exists. Blocks; raises as `minimq.Admin.create_topic`."""
        with Admin(self.cluster) as admin:
            admin.create_topic(topic, self.create_queues, if_not_exists=True)

    def ping(self, timeout_s: float) -> bool:
        """Tell whether a name server answers and knows a broker. Blocks."""
        try:
            with Admin(self.cluster, timeout_s=timeout_s) as admin:
                return bool(admin.cluster())
        except errors.MiniMQError:
            return False

    async def close(self) -> None:
        """Send what is buffered, and end all connections. Raises as `minimq.aio.Producer.close`."""
        try:
            await self.producer.close()
        finally:
            await self.cluster.aclose()


class MinimqProducer(ProducerProto[MinimqPublishCommand]):
    """Sends messages, requests and replies over the connection of a broker.

    Args:
        parser: parses replies, if not the default one.
        decoder: decodes replies, if not the default one.
    """

    _parser: AsyncCallable
    _decoder: AsyncCallable

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        default = MinimqParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._connection: MinimqConnection | None = None

    def connect(
        self, connection: MinimqConnection, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        """Use a connection from now on."""
        self._connection, self._serializer, self.codec = connection, serializer, codec or DefaultCodec()

    def disconnect(self) -> None:
        """Use no connection any more."""
        self._connection = None

    async def publish(self, cmd: MinimqPublishCommand) -> SendReceipt | None:
        """Send a message and wait until it is on disk; or reply to a request, which returns None.

        Raises as `minimq.Producer.send` and `reply`.
        """
        body, content_type = await self._encode(cmd.body)
        connection = self._connected()
        if cmd.request is not None:
            await connection.producer.reply(cmd.request, cmd.reply(body, content_type))
            return None
        message = cmd.message(body, content_type)
        return await self._with_topic(cmd.destination, lambda: connection.producer.send(message))

    async def publish_batch(self, cmd: MinimqPublishCommand) -> list[SendReceipt]:
        """Send messages and wait until all are on disk. Raises as `minimq.Producer.send_many`."""
        messages = [cmd.message(*await self._encode(body)) for body in cmd.batch_bodies]
        producer = self._connected().producer
        return await self._with_topic(cmd.destination, lambda: producer.send_many(messages))

    async def request(self, cmd: MinimqPublishCommand) -> Reply:
        """Send a request and return its reply.

        Raises:
            TimeoutError: no reply came in time.
            minimq.errors.RequestFailed: the service replied with an error.
        """
        message = cmd.message(*await self._encode(cmd.body))
        producer, timeout_s = self._connected().producer, cmd.timeout_s
        return await self._with_topic(cmd.destination, lambda: producer.request(message, timeout=timeout_s))

    async def _encode(self, body: Any) -> tuple[bytes, str | None]:
        return await self.codec.encode(body, self._serializer)

    async def _with_topic(self, topic: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call; create its topic first if it is missing, and the broker creates topics."""
        connection = self._connected()
        try:
            return await call()
        except errors.TopicNotFound:
            if not connection.create_queues:
                raise
        await asyncio.to_thread(connection.create_topic, topic)
        return await call()

    def _connected(self) -> MinimqConnection:
        if self._connection is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` or `start()` first")
        return self._connection
