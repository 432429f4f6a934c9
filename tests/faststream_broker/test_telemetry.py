"""Handlers of FastStream in traces of OpenTelemetry."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from faststream.exceptions import NackMessage
from opentelemetry.trace import StatusCode

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
