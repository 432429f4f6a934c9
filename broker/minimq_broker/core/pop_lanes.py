"""The order of a FIFO topic: of each lane one consumer at a time has messages, the oldest ones; other lanes go on.

A lane is what a broker knows of a message group: a hash of its name. Two groups with one hash share a lane, and so wait
for each other as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from minimq_broker.core.pop_runs import Run, RunState, merged_runs

FREE, OUT, DONE = RunState.FREE, RunState.OUT, RunState.DONE
#: A time that does not come, in ms.
NEVER = (1 << 63) - 1


class Stretch(NamedTuple):
    """Messages next to each other in a queue that are of one lane; 0: of none."""

    first: int
    end: int
    lane: int


def earliest_ms(runs: Iterable[Run]) -> int:
    """Return when a lane may be handed out: nobody has any of it then, and its oldest message has waited."""
    free_ms: dict[int, int] = {}
    for run in runs:
        if run.state is not DONE:
            known = free_ms.get(run.lane)
            if known is None or (run.state is OUT and run.until_ms > known):
                free_ms[run.lane] = run.until_ms
    return min(free_ms.values(), default=NEVER)


def due_runs(runs: Sequence[Run], now_ms: int) -> list[Run]:
    """Return the runs that may be handed out: those of a lane of which nobody has any, up to one that has to wait."""
    shut = {run.lane for run in runs if run.state is OUT and run.until_ms > now_ms and run.lane}
    found = []
    for run in runs:
        if run.state is DONE or run.lane in shut:
            continue
        if run.until_ms <= now_ms:
            found.append(run)
        elif run.lane:
            shut.add(run.lane)
    return found


def leading(due: Iterable[Run], least: int, most: int) -> Iterator[Run]:
    """Yield the runs that were handed out from `least` to `most` times, of each lane up to one that was not."""
    shut = set[int]()
    for run in due:
        if run.lane in shut:
            continue
        if least <= run.tries <= most:
            yield run
        elif run.lane:
            shut.add(run.lane)


def heads(due: Iterable[Run]) -> Iterator[Run]:
    """Yield the oldest run of each lane."""
    seen = set[int]()
    for run in due:
        if run.lane not in seen:
            yield run
            if run.lane:
                seen.add(run.lane)


def fresh_runs(
    ahead: Iterable[Stretch], busy: Collection[int], first: int, end: int, most: int, pieces: int, out: Run
) -> list[Run]:
    """Return what follows from messages that nobody had: those of lanes that wait are passed over, and wait as well.

    Args:
        ahead: lanes of messages from about `first` on, without a gap.
        busy: lanes with older messages that are not settled.
        first: offset of the first message.
        end: the one behind the last message.
        most: how many may be handed out.
        pieces: number of runs.
        out: who gets them, and until when.
    """
    found: list[Run] = []
    for stretch in ahead:
        if stretch.end <= first:
            continue
        if stretch.first > first or first >= end or most <= 0 or len(found) >= pieces:
            break
        behind = min(stretch.end, end)
        if stretch.lane in busy:
            run = Run(first, behind, FREE, lane=stretch.lane)
        else:
            behind = min(behind, first + most)
            most -= behind - first
            run = Run(first, behind, OUT, out.tries, out.until_ms, out.epoch, out.client, stretch.lane)
        found[-1:] = merged_runs([*found[-1:], run])
        first = behind
    return found


def busy_lanes(runs: Iterable[Run], found: Iterable[Run]) -> set[int]:
    """Return the lanes with messages that are not settled, and are not among those that are handed out now."""
    ends = {run.first: run.end for run in found}
    return {run.lane for run in runs if run.state is not DONE and run.lane and ends.get(run.first) != run.end}


def voided(runs: Iterable[Run], found: Sequence[Run]) -> list[Run]:
    """Return what becomes of the rest of the lanes that are handed out: whoever had some of it has it no more."""
    lanes = {run.lane for run in found if run.state is OUT and run.lane}
    taken = {run.first: run.end for run in found}
    return [
        Run(first, run.end, FREE, run.tries, run.until_ms, lane=run.lane)
        for run in runs
        if run.lane in lanes and run.epoch and (first := taken.get(run.first, run.first)) < run.end
    ]


def following(runs: Iterable[Run], settled: Sequence[Run], epoch: int) -> list[Run]:
    """Return what becomes of messages behind those that somebody gives up: nobody looks at them before these.

    Args:
        runs: as they are before.
        settled: what becomes of the messages that are given up, ascending.
        epoch: of their handle, which is void for what follows: to consume it now would be out of order.
    """
    since: dict[int, int] = {}
    for run in settled:
        if run.lane:
            since.setdefault(run.lane, run.first)
    found: list[Run] = []
    for run in runs:
        if run.state is OUT and run.epoch == epoch and run.lane in since and run.end > since[run.lane]:
            first = max(run.first, since[run.lane])
            for part in settled:
                if first < part.first < run.end:
                    found.append(_returned(run, first, part.first))
                if part.first < run.end and part.end > first:
                    first = part.end
            if first < run.end:
                found.append(_returned(run, first, run.end))
    return found


def _returned(run: Run, first: int, end: int) -> Run:
    return Run(first, end, FREE, run.tries - 1, lane=run.lane)
