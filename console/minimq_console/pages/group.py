"""One consumer group: its members, who reads which queue, and the lag by queue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from minimq.administration.group_descriptions import GroupDescription, GroupQueueDescription
from minimq_console.chart import Chart
from minimq_console.operation_actions import FORMS
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of


class MemberRow(msgspec.Struct, frozen=True):
    """One member of a group."""

    client_id: str
    topics: tuple[str, ...]
    queues: int
    in_flight: int
    #: Number of messages in its queues that are not committed.
    lag: int
    #: Seconds since the oldest of them was stored.
    lag_s: float
    seen_by: tuple[str, ...]


class GroupQueueRow(msgspec.Struct, frozen=True):
    """One queue of a group."""

    topic: str
    broker: str
    queue_id: int
    #: Client id of the member that reads it; None when nobody does.
    owner: str | None
    epoch: int
    #: When this console saw the lease first; None without an owner.
    held_since: datetime | None
    #: Client id of the former owner for which it is kept; None for others.
    held_for: str | None
    waiting: tuple[str, ...]
    #: From which the group continues; None if it has not begun here.
    committed_offset: int | None
    max_offset: int
    #: Number of messages that are not committed.
    lag: int
    #: Seconds since the oldest of them was stored.
    lag_s: float
    #: Number of messages that consumers have; None if the group divides queues, as the following two.
    in_flight: int | None
    #: Number of messages that were released, or not acknowledged in time.
    returned: int | None
    holders: Mapping[str, int]


class GroupPage(PageData, frozen=True, kw_only=True):
    """One group."""

    group: str
    #: The allocation strategy; None without members, or if they receive messages one by one.
    strategy: str | None
    #: "client" or "server", whichever computes the shares; None likewise.
    #: Number of messages that it has not committed.
    lag: int
    #: Seconds since the oldest of them was stored.
    lag_s: float
    retrying: int
    dead_letters: int
    #: When it will be deleted unless it is used; None if it is in use.
    expires_at: datetime | None
    is_agreed: bool
    topics_differ: bool
    away: tuple[str, ...]
    members: tuple[MemberRow, ...]
    part: TablePart
    queues: tuple[GroupQueueRow, ...]
    charts: tuple[Chart, ...]


def gather(visit: Visit) -> GroupPage:
    """Return what the brokers say of the group now."""
    name = visit.parameters.name("group")
    bounds = visit.parameters.rows()
    sampler = visit.observer.sampler
    group = visit.ask("the group", lambda: visit.observer.admin.describe_group(name)).required()
    queues = sorted(group.queues, key=lambda queue: (-queue.lag, queue.queue))
    shown, part = part_of(queues, bounds)
    return GroupPage(
        group=name,
        strategy=group.strategy,
        lag=group.lag,
        lag_s=group.lag_s,
        retrying=group.retrying,
        dead_letters=group.dead_letters,
        expires_at=group.expires_at,
        is_agreed=group.is_agreed,
        topics_differ=group.topics_differ,
        away=tuple(each.broker_name for each in group.away),
        members=_members(group),
        part=part,
        queues=tuple(_queue(queue, sampler.held_since(name, queue)) for queue in shown),
        charts=(
            sampler.chart(("group", name, "lag"), "Lag", "messages"),
            sampler.chart(("group", name, "out"), "Committed", "messages/s"),
        ),
        actions=visit.offers(FORMS["reset-offsets"].on(group=name), FORMS["delete-group"].on(group=name)),
        missing=(*visit.missing, *(f"broker {broker}: {why}" for broker, why in group.unanswered.items())),
    )


def _members(group: GroupDescription) -> tuple[MemberRow, ...]:
    in_flight: dict[str, int] = {}
    for queue in group.queues:
        for client_id, count in (queue.popped.holders if queue.popped is not None else {}).items():
            in_flight[client_id] = in_flight.get(client_id, 0) + count
    return tuple(
        MemberRow(
            client_id=each.client_id,
            topics=each.topics,
            queues=len(each.queues),
            in_flight=in_flight.get(each.client_id, 0),
            lag=each.lag,
            lag_s=each.lag_s,
            seen_by=each.seen_by,
        )
        for each in group.members
    )


def _queue(queue: GroupQueueDescription, held_since: datetime | None) -> GroupQueueRow:
    return GroupQueueRow(
        topic=queue.queue.topic,
        broker=queue.queue.broker_name,
        queue_id=queue.queue.queue_id,
        owner=queue.owner,
        epoch=queue.epoch,
        held_since=held_since,
        held_for=queue.holder,
        waiting=queue.waiting,
        committed_offset=queue.committed_offset,
        max_offset=queue.max_offset,
        lag=queue.lag,
        lag_s=queue.lag_s,
        in_flight=None if queue.popped is None else queue.popped.in_flight,
        returned=None if queue.popped is None else queue.popped.returned,
        holders={} if queue.popped is None else queue.popped.holders,
    )


PAGE = Page(path="/groups/{group}", template="group.html", gather=gather, title="Group")
