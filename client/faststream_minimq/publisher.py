"""Publishers of a topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream.response.publish_type import PublishType

from faststream_minimq.config import MinimqBrokerConfig, MinimqPublisherConfig
from faststream_minimq.message import MinimqMessage
from faststream_minimq.response import MessageOptions, MinimqPublishCommand, PublishFields
from minimq import SendReceipt

if TYPE_CHECKING:
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand


class TopicPublisher(PublisherUsecase):
    """Publishes to one topic: called by you, or with the answers of the handlers that it decorates."""

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
        **fields: Unpack[PublishFields],
    ) -> SendReceipt:
        """Send a message and wait until it is on disk; see `MinimqBroker.publish`."""
        cmd = self._command(message, topic, headers, correlation_id, MessageOptions(**fields))
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
        **fields: Unpack[PublishFields],
    ) -> MinimqMessage:
        """Send a request and return its reply; see `MinimqBroker.request`."""
        cmd = self._command(message, topic, headers, correlation_id, MessageOptions(**fields))
        cmd.publish_type, cmd.timeout_s = PublishType.REQUEST, timeout
        reply: MinimqMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    def _command(
        self,
        message: object,
        topic: str,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        options: MessageOptions,
    ) -> MinimqPublishCommand:
        return MinimqPublishCommand(
            message,
            topic=topic or self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options=options.over(self.options),
            _publish_type=PublishType.PUBLISH,
        )

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        command = MinimqPublishCommand.from_cmd(cmd)
        command.destination = command.destination or self.topic
        command.add_headers(self.headers, override=False)
        command.reply_to = command.reply_to or self.reply_to
        command.options = command.options.over(self.options)
        await self._basic_publish(command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)
