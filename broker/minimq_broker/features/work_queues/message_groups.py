"""The order of a FIFO topic: the oldest messages of a message group are with one consumer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from minimq_broker.features.work_queues.pop_runs import GroupRange, Run, RunState, add_run

FREE, OUT = RunState.FREE, RunState.OUT


def leading(due: Iterable[Run], least: int, most: int, losses: Callable[[Run], int]) -> Iterator[Run]:
    """Yield runs without losses, with `least` to `most` deliveries: of each group those before any other run."""
    shut = set[int]()
    for run in due:
        if run.group_hash in shut:
            continue
        if least <= run.delivery_count <= most and not losses(run):
            yield run
        elif run.group_hash:
            shut.add(run.group_hash)


def heads(due: Iterable[Run]) -> Iterator[Run]:
    """Yield the oldest run of each message group."""
    seen = set[int]()
    for run in due:
        if run.group_hash not in seen:
            yield run
            if run.group_hash:
                seen.add(run.group_hash)


def fresh_runs(
    ahead: Iterable[GroupRange], is_busy: Callable[[int], bool], first: int, end: int, most: int, out: Run
) -> list[Run]:
    """Return the runs of a first delivery. Messages of busy groups become free runs that wait."""
    found: list[Run] = []
    for part in ahead:
        if part.end <= first:
            continue
        if part.first > first or first >= end or most <= 0:
            break
        behind = min(part.end, end)
        if is_busy(part.group_hash):
            run = Run(first, behind, FREE, group_hash=part.group_hash)
        else:
            behind = min(behind, first + most)
            most -= behind - first
            run = Run(first, behind, OUT, out.delivery_count, out.until_ms, out.epoch, out.client, part.group_hash)
        add_run(found, run)
        first = behind
    return found


def voided(delivered: Iterable[Run], ends: Mapping[int, int], losses: Callable[[Run], int]) -> list[Run]:
    """Return the other messages of the delivered groups, released from consumers, with their losses."""
    return [
        replace(run, first=max(run.first, ends[run.group_hash]), state=FREE, epoch=0, client="", lost=losses(run))
        for run in delivered
        if run.end > ends[run.group_hash]
    ]


def following(delivered: Iterable[Run], settled: Sequence[Run], epoch: int) -> list[Run]:
    """Return the messages that follow in their groups those that a consumer gives up: they are released too."""
    since: dict[int, int] = {}
    for run in settled:
        if run.group_hash:
            since.setdefault(run.group_hash, run.first)
    found: list[Run] = []
    for run in delivered:
        if run.state is OUT and run.epoch == epoch and run.end > since[run.group_hash]:
            first = max(run.first, since[run.group_hash])
            for part in settled:
                if first < part.first < run.end:
                    found.append(_returned(run, first, part.first))
                if part.first < run.end and part.end > first:
                    first = part.end
            if first < run.end:
                found.append(_returned(run, first, run.end))
    return found


def _returned(run: Run, first: int, end: int) -> Run:
    return Run(first, end, FREE, run.delivery_count - 1, group_hash=run.group_hash, lost=run.lost)
