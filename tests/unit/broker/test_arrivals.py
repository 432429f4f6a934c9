"""Long polls: who waits for a queue is woken by an arrival in it, or when all look again."""

from __future__ import annotations

import asyncio

from minimq_broker.core.state import QueueEnd, QueueKey
from minimq_broker.services.engine import Arrivals

PATIENCE_S = 40.0
RED, GREEN = QueueKey(1, 0), QueueKey(1, 1)


async def polls(arrivals: Arrivals, *queues: QueueKey) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(arrivals.wait(queue, 0, PATIENCE_S * 10)) for queue in queues]
    await asyncio.sleep(0)
    return tasks


def test_an_arrival_wakes_the_waiters_of_its_queue_alone() -> None:
    async def run() -> None:
        arrivals = Arrivals(lambda _: QueueEnd())
        heard: list[QueueKey | None] = []
        arrivals.listeners.append(heard.append)
        first, second, other = await polls(arrivals, RED, RED, GREEN)
        arrivals.wake(QueueKey(9, 9))
        arrivals.wake(RED)
        await asyncio.wait_for(asyncio.gather(first, second), PATIENCE_S)
        assert (other.done(), len(arrivals), heard) == (False, 1, [QueueKey(9, 9), RED])
        other.cancel()
        await asyncio.wait((other,))
        assert len(arrivals) == 0

    asyncio.run(run())


def test_all_are_woken_at_once() -> None:
    async def run() -> None:
        arrivals = Arrivals(lambda _: QueueEnd())
        waiting = await polls(arrivals, RED, GREEN, QueueKey(2, 0))
        arrivals.wake_all()
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        assert len(arrivals) == 0

    asyncio.run(run())


def test_nobody_waits_for_what_has_come_already() -> None:
    async def run() -> None:
        arrivals = Arrivals(lambda _: QueueEnd(5))
        await asyncio.wait_for(arrivals.wait(RED, 4, PATIENCE_S * 10), PATIENCE_S)

    asyncio.run(run())
