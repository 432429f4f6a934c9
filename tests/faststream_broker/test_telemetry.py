"""Handlers of FastStream in traces of OpenTelemetry."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from faststream.exceptions import NackMessage
from faststream.opentelemetry import Baggage, CurrentBaggage, CurrentSpan
from opentelemetry.trace import StatusCode, get_current_span

from faststream_minimq import MinimqBroker, MinimqMessage, TestMinimqBroker
from faststream_minimq.opentelemetry import MinimqTelemetryMiddleware
from minimq.local.local_cluster import LocalCluster
from support.spans import Telemetry, attributes_of, parent_of, trace_of
from support.waiting import wait_until

WAIT_S = 60.0


@pytest.mark.parametrize("is_instrumented", [False, True])
def test_a_message_its_try_and_what_its_handler_sends_are_one_trace(
    cluster: LocalCluster, topic: str, group: str, is_instrumented: bool
) -> None:
    telemetry = Telemetry()
    middleware = MinimqTelemetryMiddleware(tracer_provider=telemetry.tracers, meter_provider=telemetry.meters)
    calls = list[int]()

    async def run() -> None:
        broker = MinimqBroker(cluster.nameserver, group=group, create_queues=1, logger=None, middlewares=[middleware])

        @broker.subscriber(topic)
        @broker.publisher(f"{topic}-bills")
        async def handle(number: int, message: MinimqMessage) -> int:
            calls.append(number)
            if len(calls) == 1:
                raise NackMessage(delay_s=0.05)
            return number + 1

        @broker.subscriber(f"{topic}-bills", batch=True)
        async def note(numbers: list[int]) -> None:
            calls.extend(numbers)

        async with broker:
            await broker.start()
            await broker.publish(1, topic)
            await asyncio.to_thread(wait_until, lambda: calls == [1, 1, 2], WAIT_S)

        async with TestMinimqBroker(broker) as memory:
            await memory.publish(1, topic)

    with telemetry.instrumented() if is_instrumented else nullcontext():
        asyncio.run(run())

    [sent], [bill] = telemetry.named(f"send {topic}"), telemetry.named(f"send {topic}-bills")
    failed, handled = telemetry.named(f"process {topic}")
    [noted] = telemetry.named(f"process {topic}-bills")
    assert sent.context is not None
    assert handled.context is not None
    assert bill.context is not None
    assert parent_of(failed) == parent_of(handled) == sent.context.span_id
    assert (failed.status.status_code, handled.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert parent_of(bill) == handled.context.span_id
    assert parent_of(noted) == bill.context.span_id  # a batch of one
    assert len({trace_of(span) for span in (sent, failed, handled, bill, noted)}) == 1
    assert attributes_of(handled)["messaging.consumer.group.name"] == group
    assert telemetry.points("messaging.process.duration")
    telemetry.close()


@pytest.mark.parametrize("is_real", [True, False])
def test_a_handler_takes_the_current_span_and_baggage_and_what_it_publishes_carries_them(
    cluster: LocalCluster, topic: str, group: str, is_real: bool
) -> None:
    telemetry = Telemetry()
    middleware = MinimqTelemetryMiddleware(tracer_provider=telemetry.tracers, meter_provider=telemetry.meters)
    seen: list[dict[str, Any]] = []

    async def run() -> None:
        broker = MinimqBroker(cluster.nameserver, group=group, create_queues=1, logger=None, middlewares=[middleware])

        @broker.subscriber(topic)
        @broker.publisher(f"{topic}-bills")
        async def handle(body: str, span: CurrentSpan, baggage: CurrentBaggage) -> str:
            assert span is get_current_span()
            assert span.get_span_context().is_valid is is_real
            seen.append(baggage.get_all())
            baggage.remove("trial")
            baggage.set("shop", "Bern")
            return body

        @broker.subscriber(f"{topic}-bills")
        async def note(body: str, baggage: CurrentBaggage) -> None:
            seen.append(baggage.get_all())

        async with broker if is_real else TestMinimqBroker(broker, connect_only=False):
            await broker.start()
            await broker.publish("hello", topic, headers=Baggage({"user": "7", "trial": "yes"}).to_headers())
            await asyncio.to_thread(wait_until, lambda: len(seen) == 2, WAIT_S)

    asyncio.run(run())
    telemetry.close()

    assert seen == [{"user": "7", "trial": "yes"}, {"user": "7", "shop": "Bern"}]
