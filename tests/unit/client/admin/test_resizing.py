"""The steps of a resize, as decisions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minimq.admin.resizing import Counts, next_counts, say_step, say_undo

counts = st.integers(1, 40)


@given(counts, counts, counts)
def test_every_start_leads_there_and_what_is_sent_is_read_on_the_way(read: int, write: int, queues: int) -> None:
    now = Counts(max(read, write), write)
    steps = []
    while (step := next_counts(now, queues)) is not None:
        steps.append(step)
        assert step != now
        assert step.read >= step.write  # at each moment
        # Name servers may show either step for a while: nobody may send where others do not read.
        assert step.write <= now.write or step.write <= now.read
        assert step.read >= now.read or step.read >= now.write
        assert len(steps) <= 3
        now = step
    assert now == Counts(queues, queues)


def test_growing_shows_queues_to_consumers_first() -> None:
    assert next_counts(Counts(4, 4), 8) == Counts(8, 4)
    assert next_counts(Counts(8, 4), 8) == Counts(8, 8)
    assert next_counts(Counts(8, 8), 8) is None


def test_shrinking_takes_queues_from_producers_first() -> None:
    assert next_counts(Counts(8, 8), 4) == Counts(8, 4)
    assert next_counts(Counts(8, 4), 4) == Counts(4, 4)


def test_counts_that_were_forced_are_put_right() -> None:
    assert next_counts(Counts(2, 4), 3) == Counts(3, 3)
    assert next_counts(Counts(2, 4), 4) == Counts(4, 4)
    assert next_counts(Counts(2, 4), 1) == Counts(2, 1)


def test_what_is_done_is_said_by_what_it_is() -> None:
    now = {"a": Counts(4, 4), "b": Counts(4, 4), "c": Counts(9, 9)}
    steps = {"a": Counts(8, 4), "b": Counts(8, 4), "c": Counts(9, 8)}
    assert say_step(steps, now) == "showing 8 queues to consumers on a, b; letting producers use 8 queues on c"
    hiding = say_step({"c": Counts(7, 7)}, {"c": Counts(9, 7)})
    assert hiding == "hiding queues 7 to 8 on c from consumers, once every group has read them"
    hiding = say_step({"c": Counts(2, 2)}, {"c": Counts(3, 2)})
    assert hiding == "hiding queue 2 on c from consumers, once every group has read it"


def test_the_way_back_gives_each_broker_its_own_count() -> None:
    assert say_undo("t", {"a": Counts(8, 4), "b": Counts(8, 8)}) == "`minimq topic update t --queues 8`"
    assert say_undo("t", {"a": Counts(8, 4), "b": Counts(3, 3)}) == (
        "`minimq topic update t --queues 8 --broker a` and `minimq topic update t --queues 3 --broker b`"
    )
