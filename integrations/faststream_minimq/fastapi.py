"""A router for FastAPI: its lifespan starts and stops the broker, and handlers use FastAPI's dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from fastapi.datastructures import Default
from faststream._internal.context import ContextRepo
from faststream._internal.fastapi.context import Context, Logger
from faststream._internal.fastapi.router import StreamRouter

from faststream_minimq import broker as brokers
from faststream_minimq import message as messages
from faststream_minimq.publisher import TopicPublisher
from faststream_minimq.registrator import SubscriberArguments
from faststream_minimq.subscriber import MinimqSubscriber

if TYPE_CHECKING:
    from fastapi.types import IncEx


class ResponseFields(TypedDict, total=False):
    """The arguments of FastAPI's routes that control how an answer is encoded."""

    response_model: Any
    response_model_include: IncEx | None
    response_model_exclude: IncEx | None
    response_model_by_alias: bool
    response_model_exclude_unset: bool
    response_model_exclude_defaults: bool
    response_model_exclude_none: bool


class StreamArguments(SubscriberArguments, ResponseFields, total=False):
    """All arguments of a subscriber except its topic; `dependencies` are FastAPI's."""


#: Defaults: answers are encoded unchanged.
_PLAIN = ResponseFields(
    response_model=Default(None),
    response_model_include=None,
    response_model_exclude=None,
    response_model_by_alias=True,
    response_model_exclude_unset=False,
    response_model_exclude_defaults=False,
    response_model_exclude_none=False,
)


class MinimqStreamRouter(StreamRouter[Any]):
    """A FastAPI router with a broker.

        router = MinimqRouter("127.0.0.1:9876", group="orders-service")
        app = FastAPI()
        app.include_router(router)

    Args:
        nameserver: see `MinimqBroker`.
        context: see `MinimqBroker`.
        arguments: further arguments of `MinimqBroker`, such as `group`, and of `fastapi.APIRouter`; `dependencies` are
            FastAPI's.

    Attributes:
        broker: publishes messages.
    """

    broker_class = brokers.MinimqBroker
    broker: brokers.MinimqBroker

    def __init__(
        self, nameserver: str | Sequence[str] | None = None, *, context: ContextRepo | None = None, **arguments: Any
    ) -> None:
        super().__init__(nameserver, context=context, **arguments)

    def subscriber(  # type: ignore[override] # the topic has a name
        self, topic: str, **arguments: Unpack[StreamArguments]
    ) -> MinimqSubscriber:
        """Return a subscriber of a topic, a decorator for handlers; see `MinimqBroker.subscriber`."""
        fields: dict[str, Any] = {"dependencies": (), **_PLAIN, **arguments}
        return super().subscriber(topic, **fields)  # type: ignore[return-value] # what the broker made

    def publisher(self, topic: str, **arguments: Any) -> TopicPublisher:  # type: ignore[override]
        """Return a publisher to a topic; see `MinimqBroker.publisher`."""
        return self.broker.publisher(topic, **arguments)


MinimqRouter = MinimqStreamRouter
MinimqMessage = Annotated[messages.MinimqMessage, Context("message")]
MinimqBroker = Annotated[brokers.MinimqBroker, Context("broker")]

__all__ = ["Context", "ContextRepo", "Logger", "MinimqBroker", "MinimqMessage", "MinimqRouter"]
