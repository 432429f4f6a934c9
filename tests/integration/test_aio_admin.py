"""`minimq.aio.Admin`: the same operations, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from minimq import LocalCluster
from minimq.aio import Admin
from minimq_common.errors import TopicNotFound
from minimq_common.model import Permission

pytestmark = pytest.mark.system


def test_a_topic_from_its_creation_to_its_end(cluster: LocalCluster, new_name: Callable[[], str]) -> None:
    async def use() -> None:
        async with Admin(cluster.nameserver) as admin:
            first, second = new_name(), new_name()
            created: list[bool] = await asyncio.gather(
                *(admin.create_topic(name, queues=2) for name in (first, second))
            )
            assert created == [True, True]
            await admin.update_topic(first, queues=3, permission=Permission.READ)
            settings = (await admin.describe_topic(first)).settings
            assert {(each.read_queues, each.write_queues, each.permission) for each in settings} == {
                (3, 3, Permission.READ)
            }
            assert await admin.delayed_messages(first) == []
            await asyncio.gather(admin.delete_topic(first), admin.delete_topic(second))
            with pytest.raises(TopicNotFound):
                await admin.describe_topic(first)

    asyncio.run(use())
