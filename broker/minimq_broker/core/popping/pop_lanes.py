"""The order of a FIFO topic: the oldest messages of a lane are with one consumer at a time; other lanes continue.

A lane is the hash of a message group's name, which is all that a broker knows of it. Message groups with the same hash
share a lane and wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from minimq_broker.core.popping.pop_runs import NEVER, Run, RunState, Stretch, merged_runs

FREE, OUT, DONE = RunState.FREE, RunState.OUT, RunState.DONE


def earliest_ms(runs: Iterable[Run]) -> int:
    """Return when the first lane is due, in ms: no consumer has messages of it, and its oldest message is due."""
    free_ms: dict[int, int] = {}
    for run in runs:
        if run.state is not DONE:
            lane = run.lane or -1 - run.first  # a lane of its own: messages without a lane wait only for their own time
            known = free_ms.get(lane)
            if known is None or (run.state is OUT and run.until_ms > known):
                free_ms[lane] = run.until_ms
    return min(free_ms.values(), default=NEVER)


def due_runs(runs: Sequence[Run], now_ms: int) -> list[Run]:
    """Return the runs that are due: of each lane that no consumer has, those before the first that has to wait."""
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


def leading(due: Iterable[Run], least: int, most: int, losses: Callable[[Run], int]) -> Iterator[Run]:
    """Yield runs without losses and with `least` to `most` tries, of each lane only those before any other run."""
    shut = set[int]()
    for run in due:
        if run.lane in shut:
            continue
        if least <= run.tries <= most and not losses(run):
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
    """Return the runs of a first delivery. Messages of busy lanes are skipped: they become free runs that wait."""
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
    """Return the lanes of unsettled messages, ignoring whole runs in `found`, which are delivered now."""
    ends = {run.first: run.end for run in found}
    return {run.lane for run in runs if run.state is not DONE and run.lane and ends.get(run.first) != run.end}


def voided(runs: Iterable[Run], found: Sequence[Run], losses: Callable[[Run], int]) -> list[Run]:
    """Return the other messages of the lanes that are delivered now, released from consumers, with their losses."""
    lanes = {run.lane for run in found if run.state is OUT and run.lane}
    taken = {run.first: run.end for run in found}
    return [
        Run(first, run.end, FREE, run.tries, run.until_ms, lane=run.lane, lost=losses(run))
        for run in runs
        if run.lane in lanes and run.epoch and (first := taken.get(run.first, run.first)) < run.end
    ]


def following(runs: Iterable[Run], settled: Sequence[Run], epoch: int) -> list[Run]:
    """Return the messages that follow in the lanes of those that a consumer gives up: they are released too."""
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
    return Run(first, end, FREE, run.tries - 1, lane=run.lane, lost=run.lost)
