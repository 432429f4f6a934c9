"""The questions of a finder of queues: their number at once, and the error that is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from minimq.consuming.queue_finder import QueueFinder
from minimq_common.errors import Unavailable
from minimq_common.model import MessageQueue


def test_a_broker_is_asked_a_bounded_number_of_questions_at_once_and_others_do_not_wait_for_it() -> None:
    """Else one that hangs could take all streams of a connection, which others share."""
    queues = [MessageQueue("t", name, number) for name in ("hangs", "well") for number in range(300)]
    under_way, most, answered = Counter[str](), Counter[str](), asyncio.Event()

    async def ask(queue: MessageQueue, *_: Any) -> Any:
        name = queue.broker_name
        under_way[name] += 1
        most[name] = max(most[name], under_way[name])
        if name == "hangs":
            await answered.wait()  # until all questions to the other one are answered
        else:
            await asyncio.sleep(0)
        under_way[name] -= 1
        if queue == queues[-1]:
            answered.set()
        raise Unavailable(f"no answer about {queue.queue_id}")

    finder = QueueFinder("127.0.0.1:1")
    finder._places.ask = ask  # type: ignore[assignment, method-assign]
    with pytest.raises(Unavailable, match=r"no answer about 0$"):
        finder.offsets_at(queues, 0)
    finder.close()
    assert most == {"hangs": 32, "well": 32}
