"""The retry policy: which errors are tried again, where, and when it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from minimq.connection.master_calls import call_master
from minimq_common.errors import DeadlineExceeded, MinimqError, NotMaster, Unavailable


class Broker:
    """A broker that has another address for each try, and what its masters answer, one after the other."""

    def __init__(self, *answers: MinimqError | str | None) -> None:
        self.answers = [*answers]
        self.asked: list[str] = []
        self.failures: list[tuple[str, type[MinimqError]]] = []

    async def find(self, _: float) -> str:
        self.asked.append(f"host-{len(self.asked)}")
        return self.asked[-1]

    def failed(self, address: str, error: MinimqError) -> None:
        self.failures.append((address, type(error)))

    async def attempt(self, _: str, limit_s: float) -> str:
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.wait_for(asyncio.Event().wait(), limit_s)
        if isinstance(answer, MinimqError):
            raise answer
        assert answer is not None
        return answer

    def run(self, timeout_s: float = 5.0, **again: Callable[[str, MinimqError], bool]) -> str:
        return asyncio.run(call_master(self, self.attempt, timeout_s, **again))


def test_the_next_try_goes_to_whoever_is_the_master_by_then() -> None:
    broker = Broker(NotMaster("a slave"), Unavailable("gone"), "stored")
    assert broker.run() == "stored"
    assert broker.failures == [("host-0", NotMaster), ("host-1", Unavailable)]
    assert len(broker.asked) == 3


def test_a_master_that_hangs_has_only_a_share_of_the_time() -> None:
    broker = Broker(None, "stored")
    assert broker.run(12.0) == "stored"  # the first share is 2 s
    assert broker.failures == [("host-0", DeadlineExceeded)]


def test_what_finding_a_master_takes_is_taken_from_its_share() -> None:
    class Far(Broker):
        left_s = math.nan

        async def find(self, limit_s: float) -> str:
            await asyncio.sleep(limit_s / 2)
            return "host"

        async def attempt(self, _: str, limit_s: float) -> str:
            self.left_s = limit_s
            return "stored"

    broker = Far()
    broker.run(1.2)  # the first share is 0.2 s
    assert 0.0 <= broker.left_s < 0.15


def test_without_any_time_there_is_one_try() -> None:
    broker = Broker(NotMaster("a slave"), "stored")
    with pytest.raises(NotMaster):
        broker.run(0.0)
    assert Broker("stored").run(0.0) == "stored"
