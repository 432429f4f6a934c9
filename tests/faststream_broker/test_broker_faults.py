"""Nothing that was acknowledged to a publisher is lost while the server behind a FastStream broker is killed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from faststream_minimq import MinimqBroker, MinimqMessage
from minimq.admin.admin import Admin
from minimq.local.local_cluster import LocalCluster

COUNT = 400
WAIT_S = 90.0


@pytest.mark.fault
@pytest.mark.parametrize("orderly", [False, True])
def test_every_message_is_handled_although_the_server_is_killed(tmp_path: Path, orderly: bool) -> None:
    handled: dict[int, int] = {}
    half, everything = asyncio.Event(), asyncio.Event()
    log = logging.getLogger("tests.faststream")

    async def run(cluster: LocalCluster) -> None:
        broker = MinimqBroker(cluster.nameserver, group="billing", logger=log)

        @broker.subscriber(
            "orders", max_workers=4, orderly=orderly, invisible_s=5, orderly_retry_delay_s=0.1, retry_delays_s=(0.1,)
        )
        async def handle(number: int, message: MinimqMessage) -> None:
            handled[number] = handled.get(number, 0) + 1
            if len(handled) == COUNT // 2:
                half.set()
            if len(handled) == COUNT:
                everything.set()

        async with broker:
            await broker.start()
            publishing = asyncio.gather(*(broker.publish(number, "orders") for number in range(COUNT // 2)))
            await asyncio.wait_for(half.wait(), WAIT_S)
            await asyncio.to_thread(cluster.brokers[0].kill)
            rest = asyncio.gather(*(broker.publish(number, "orders") for number in range(COUNT // 2, COUNT)))
            await asyncio.to_thread(cluster.brokers[0].start)
            receipts = [*await publishing, *await rest]
            assert len({receipt.message_id for receipt in receipts}) == COUNT
            await asyncio.wait_for(everything.wait(), WAIT_S)
            assert await broker.ping(timeout=10)

    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("orders", queues=4)
        asyncio.run(run(cluster))

    assert sorted(handled) == list(range(COUNT))


def test_a_ping_tells_that_nobody_is_there() -> None:
    async def ping() -> list[bool]:
        broker = MinimqBroker("127.0.0.1:1")
        before = await broker.ping()
        async with broker:
            return [before, await broker.ping(timeout=0.5)]

    assert asyncio.run(ping()) == [False, False]
