"""The common tests of FastStream's brokers, of a checkout of FastStream, as tests of this broker.

All base classes take part: `NOT_RUN` lists the others, and `NOT_PASSED` single tests, each with the reason.
"""

from __future__ import annotations

import importlib
import itertools
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faststream import BaseMiddleware
from tests.asgi.testcase import AsgiTestcase
from tests.asyncapi.base.v2_6_0 import arguments as arguments_2
from tests.asyncapi.base.v2_6_0 import fastapi as fastapi_2
from tests.asyncapi.base.v2_6_0 import naming as naming_2
from tests.asyncapi.base.v2_6_0 import publisher as publisher_2
from tests.asyncapi.base.v2_6_0 import router as router_2
from tests.asyncapi.base.v3_0_0 import arguments as arguments_3
from tests.asyncapi.base.v3_0_0 import fastapi as fastapi_3
from tests.asyncapi.base.v3_0_0 import naming as naming_3
from tests.asyncapi.base.v3_0_0 import publisher as publisher_3
from tests.asyncapi.base.v3_0_0 import router as router_3
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
from tests.brokers.base.future import fastapi as future_fastapi
from tests.opentelemetry import basic as telemetry

from faststream_minimq import MinimqBroker, MinimqPublisher, MinimqRoute, MinimqRouter, TestMinimqBroker
from faststream_minimq.fastapi import MinimqRouter as StreamRouter
from faststream_minimq.opentelemetry import MinimqTelemetryMiddleware
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


class TestBatchCodec(MemoryConfig, codec.BatchCodecTestcase):
    pass


class TestParserInMemory(MemoryConfig, parser.CustomParserTestcase):
    pass


class TestMiddlewaresInMemory(MemoryConfig, middlewares.MiddlewareTestcase):
    pass


class TestErrorMiddlewaresInMemory(MemoryConfig, middlewares.ExceptionMiddlewareTestcase):
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


class TestFutureFastApi(RealConfig, future_fastapi.FastapiTestCase):
    router_class = staticmethod(partial(real_broker, StreamRouter))
    broker_router_class = MinimqRouter


class TestTelemetry(RealConfig, telemetry.LocalTelemetryTestcase):
    messaging_system = "minimq"
    include_messages_counters = False
    telemetry_middleware_class = MinimqTelemetryMiddleware

    def patch_broker(self, broker: MinimqBroker, **_: Any) -> MinimqBroker:
        return broker


class TestAsgi(AsgiTestcase):
    def get_broker(self, **arguments: Any) -> MinimqBroker:
        return MinimqBroker(group="asgi", **arguments)

    def get_test_broker(self, broker: MinimqBroker) -> TestMinimqBroker:
        return TestMinimqBroker(broker)


# ---- AsyncAPI documents, of both versions ----------------------------------------------------------


class OfBroker:
    broker_class = broker_factory = staticmethod(partial(MinimqBroker, group="documents"))


class OfRouter:
    broker_class = router_class = staticmethod(partial(StreamRouter, group="documents"))
    broker_wrapper = staticmethod(TestMinimqBroker)

    def get_spec(self, router: Any) -> Any:
        return super().get_spec(router.broker)  # type: ignore[misc] # of the other base class


class OfRouters(OfBroker):
    router_class, route_class, publisher_class = MinimqRouter, MinimqRoute, MinimqPublisher


class TestArguments2(OfBroker, arguments_2.ArgumentsTestcase):
    pass


class TestArguments3(OfBroker, arguments_3.ArgumentsTestcase):
    pass


class TestNaming2(OfBroker, naming_2.NamingTestCase):
    pass


class TestNaming3(OfBroker, naming_3.NamingTestCase):
    pass


class TestPublishers2(OfBroker, publisher_2.PublisherTestcase):
    pass


class TestPublishers3(OfBroker, publisher_3.PublisherTestcase):
    pass


class TestRouters2(OfRouters, router_2.RouterTestcase):
    pass


class TestRouters3(OfRouters, router_3.RouterTestcase):
    pass


class TestFastApiArguments2(OfRouter, fastapi_2.FastAPITestCase, arguments_2.FastAPICompatible):
    pass


class TestFastApiArguments3(OfRouter, fastapi_3.FastAPITestCase, arguments_3.FastAPICompatible):
    pass


class TestFastApiPublishers2(OfRouter, publisher_2.PublisherTestcase):
    pass


class TestFastApiPublishers3(OfRouter, publisher_3.PublisherTestcase):
    pass


# ---- What cannot apply -----------------------------------------------------------------------------

_NO_TEMPLATES = "a topic has no template addresses such as logs.{level}: subscribers filter by tag or property"
_NO_PROMETHEUS = "there is no middleware for Prometheus: the servers export metrics, and clients those of OpenTelemetry"
#: Base classes that cannot apply.
NOT_RUN = {
    "tests.brokers.base.address.AddressTemplateTestcase": _NO_TEMPLATES,
    "tests.asyncapi.base.address_template.AddressTemplateTestcase": _NO_TEMPLATES,
    "tests.asyncapi.base.v2_6_0.address_template.AddressTemplateTestcase": _NO_TEMPLATES,
    "tests.asyncapi.base.v3_0_0.address_template.AddressTemplateTestcase": _NO_TEMPLATES,
    "tests.brokers.base.publish_command.BatchKeysTestcase": "all messages of publish_batch have the same keys",
    "tests.prometheus.basic.LocalPrometheusTestcase": _NO_PROMETHEUS,
    "tests.prometheus.basic.LocalRPCPrometheusTestcase": _NO_PROMETHEUS,
    "tests.prometheus.basic.LocalMetricsSettingsProviderTestcase": _NO_PROMETHEUS,
}
_OTHER_SPANS = (
    "spans and metrics have the names of OpenTelemetry's current conventions, FastStream's those of earlier ones"
)
#: Single tests that cannot pass.
NOT_PASSED = {
    **dict.fromkeys(
        (
            "TestTelemetry::test_subscriber_create_publish_process_span",
            "TestTelemetry::test_chain_subscriber_publisher",
            "TestTelemetry::test_no_trace_context_create_process_span",
            "TestTelemetry::test_metrics",
            "TestTelemetry::test_error_metrics",
        ),
        _OTHER_SPANS,
    ),
    **dict.fromkeys(
        ("TestArguments3::test_slash_in_title", "TestFastApiArguments3::test_slash_in_title"),
        "the address of a channel is its topic, whatever its title is",
    ),
}
_CHECKOUT = Path(os.environ["FASTSTREAM_TESTS"])
#: Where the base classes are.
_BASES = ("asgi/testcase.py", "asyncapi/base", "brokers/base", "opentelemetry/basic.py", "prometheus/basic.py")


def _bases() -> set[type]:
    found = set[type]()
    for path in _BASES:
        whole = _CHECKOUT / "tests" / path
        for file in [whole] if whole.is_file() else whole.rglob("*.py"):
            name = ".".join(file.relative_to(_CHECKOUT).with_suffix("").parts)
            module = importlib.import_module(name)
            found |= {
                each
                for each in vars(module).values()
                if isinstance(each, type) and each.__module__ == name and any(n.startswith("test_") for n in dir(each))
            }
    return found


def test_every_base_class_takes_part_or_is_listed_with_a_reason() -> None:
    run = {base for each in globals().values() if isinstance(each, type) for base in each.__mro__}
    missing = {f"{each.__module__}.{each.__qualname__}" for each in _bases() - run}
    assert missing - NOT_RUN.keys() == set()
