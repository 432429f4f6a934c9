"""Delayed messages: how many wait by topic, and when the next ones are due."""

from __future__ import annotations

from datetime import datetime
from itertools import islice

import msgspec

from minimq.operations.delayed import DelayedMessages
from minimq_console.action import Offer
from minimq_console.operation_actions import FORMS
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of

#: Batches that one may skip: they are listed anew each time.
_MOST_SKIPPED = 10_000


class DelayedTopicRow(msgspec.Struct, frozen=True):
    """The delayed messages of one topic."""

    topic: str
    #: Number of messages that wait; None if it is not known.
    messages: int | None
    #: Number of their batches; None likewise.
    batches: int | None
    #: When the first of them is due; None if none waits.
    next_due_at: datetime | None


class DelayedTopicsPage(PageData, frozen=True, kw_only=True):
    """The delayed messages of a part of all topics."""

    search: str
    part: TablePart
    topics: tuple[DelayedTopicRow, ...]


class WaitingRow(msgspec.Struct, frozen=True):
    """Messages that wait together."""

    broker: str
    queue_id: int
    due_at: datetime
    stored_at: datetime
    messages: int
    #: Bytes of their batch.
    size: int
    recallable: bool
    #: Those that the visitor may use on them.
    actions: tuple[Offer, ...] = ()


class WaitingPage(PageData, frozen=True, kw_only=True):
    """The delayed messages of one topic."""

    topic: str
    #: Number of batches before those that are shown.
    skipped: int
    #: How many are shown at most.
    rows: int
    has_more: bool
    #: Batches in the order in which they are due.
    waiting: tuple[WaitingRow, ...]


def gather_topics(visit: Visit) -> DelayedTopicsPage:
    """Return how much waits for each of the topics that are shown."""
    parameters, admin = visit.parameters, visit.observer.admin
    search, bounds = parameters.text("search"), parameters.rows()
    names = [
        name
        for name in visit.ask("the topics", admin.list_topics).required()
        if search.lower() in name.lower() and not name.startswith("%")
    ]
    shown, part = part_of(names, bounds)
    totals = visit.ask("the delayed messages", lambda: admin.delayed_totals(shown) if shown else []).or_else([])
    found = {each.topic: DelayedTopicRow(each.topic, each.messages, each.batches, each.next_due_at) for each in totals}
    return DelayedTopicsPage(
        search=search,
        part=part,
        topics=tuple(found.get(name) or DelayedTopicRow(name, None, None, None) for name in shown),
        missing=visit.missing,
    )


def gather_waiting(visit: Visit) -> WaitingPage:
    """Return what waits for one topic."""
    topic = visit.parameters.name("topic")
    skip, count = visit.parameters.rows(_MOST_SKIPPED)

    def read() -> list[DelayedMessages]:
        return list(islice(visit.observer.admin.delayed_messages(topic), skip, skip + count + 1))

    found = visit.ask("the delayed messages", read).required()
    may_recall = bool(visit.offers(FORMS["recall"].on(topic=topic)))
    return WaitingPage(
        topic=topic,
        skipped=skip,
        rows=count,
        has_more=len(found) > count,
        waiting=tuple(
            WaitingRow(
                each.queue.broker_name,
                each.queue.queue_id,
                each.due_at,
                each.stored_at,
                each.messages,
                each.bytes,
                each.recall_handle is not None,
                (FORMS["recall"].on({"handle": each.recall_handle}, topic=topic).offer,)
                if may_recall and each.recall_handle is not None
                else (),
            )
            for each in found[:count]
        ),
        missing=visit.missing,
    )


PAGE = Page(
    path="/delayed",
    template="delayed.html",
    gather=gather_topics,
    title="Delayed messages",
    label="Delayed",
    live_s=4.0,
)
TOPIC_PAGE = Page(path="/delayed/{topic}", template="waiting.html", gather=gather_waiting, title="Delayed messages")
