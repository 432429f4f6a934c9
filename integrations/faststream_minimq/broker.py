"""The FastStream broker: the connection of an application to a minimq cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from fast_depends import Provider, dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.types import IdGenerator
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from faststream_minimq.broker_logging import make_minimq_logger_state
from faststream_minimq.config import MinimqBrokerConfig
from faststream_minimq.message import MinimqMessage
from faststream_minimq.producer import MinimqConnection, MinimqProducer
from faststream_minimq.registrator import MinimqRegistrator
from faststream_minimq.response import MinimqPublishCommand, checked
from minimq import Cluster, Credentials, MessageFields, SendReceipt, __version__

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.configs.broker import UnderlyingDriverAnnotations
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable
    from faststream.security import BaseSecurity
    from faststream.specification.schema.extra import Tag, TagDict

#: Default timeout of `ping`.
_PING_S = 5.0


class MinimqBroker(MinimqRegistrator, BrokerUsecase[Any, MinimqConnection, MinimqBrokerConfig]):
    """Connects an application to a minimq cluster. Belongs to one event loop at a time.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]" or a sequence of addresses; by default those of the credentials, or
            127.0.0.1:9876.
        credentials: see `minimq.Cluster`.
        group: the default consumer group of subscribers.
        create_queues: create a missing topic with this number of queues on each minimq broker, when a subscriber
            starts or a message is sent; 0 creates none.
        reply_topic: see `minimq.ProducerOptions`.
        ack_policy: the default policy of subscribers; `AckPolicy.NACK_ON_ERROR` if not set.
        graceful_timeout: seconds that `stop` waits for running handlers.
        specification_url: address or addresses in the AsyncAPI document; by default that of the first name server.
        protocol: the protocol in the AsyncAPI document.
        protocol_version: its version; by default the version of minimq.
        apply_types: validate and convert the arguments of handlers.

    All other arguments are common to all FastStream brokers.

    Raises:
        InvalidArgument: at connect: an address is not HOST:PORT, or the credentials cannot be used.
    """

    _connection: MinimqConnection | None

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | None = None,
        *,
        credentials: str | Credentials | None = None,
        group: str | None = None,
        create_queues: int = 0,
        reply_topic: str | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[MinimqRegistrator] = (),
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | Iterable[str] | None = None,
        protocol: str = "minimq",
        protocol_version: str = __version__,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        security: BaseSecurity | None = None,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        underlying_driver_annotations: UnderlyingDriverAnnotations | None = None,
    ) -> None:
        self._nameserver, self._credentials, self._create_queues = nameserver, credentials, create_queues
        self._reply_topic = reply_topic
        if specification_url is None:
            first = (nameserver.split(",") if isinstance(nameserver, str) else nameserver or ("127.0.0.1:9876",))[0]
            specification_url = f"minimq://{first.strip()}"
        super().__init__(
            routers=routers,
            config=MinimqBrokerConfig(
                group=group,
                producer=MinimqProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_minimq_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            specification=BrokerSpec(
                description=description,
                url=[specification_url] if isinstance(specification_url, str) else list(specification_url),
                protocol=protocol,
                protocol_version=protocol_version,
                tags=tags,
                security=security,
            ),
        )

    # ---- connection -----------------------------------------------------------------------------

    async def _connect(self) -> MinimqConnection:
        cluster = Cluster(self._nameserver, credentials=self._credentials)
        config = self.config.broker_config
        found = [getattr(each, "send_interceptor", None) for each in config.broker_middlewares]
        interceptors = [each for each in found if each is not None]
        connection = MinimqConnection(cluster, self._create_queues, interceptors, self._reply_topic)
        config.connection = connection
        producer = config.producer
        if isinstance(producer, MinimqProducer):
            producer.connect(connection, config.fd_config._serializer, config.broker_codec)
        return connection

    async def start(self) -> None:
        """Connect and start to receive."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Wait up to `graceful_timeout` seconds for running handlers, flush the producer, and disconnect."""
        await super().stop(exc_type, exc_val, exc_tb)
        connection, self._connection = self._connection, None
        config = self.config.broker_config
        config.connection = None
        if isinstance(config.producer, MinimqProducer):
            config.producer.disconnect()
        if connection is not None:
            await connection.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a name server answers within `timeout` seconds and knows a broker of the cluster."""
        if self._connection is None:
            return False
        return await asyncio.to_thread(self._connection.ping, timeout or _PING_S)

    # ---- publishing -----------------------------------------------------------------------------

    async def publish(  # type: ignore[override] # the topic has a name
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **fields: Unpack[MessageFields],
    ) -> SendReceipt:
        """Send a message and wait until it is on disk.

        Args:
            message: the body: bytes, text, or a value to encode as JSON; None for an empty body.
            topic: topic of the message.
            headers: names and values, which become properties.
            correlation_id: by default a new one.
            reply_to: the topic for the answer of the handler.
            fields: further fields of the message, see `MessageFields`.

        Raises:
            MinimqError: an error of `minimq.Producer.send`.
        """
        cmd = self._command((message,), topic, headers, correlation_id, checked(fields))
        cmd.reply_to = reply_to
        receipt: SendReceipt = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override] # the topic has a name
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **fields: Unpack[MessageFields],
    ) -> list[SendReceipt]:
        """Send messages together and wait until all are on disk; see `publish`. Raises the errors of `send_many`."""
        cmd = self._command(messages, topic, headers, correlation_id, checked(fields))
        cmd.reply_to = reply_to
        receipts: list[SendReceipt] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return receipts

    async def request(  # type: ignore[override] # the topic has a name
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float = 3.0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> MinimqMessage:
        """Send a request and return the handler's reply; see `publish`.

        Raises:
            TimeoutError: no reply arrived within `timeout` seconds.
            minimq.errors.RequestFailed: the service replied with an error.
        """
        cmd = self._command((message,), topic, headers, correlation_id, checked(fields))
        cmd.publish_type, cmd.timeout_s = PublishType.REQUEST, timeout
        reply: MinimqMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply

    def _command(
        self,
        bodies: Sequence[Any],
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        options: MessageFields,
    ) -> MinimqPublishCommand:
        return MinimqPublishCommand(
            *(bodies or (None,)),
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            _publish_type=PublishType.PUBLISH,
        )
