"""The messages that a consumer of a work queue has in flight: a suspect is with nothing else."""

from __future__ import annotations

import asyncio

from minimq.features.work_queues.settler import InFlightMessages
from minimq_common.model import MessageQueue

A, B = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
LONG_S = 3600.0


def test_a_suspect_waits_for_what_is_in_flight_and_others_wait_for_it() -> None:
    async def run() -> None:
        hand = InFlightMessages()
        assert hand.add(A, 1, 2, LONG_S, suspect=False)
        assert hand.add(B, 2, 1, LONG_S, suspect=False)
        assert not hand.add(A, 3, 1, LONG_S, suspect=True)
        assert not hand.add(A, 4, 1, LONG_S, suspect=False), "it makes room"
        turn = asyncio.create_task(hand.turn(LONG_S + asyncio.get_running_loop().time()))
        hand.settled({(A, 1): [(0, 2)]})
        await asyncio.sleep(0)
        assert not turn.done()
        hand.settled({(B, 2): [(5, 6)]})
        await turn
        assert hand.add(A, 5, 1, LONG_S, suspect=True)
        assert not hand.add(A, 6, 1, LONG_S, suspect=False)
        assert not hand.add(A, 7, 1, LONG_S, suspect=True)
        hand.settled({(A, 5): [(0, 1)]})
        assert hand.add(A, 8, 1, LONG_S, suspect=False)

    asyncio.run(run())


def test_what_was_forgotten_is_in_flight_no_more() -> None:
    async def run() -> None:
        hand = InFlightMessages()
        assert hand.add(A, 1, 2, 0.0, suspect=True)
        await hand.turn(LONG_S + asyncio.get_running_loop().time())
        assert hand.add(A, 2, 2, LONG_S, suspect=True)
        hand.extended(A, 2, 2 * LONG_S)
        await hand.turn(asyncio.get_running_loop().time())

    asyncio.run(run())
