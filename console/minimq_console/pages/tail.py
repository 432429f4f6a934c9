"""The messages of a topic as they are stored. Nothing is committed, and no group is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from minimq.administration.descriptions import QueueDescription
from minimq.aio import PullConsumer
from minimq_console.message_row import MessageRow, row_of
from minimq_console.page import Page, PageData, Visit
from minimq_console.pages.topic import chosen_queues, describe

#: Seconds for which messages are gathered before they are shown, and how many are shown of them.
_GATHER_S, _MOST = 0.5, 50
#: Bytes that are fetched ahead for one viewer.
_PREFETCH_BYTES = 1 << 20


class TailPage(PageData, frozen=True, kw_only=True):
    """The choice of the messages to watch."""

    topic: str
    #: "BROKER:ID" of the only queue to watch; empty for all.
    queue: str
    #: Of the messages to watch; empty for all.
    tag: str


class NewMessages(PageData, frozen=True, kw_only=True):
    """Messages that were stored lately."""

    messages: tuple[MessageRow, ...]
    #: Number of messages that were stored before these and are not shown, since they were too many.
    skipped: int


def gather(visit: Visit) -> TailPage:
    """Return the choice, if there is such a topic and queue."""
    page = _choice(visit)
    chosen_queues(describe(visit, page.topic), page.queue)
    return page


async def follow(visit: Visit) -> AsyncIterator[NewMessages]:
    """Yield new messages, every second something, as long as somebody asks."""
    page = _choice(visit)
    queues = await asyncio.to_thread(_described, visit, page)
    async with PullConsumer(visit.observer.cluster, prefetch_bytes=_PREFETCH_BYTES) as consumer:
        await consumer.assign(each.queue for each in queues)
        for each in queues:
            await consumer.seek(each.queue, each.max_offset)
        while True:
            rows, is_flooded = await _gathered(consumer, page.tag)
            skipped = 0
            if is_flooded:
                for each in await asyncio.to_thread(_described, visit, page):
                    skipped += max(each.max_offset - consumer.position(each.queue), 0)
                    await consumer.seek(each.queue, each.max_offset)
            yield NewMessages(messages=tuple(reversed(rows)), skipped=skipped)


async def _gathered(consumer: PullConsumer, tag: str) -> tuple[list[MessageRow], bool]:
    until = time.monotonic() + _GATHER_S
    rows: list[MessageRow] = []
    while (left_s := until - time.monotonic()) > 0:
        messages = await consumer.poll(left_s, _MOST)
        rows += [row_of(message) for message in messages if not tag or message.tag == tag]
        if len(rows) >= _MOST:
            return rows[:_MOST], True
    rows.sort(key=lambda row: row.stored_at)
    return rows, False


def _described(visit: Visit, page: TailPage) -> Sequence[QueueDescription]:
    described = visit.observer.admin.describe_topics([page.topic])
    return chosen_queues(described[0], page.queue) if described else describe(visit, page.topic).queues


def _choice(visit: Visit) -> TailPage:
    parameters = visit.parameters
    return TailPage(
        topic=parameters.name("topic"), queue=parameters.text("queue", most=300), tag=parameters.text("tag", most=255)
    )


PAGE = Page(
    path="/topics/{topic}/tail",
    template="tail.html",
    gather=gather,
    title="New messages",
    follow=follow,
    has_form=True,
    rows_template="tail_rows.html",
)
