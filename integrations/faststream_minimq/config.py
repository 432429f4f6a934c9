"""The settings of brokers, routers, subscribers and publishers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faststream._internal.configs import BrokerConfig, PublisherUsecaseConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.producer import ProducerProto, ProducerUnset
from faststream.exceptions import IncorrectState
from faststream.middlewares import AckPolicy

from faststream_minimq.response import MinimqPublishCommand
from minimq import MessageFields

if TYPE_CHECKING:
    from faststream_minimq.producer import MinimqConnection
    from faststream_minimq.subscriber_options import SubscriberOptions


@dataclass(kw_only=True)
class MinimqBrokerConfig(BrokerConfig):
    """The settings of a broker, or of a router."""

    producer: ProducerProto[MinimqPublishCommand] = field(default_factory=ProducerUnset)
    group: str | None = None
    connection: MinimqConnection | None = None
    in_memory: bool = False

    def connected(self) -> MinimqConnection:
        """Return the connection. Raises `IncorrectState` if there is none."""
        if self.connection is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` or `start()` first")
        return self.connection


@dataclass(kw_only=True)
class MinimqSubscriberConfig(SubscriberUsecaseConfig):
    _outer_config: MinimqBrokerConfig = field(default_factory=MinimqBrokerConfig)
    topic: str
    options: SubscriberOptions

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber, else that of its router or broker, else `NACK_ON_ERROR`."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class MinimqPublisherConfig(PublisherUsecaseConfig):
    _outer_config: MinimqBrokerConfig = field(default_factory=MinimqBrokerConfig)
    topic: str
    headers: dict[str, str] = field(default_factory=dict)
    reply_to: str = ""
    options: MessageFields = field(default_factory=MessageFields)
