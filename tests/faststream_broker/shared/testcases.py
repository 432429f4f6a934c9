"""The common tests of FastStream's brokers, of a checkout of FastStream, as tests of this broker."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import Any

import pytest
from faststream import BaseMiddleware
from tests.brokers.base import (
    basic,
    codec,
    connection,
    consume,
    fastapi,
    include_router,
    middlewares,
    parser,
    publish,
    publish_command,
    requests,
    router,
    testclient,
)

from faststream_minimq import MinimqBroker, MinimqPublisher, MinimqRoute, MinimqRouter, TestMinimqBroker
from faststream_minimq.fastapi import MinimqRouter as StreamRouter
from faststream_minimq.response import MinimqPublishCommand
from faststream_minimq.testing import MemoryProducer

_groups = itertools.count(1)


def real_broker(made: Any = MinimqBroker, **arguments: Any) -> Any:
    # Tests that share the cluster must not share a group: two subscribers of one topic both expect its messages.
    return made(os.environ["TESTED_NAMESERVER"], group=f"shared-{next(_groups)}", create_queues=1, **arguments)


class RealConfig(basic.BaseTestcaseConfig):
    timeout = 10.0

    def get_broker(self, apply_types: bool = False, **kwargs: Any) -> MinimqBroker:
        broker: MinimqBroker = real_broker(apply_types=apply_types, **kwargs)
        return broker

    def get_router(self, **kwargs: Any) -> MinimqRouter:
        return MinimqRouter(**kwargs)


class MemoryConfig(RealConfig):
    def patch_broker(self, *brokers: MinimqBroker, **kwargs: Any) -> Any:
        return TestMinimqBroker(*brokers, **kwargs)


class TestConsume(RealConfig, consume.BrokerRealConsumeTestcase):
    pass


class TestPublish(RealConfig, publish.BrokerPublishTestcase):
    pass


class TestRoutes(RealConfig, router.RouterTestcase):
    route_class = MinimqRoute
    publisher_class = MinimqPublisher


class TestRoutesInMemory(MemoryConfig, router.RouterLocalTestcase):
    route_class = MinimqRoute
    publisher_class = MinimqPublisher


class TestParser(RealConfig, parser.CustomParserTestcase):
    pass


class TestCodec(MemoryConfig, codec.CodecTestcase):
    pass


class TestMiddlewares(RealConfig, middlewares.MiddlewareTestcase):
    pass


class TestErrorMiddlewares(RealConfig, middlewares.ExceptionMiddlewareTestcase):
    pass


class TestMiddlewareOrder(MemoryConfig, middlewares.MiddlewaresOrderTestcase):
    pass


class TestIncludedSubscribers(RealConfig, include_router.IncludeSubscriberTestcase):
    pass


class TestIncludedPublishers(RealConfig, include_router.IncludePublisherTestcase):
    pass


class TestPublishCommand(publish_command.BatchPublishCommandTestcase):
    publish_command_cls = MinimqPublishCommand


class TestConnection(connection.BrokerConnectionTestcase):
    broker = MinimqBroker

    @pytest.fixture
    def settings(self) -> str:
        return os.environ["TESTED_NAMESERVER"]

    def get_broker_args(self, settings: str) -> dict[str, Any]:
        return {"nameserver": settings}


class TestMemory(MemoryConfig, testclient.BrokerTestclientTestcase):
    def get_fake_producer_class(self) -> type:
        return MemoryProducer

    @pytest.fixture
    def fake_producer_cls(self) -> type:
        return MemoryProducer


class Doubled(BaseMiddleware):
    # Four times at once: others double a raw message, too, which cannot be changed here.
    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        msg.body *= 4
        return await call_next(msg)


class TestRequests(RealConfig, requests.RequestsTestcase):
    def get_middleware(self, **_: Any) -> type[BaseMiddleware]:
        return Doubled


class TestRequestsInMemory(MemoryConfig, requests.RequestsTestcase):
    def get_middleware(self, **_: Any) -> type[BaseMiddleware]:
        return Doubled


class TestFastApi(RealConfig, fastapi.FastAPITestcase):
    router_class = staticmethod(partial(real_broker, StreamRouter))
    broker_router_class = MinimqRouter


class TestFastApiInMemory(MemoryConfig, fastapi.FastAPILocalTestcase):
    router_class = staticmethod(partial(real_broker, StreamRouter))
    broker_router_class = MinimqRouter
