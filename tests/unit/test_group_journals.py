"""The verdict of `bench/group_journals.py` when a member hangs: a late journal is no fault, an old lease is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from group_journals import JournalReader, Verdict

PLACE = ("broker-a", 0)
HUNG_AT = 2.0

#: What a member hands out: when, the first and the last offset, the epoch.
Polls = list[tuple[float, int, int, int]]


@pytest.fixture(scope="module")
def judged() -> Iterator[Callable[[Path, Polls, Polls], Verdict]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "bench")
        from group_journals import JournalReader, deliveries, judge  # a script, not a package
        from group_process import Journal, Polled

        def journal_of(path: Path, polls: Polls) -> JournalReader:
            journal, reader = Journal(path), JournalReader(path.name, path)
            for at, first, last, epoch in polls:
                journal.add(Polled(at, PLACE, first, last, last - first + 1, epoch, 0.0))
            reader.read()
            reader.close()
            return reader

        def judge_two(folder: Path, hung: Polls, other: Polls) -> Verdict:
            journals = [journal_of(folder / "hung", hung), journal_of(folder / "other", other)]
            journals[0].broken_at.append(HUNG_AT)
            return judge(deliveries(journals), {PLACE: max(last for _, _, last, _ in hung + other) + 1})

        yield judge_two


def test_what_was_in_hand_and_is_written_down_later_is_no_fault(
    judged: Callable[[Path, Polls, Polls], Verdict], tmp_path: Path
) -> None:
    """The lease was checked just before the member hung; the line came after the other had read the same."""
    verdict = judged(tmp_path, [(1.0, 0, 9, 1), (1.9, 10, 19, 1)], [(6.0, 10, 29, 2)])

    assert (verdict.twice, verdict.unexplained, verdict.stale, verdict.lost) == (10, 0, 0, 0)


def test_what_is_handed_out_under_an_old_lease_is_a_fault(
    judged: Callable[[Path, Polls, Polls], Verdict], tmp_path: Path
) -> None:
    """A poll may have begun before the member hung: what it hands out afterwards needs a lease that holds then."""
    verdict = judged(tmp_path, [(1.0, 0, 9, 1), (7.0, 10, 19, 1)], [(6.0, 10, 29, 2)])

    assert (verdict.twice, verdict.unexplained, verdict.stale) == (10, 10, 1)
