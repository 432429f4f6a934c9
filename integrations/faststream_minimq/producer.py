"""The connection of a broker to a cluster, and its producer of messages, requests and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
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
    """The clients that all subscribers and publishers of a broker share."""

    def __init__(
        self,
        cluster: Cluster,
        create_queues: int,
        interceptors: Sequence[SendInterceptor] = (),
        reply_topic: str | None = None,
    ) -> None:
        self.cluster, self.create_queues = cluster, create_queues
        self.producer = Producer(cluster, interceptors=interceptors, reply_topic=reply_topic)

    def create_topic(self, topic: str) -> None:
        """Create a topic unless it exists. Blocks; raises the errors of `minimq.Admin.create_topic`."""
        with Admin(self.cluster) as admin:
            admin.create_topic(topic, self.create_queues, if_not_exists=True)

    def ping(self, timeout_s: float) -> bool:
        """Return whether a name server answers and knows a broker. Blocks."""
        try:
            with Admin(self.cluster, timeout_s=timeout_s) as admin:
                return bool(admin.cluster())
        except errors.MinimqError:
            return False

    async def close(self) -> None:
        """Flush the producer and close all connections. Raises the errors of `minimq.aio.Producer.close`."""
        try:
            await self.producer.close()
        finally:
            await self.cluster.aclose()


async def encode_all(
    codec: CodecProto, bodies: Sequence[Any], serializer: SerializerProto | None
) -> list[tuple[bytes, str | None]]:
    """Encode the bodies of a batch, together if the codec can do that."""
    if isinstance(codec, BatchCodecProto):
        return await codec.encode_batch(bodies, serializer)
    return [await codec.encode(body, serializer) for body in bodies]


class MinimqProducer(ProducerProto[MinimqPublishCommand]):
    """Sends messages, requests and replies over the connection of a broker."""

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
        self._connection, self._serializer, self.codec = connection, serializer, codec or DefaultCodec()

    def disconnect(self) -> None:
        """Drop the connection without closing it."""
        self._connection = None

    async def publish(self, cmd: MinimqPublishCommand) -> SendReceipt | None:
        """Send a message and wait until it is on disk, or reply to a request and return None."""
        body, content_type = await self._encode(cmd.body)
        connection = self._connected()
        if cmd.request is not None:
            await connection.producer.reply(cmd.request, cmd.reply(body, content_type))
            return None
        message = cmd.message(body, content_type)
        return await self._with_topic(cmd.destination, lambda: connection.producer.send(message))

    async def publish_batch(self, cmd: MinimqPublishCommand) -> list[SendReceipt]:
        """Send messages and wait until all are on disk. Raises the errors of `minimq.Producer.send_many`."""
        messages = [cmd.message(*each) for each in await encode_all(self.codec, cmd.batch_bodies, self._serializer)]
        producer = self._connected().producer
        return await self._with_topic(cmd.destination, lambda: producer.send_many(messages))

    async def request(self, cmd: MinimqPublishCommand) -> Reply:
        """Send a request and return its reply."""
        message = cmd.message(*await self._encode(cmd.body))
        producer, timeout_s = self._connected().producer, cmd.timeout_s
        return await self._with_topic(cmd.destination, lambda: producer.request(message, timeout=timeout_s))

    async def _encode(self, body: Any) -> tuple[bytes, str | None]:
        return await self.codec.encode(body, self._serializer)

    async def _with_topic(self, topic: str, call: Callable[[], Awaitable[T]]) -> T:
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
