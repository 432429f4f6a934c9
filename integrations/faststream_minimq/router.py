"""Routers, and the routes and publishers to build them from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from faststream_minimq.config import MinimqBrokerConfig
from faststream_minimq.registrator import MinimqRegistrator, SubscriberArguments

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.configs.broker import UnderlyingDriverAnnotations
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class MinimqPublisher(ArgsContainer):
    """A publisher of a route. Takes the arguments of `MinimqRegistrator.publisher`."""

    def __init__(self, topic: str, **arguments: Any) -> None:
        super().__init__(topic, **arguments)


class MinimqRoute(SubscriberRoute):
    """A handler of a router.

    Args:
        call: the handler.
        topic: the topic that it subscribes to.
        publishers: publish its answers.
        arguments: see `MinimqRegistrator.subscriber`.
    """

    def __init__(
        self,
        call: Callable[..., Any] | Callable[..., Awaitable[Any]],
        topic: str,
        *,
        publishers: Iterable[MinimqPublisher] = (),
        **arguments: Unpack[SubscriberArguments],
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **arguments)


class MinimqRouter(MinimqRegistrator, BrokerRouter[Any, MinimqBrokerConfig]):
    """Subscribers and publishers that a broker includes.

    Args:
        prefix: prefix of all topics.
        handlers: the first routes.
        dependencies: dependencies of all handlers.
        middlewares: middlewares of all handlers and publishers.
        routers: further routers to include.
        parser: see `MinimqBroker`.
        decoder: see `MinimqBroker`.
        include_in_schema: include its channels in the AsyncAPI document.
        ack_policy: the default policy of subscribers.
        underlying_driver_annotations: see `MinimqBroker`.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[MinimqRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[MinimqRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
        underlying_driver_annotations: UnderlyingDriverAnnotations | None = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=MinimqBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            routers=routers,
        )
