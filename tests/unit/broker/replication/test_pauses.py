"""The pauses of a slave between attempts of its master."""

from __future__ import annotations

import pytest

from minimq_broker.replication.pauses import Break, FollowBackoff
from support.cases import for_each


@for_each("cause", Break)
def test_pauses_grow_up_to_a_limit(cause: Break) -> None:
    pauses = FollowBackoff()
    waits = [pauses.after(cause, 0.0) for _ in range(20)]
    assert waits[:3] == [0.1, 0.2, 0.4]
    assert waits[-1] == cause.longest_s


def test_a_stream_that_broke_is_opened_again_at_once() -> None:
    pauses = FollowBackoff()
    for _ in range(5):
        pauses.after(Break.UNREACHED, 0.0)
    assert [pauses.after(Break.UNREACHED, 0.5) for _ in range(3)] == [0.05] * 3


@pytest.mark.parametrize("cause", [Break.REJECTED, Break.OWN])
def test_whatever_else_ended_it_comes_after_a_pause_that_grows(cause: Break) -> None:
    pauses = FollowBackoff()
    assert [pauses.after(cause, 0.5) for _ in range(3)] == [0.1, 0.2, 0.4]


def test_what_is_long_past_is_forgotten() -> None:
    pauses = FollowBackoff()
    for _ in range(9):
        pauses.after(Break.OWN, 0.5)
    assert pauses.after(Break.OWN, 3600.0) == 0.05
