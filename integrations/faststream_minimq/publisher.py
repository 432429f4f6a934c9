"""Publishers of a topic, and of replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType

from faststream_minimq.config import MinimqBrokerConfig, MinimqPublisherConfig
from faststream_minimq.message import REQUEST, MinimqMessage
from faststream_minimq.response import MinimqPublishCommand, checked
from minimq import MessageFields, SendReceipt

if TYPE_CHECKING:
    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware
    from faststream.message import StreamMessage
    from faststream.response.response import PublishCommand


class TopicPublisher(PublisherUsecase):
    """Publishes to one topic: messages that you pass, and the answers of handlers that it decorates."""

    _outer_config: MinimqBrokerConfig

    def __init__(self, config: MinimqPublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._topic, self.headers = config.topic, config.headers
        self.reply_to, self.options = config.reply_to, config.options

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **fields: Unpack[MessageFields],
    ) -> SendReceipt:
        """Send a message and wait until it is on disk; see `MinimqBroker.publish`."""
        cmd = self._command(message, topic, headers, correlation_id, checked(fields))
        cmd.reply_to = reply_to or self.reply_to
        receipt: SendReceipt = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return receipt

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float = 3.0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> MinimqMessage:
        """Send a request and return its reply; see `MinimqBroker.request`."""
        cmd = self._command(message, topic, headers, correlation_id, checked(fields))
        cmd.publish_type, cmd.timeout_s = PublishType.REQUEST, timeout
        reply: MinimqMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    def _command(
        self,
        message: object,
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        options: MessageFields,
    ) -> MinimqPublishCommand:
        return MinimqPublishCommand(
            message,
            topic=topic or self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options=checked(options, self.options),
            _publish_type=PublishType.PUBLISH,
        )

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        command = MinimqPublishCommand.from_cmd(cmd)
        command.destination = command.destination or self.topic
        command.add_headers(self.headers, override=False)
        command.reply_to = command.reply_to or self.reply_to
        command.options = checked(command.options, self.options)
        await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)


class ReplyPublisher(FakePublisher):
    """Publishes the answer of a handler to the requester, or to the topic in `reply_to`."""

    def __init__(self, producer: ProducerProto[Any], message: StreamMessage[Any]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> MinimqPublishCommand:
        command = MinimqPublishCommand.from_cmd(super().patch_command(cmd))
        if REQUEST in self._message.raw_message.properties:
            command.request = self._message.raw_message
        else:
            command.destination = self._message.reply_to
        return command
