"""Registers subscribers and publishers: the common part of brokers and routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from faststream_minimq.config import MinimqBrokerConfig, MinimqPublisherConfig, MinimqSubscriberConfig
from faststream_minimq.orderly_subscriber import OrderlySubscriber
from faststream_minimq.publisher import TopicPublisher
from faststream_minimq.response import checked
from faststream_minimq.specification import (
    MinimqPublisherSpecification,
    MinimqPublisherSpecificationConfig,
    MinimqSubscriberSpecification,
    MinimqSubscriberSpecificationConfig,
)
from faststream_minimq.subscriber import MinimqSubscriber
from faststream_minimq.subscriber_options import SubscriberFields, SubscriberOptions
from faststream_minimq.work_queue_subscriber import WorkQueueSubscriber
from minimq import MessageFields

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class HandlerFields(TypedDict, total=False):
    """The arguments of subscribers that all FastStream brokers have in common.

    Attributes:
        ack_policy: by default the policy of the router or broker, else `AckPolicy.NACK_ON_ERROR`.
        no_reply: do not send replies.
        dependencies: dependencies of all handlers.
        parser: converts a raw message to a FastStream message.
        decoder: converts a body to an object.
        codec: replaces `decoder`.
        persistent: keep the subscriber even if nothing else refers to it.
        title: title of the channel in the AsyncAPI document.
        description: description of the channel.
        include_in_schema: include the channel in the document.
    """

    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    persistent: bool
    title: str | None
    description: str | None
    include_in_schema: bool


class SubscriberArguments(SubscriberFields, HandlerFields, total=False):
    """All arguments of a subscriber except its topic."""


class MinimqRegistrator(Registrator[Any, MinimqBrokerConfig]):
    """Registers subscribers and publishers."""

    def subscriber(  # type: ignore[override] # the base class takes a subscriber
        self, topic: str, **arguments: Unpack[SubscriberArguments]
    ) -> MinimqSubscriber:
        """Return a subscriber of a topic, a decorator for handlers.

        Args:
            topic: the topic, without the prefixes of routers.
            arguments: fields of `SubscriberOptions`, and the common arguments of all brokers (`HandlerFields`).

        Raises:
            InvalidArgument: an option has a value that is not allowed.
            SetupError: the policy does not fit an orderly subscriber.
        """
        own = {name: value for name, value in arguments.items() if name in SubscriberFields.__annotations__}
        options = SubscriberOptions(**cast("SubscriberFields", own))
        common = {name: value for name, value in arguments.items() if name not in own}
        return self._add(topic, options, **cast("HandlerFields", common))

    def _add(self, topic: str, options: SubscriberOptions, **common: Unpack[HandlerFields]) -> MinimqSubscriber:
        outer = cast("MinimqBrokerConfig", self.config)
        config = MinimqSubscriberConfig(
            topic=topic,
            options=options,
            no_reply=common.pop("no_reply", False),
            _outer_config=outer,
            _ack_policy=common.pop("ack_policy", EMPTY),
        )
        calls = CallsCollection[Any]()
        specification = MinimqSubscriberSpecification(
            outer,
            MinimqSubscriberSpecificationConfig(
                topic=topic,
                title_=common.pop("title", None),
                description_=common.pop("description", None),
                include_in_schema=common.pop("include_in_schema", True),
            ),
            calls,
        )
        made = OrderlySubscriber if options.orderly else WorkQueueSubscriber
        subscriber: MinimqSubscriber = made(config, specification, calls)
        super().subscriber(subscriber, persistent=common.pop("persistent", True))
        return subscriber.add_call(
            parser_=common.pop("parser", None) or self._parser,
            decoder_=common.pop("decoder", None) or self._decoder,
            codec_=common.pop("codec", None),
            dependencies_=common.pop("dependencies", ()),
            **_rejected(common),
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        **fields: Unpack[MessageFields],
    ) -> TopicPublisher:
        """Return a publisher to a topic: call its `publish`, or decorate handlers with it.

        Args:
            topic: the topic, without the prefixes of routers.
            headers: default headers of each message.
            reply_to: the topic for the answers of other services' handlers.
            persistent: keep the publisher even if nothing else refers to it.
            title: title of the channel in the AsyncAPI document.
            description: description of the channel.
            schema: type of the messages, if no handler's annotation has it.
            include_in_schema: include the channel in the document.
            fields: default fields of each message.
        """
        outer = cast("MinimqBrokerConfig", self.config)
        config = MinimqPublisherConfig(
            topic=topic, headers=headers or {}, reply_to=reply_to, options=checked(fields), _outer_config=outer
        )
        specification = MinimqPublisherSpecification(
            outer,
            MinimqPublisherSpecificationConfig(
                topic=topic, schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
            ),
        )
        publisher = TopicPublisher(config, specification)
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: MinimqRegistrator,  # type: ignore[override] # of this kind
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Include a router's subscribers and publishers. Raises `SetupError` if the router is not for minimq."""
        if not isinstance(router, MinimqRegistrator):
            raise SetupError(f"the router is a {type(router).__name__}: include a faststream_minimq.MinimqRouter")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


def _rejected(left: HandlerFields) -> dict[str, Any]:
    if left:
        raise TypeError(f"a subscriber has no argument {', '.join(left)}")
    return {}
