"""The order of a FIFO topic: the oldest messages of a lane are with one consumer at a time; other lanes continue.

A lane is the hash of a message group's name, which is all that a broker knows of it. Message groups with the same hash
share a lane and wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from minimq_broker.features.work_queues.pop_runs import Run, RunState, Stretch, add_run

FREE, OUT = RunState.FREE, RunState.OUT


def leading(due: Iterable[Run], least: int, most: int, losses: Callable[[Run], int]) -> Iterator[Run]:
    """Yield runs without losses and with `least` to `most` deliveries, of each lane only those before any other run."""
    shut = set[int]()
    for run in due:
        if run.lane in shut:
            continue
        if least <= run.delivery_count <= most and not losses(run):
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
    ahead: Iterable[Stretch], is_busy: Callable[[int], bool], first: int, end: int, most: int, out: Run
) -> list[Run]:
    """Return the runs of a first delivery. Messages of busy lanes are skipped: they become free runs that wait."""
    found: list[Run] = []
    for stretch in ahead:
        if stretch.end <= first:
            continue
        if stretch.first > first or first >= end or most <= 0:
            break
        behind = min(stretch.end, end)
        if is_busy(stretch.lane):
            run = Run(first, behind, FREE, lane=stretch.lane)
        else:
            behind = min(behind, first + most)
            most -= behind - first
            run = Run(first, behind, OUT, out.delivery_count, out.until_ms, out.epoch, out.client, stretch.lane)
        add_run(found, run)
        first = behind
    return found


def voided(delivered: Iterable[Run], ends: Mapping[int, int], losses: Callable[[Run], int]) -> list[Run]:
    """Return the other messages of the lanes that are delivered now, released from consumers, with their losses.

    `delivered` are the messages of these lanes that were delivered before, and `ends` where those of now end.
    """
    return [
        Run(
            max(run.first, ends[run.lane]),
            run.end,
            FREE,
            run.delivery_count,
            run.until_ms,
            lane=run.lane,
            lost=losses(run),
        )
        for run in delivered
        if run.end > ends[run.lane]
    ]


def following(delivered: Iterable[Run], settled: Sequence[Run], epoch: int) -> list[Run]:
    """Return the messages that follow in the lanes of those that a consumer gives up: they are released too."""
    since: dict[int, int] = {}
    for run in settled:
        if run.lane:
            since.setdefault(run.lane, run.first)
    found: list[Run] = []
    for run in delivered:
        if run.state is OUT and run.epoch == epoch and run.end > since[run.lane]:
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
    return Run(first, end, FREE, run.delivery_count - 1, lane=run.lane, lost=run.lost)
