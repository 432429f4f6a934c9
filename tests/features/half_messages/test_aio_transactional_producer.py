"""The transactional producer for asyncio, at real brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, TransactionResolution
from minimq.aio import TransactionalProducer
from minimq.errors import Closed
from support.reading import read_all
from support.waiting import wait_until

TIMEOUT_S = 30.0


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    return sorted(message.body for message in read_all(cluster.nameserver, topic))


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_a_check_may_be_a_coroutine(tmp_path: Path, is_coroutine: bool) -> None:
    options = {"check_back_after_s": 0.1}
    asked: list[bytes] = []

    def check(message: Message) -> TransactionResolution:
        asked.append(message.body)
        if asked.count(message.body) == 1:
            raise OSError("the database is offline")
        return {b"yes": TransactionResolution.COMMIT, b"no": TransactionResolution.ROLLBACK}.get(
            message.body, TransactionResolution.UNKNOWN
        )

    async def check_later(message: Message) -> TransactionResolution:
        await asyncio.sleep(0)
        return check(message)

    async def run(cluster: LocalCluster) -> None:
        chosen = check_later if is_coroutine else check
        async with TransactionalProducer(cluster.nameserver, group="g", check=chosen) as producer:
            blocks = [producer.transaction() for _ in range(3)]
            for block, body in zip(blocks, (b"yes", b"no", b"maybe"), strict=True):
                await block.__aenter__()
                await block.send(Message("t", body))
        with pytest.raises(Closed):
            await blocks[0].send(Message("t", b"late"))
        async with TransactionalProducer(cluster.nameserver, group="g", check=chosen):
            await asyncio.to_thread(wait_until, lambda: set(asked) == {b"yes", b"no", b"maybe"}, TIMEOUT_S)
            await asyncio.to_thread(wait_until, lambda: open_count(cluster) == 1, TIMEOUT_S)

    def open_count(cluster: LocalCluster) -> int:
        with Admin(cluster.nameserver) as admin:
            return admin.list_transactions("g").count

    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        asyncio.run(run(cluster))
        assert stored(cluster, "t") == [b"yes"]
