"""One topic: its queues, and some of its messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

import msgspec

from minimq import MessageQueue
from minimq.administration.descriptions import QueueDescription, TopicDescription
from minimq_common.errors import InvalidArgument
from minimq_common.model import Permission
from minimq_common.moments import start_ms
from minimq_console.action import ActionTarget
from minimq_console.actions import produce
from minimq_console.chart import Chart
from minimq_console.message_row import MessageRow
from minimq_console.message_row import row_of as message_row_of
from minimq_console.message_search import MOST_QUEUES, MessageSearch
from minimq_console.operation_actions import FORMS, toggles
from minimq_console.page import Page, PageData, Visit
from minimq_console.pages.topics import TopicRow, row_of
from minimq_console.parameters import Parameters, WrongParameter

_MOST_OFFSET = (1 << 63) - 1
_MOST_QUEUE_ID = 100_000
#: How many messages a page shows, at most.
_MOST_MESSAGES = 100
#: Queues of which a page shows a row, at most.
_MOST_ROWS = 500
#: How far back a search by key goes, unless a time is given.
_SINCE = "-1h"


class QueueRow(msgspec.Struct, frozen=True):
    """One queue."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    #: When the newest message was stored; None if there has been none.
    last_stored_at: datetime | None


class MessageChoice(msgspec.Struct, frozen=True):
    """The messages that are looked for."""

    #: "BROKER:ID" of the only queue to look into; empty for all.
    queue: str
    offset: int | None
    #: The time from which on, as it was given; empty without.
    start: str
    #: One of their keys; empty without.
    key: str
    #: Their tag; empty without.
    tag: str
    most: int

    @property
    def is_newest(self) -> bool:
        """True if the newest messages are looked for."""
        return self.offset is None and not (self.start or self.key or self.tag)


class TopicPage(PageData, frozen=True, kw_only=True):
    """One topic."""

    topic: TopicRow
    queues: tuple[QueueRow, ...]
    queue_count: int
    wanted: MessageChoice
    #: Those that were found, the newest first unless there is a start.
    messages: tuple[MessageRow, ...]
    notes: tuple[str, ...]
    chart: Chart

    @property
    def stays(self) -> bool:
        """True if these messages were searched for, which is not repeated by itself."""
        return not self.wanted.is_newest


def gather(visit: Visit) -> TopicPage:
    """Return the topic as its brokers describe it now, and messages of it."""
    name, wanted = visit.parameters.name("topic"), wanted_of(visit.parameters)
    described = describe(visit, name)
    queues = chosen_queues(described, wanted.queue)
    notes: list[str] = []
    if wanted.key:
        messages = _by_key(visit, name, wanted, notes)
    elif wanted.is_newest:
        messages = [message_row_of(each) for each in MessageSearch(visit, wanted.most).newest(queues)]
        if sum(queue.messages > 0 for queue in queues) > MOST_QUEUES:
            notes.append(f"Of the {MOST_QUEUES} queues that were written last.")
    else:
        starts = _starts(visit, queues, wanted)
        tags = (wanted.tag,) if wanted.tag else ()
        messages = [message_row_of(each) for each in MessageSearch(visit, wanted.most).following(queues, starts, tags)]
    sampler = visit.observer.sampler
    activity = sampler.sample.activity
    rates = {each.topic: each.in_per_s for each in activity.topics} if activity is not None else {}
    return TopicPage(
        topic=row_of(name, described, rates.get(name)),
        queues=tuple(
            QueueRow(each.queue.broker_name, each.queue.queue_id, each.min_offset, each.max_offset, each.last_stored_at)
            for each in described.queues[:_MOST_ROWS]
        ),
        queue_count=len(described.queues),
        wanted=wanted,
        messages=tuple(messages),
        notes=tuple(notes),
        actions=visit.offers(*_targets(described)),
        chart=sampler.chart(("topic", name), "Messages stored", "messages/s"),
        missing=(*visit.missing, *(f"broker {broker}: {why}" for broker, why in described.unanswered.items())),
    )


def _targets(described: TopicDescription) -> list[ActionTarget]:
    name = described.topic
    if name.startswith("%"):
        return []
    permission = Permission.READ_WRITE
    for each in described.settings:
        permission &= each.permission
    return [
        produce.ACTION.on(topic=name),
        FORMS["resize-topic"].on(name=name),
        *toggles(FORMS["pause-topic"], permission, name=name),
        FORMS["change-topic"].on(name=name),
        FORMS["delete-topic"].on(name=name),
    ]


def describe(visit: Visit, name: str) -> TopicDescription:
    """Return the description of a topic by the brokers that answer. Raises `MiniMQError` if none does."""
    admin = visit.observer.admin
    found = visit.ask("the topic", lambda: admin.describe_topics([name])).required()
    return (
        found[0]
        if found and (found[0].settings or found[0].away)
        else visit.ask("the topic", lambda: admin.describe_topic(name)).required()
    )


def wanted_of(parameters: Parameters) -> MessageChoice:
    """Return the messages that an address asks for. Raises `InvalidArgument`."""
    wanted = MessageChoice(
        queue=parameters.text("queue", most=300),
        offset=parameters.optional_number("offset", 0, _MOST_OFFSET),
        start=parameters.text("from", most=60),
        key=parameters.text("key"),
        tag=parameters.text("tag", most=255),
        most=parameters.number("messages", 20, 1, _MOST_MESSAGES),
    )
    if wanted.start not in {"", "earliest"}:
        try:
            start_ms(wanted.start, time.time(), "the parameter from", "'earliest', ")
        except InvalidArgument as error:
            raise WrongParameter("from", error.message) from None
    if wanted.offset is not None and (not wanted.queue or wanted.start or wanted.key):
        text = "the parameter offset is about one queue: give queue as BROKER:ID, and no from and no key"
        raise WrongParameter("offset", text)
    return wanted


def chosen_queues(described: TopicDescription, queue: str) -> Sequence[QueueDescription]:
    """Return the queue that is named "BROKER:ID", or all for an empty name. Raises `WrongParameter`."""
    if not queue:
        return described.queues
    broker, _, number = queue.rpartition(":")
    for each in described.queues:
        if (each.queue.broker_name, str(each.queue.queue_id)) == (broker, number):
            return (each,)
    text = f"topic {described.topic} has no queue {queue}: its page lists the queues, as BROKER:ID"
    raise WrongParameter("queue", text)


def _starts(visit: Visit, queues: Sequence[QueueDescription], wanted: MessageChoice) -> dict[MessageQueue, int]:
    if wanted.offset is not None:
        return {each.queue: wanted.offset for each in queues}
    if not wanted.start or wanted.start == "earliest":
        return {each.queue: each.min_offset for each in queues}
    asked = visit.ask(
        "the offsets at that time",
        lambda: visit.observer.admin.offsets_at((each.queue for each in queues), wanted.start),
    )
    return asked.required()


def _by_key(visit: Visit, name: str, wanted: MessageChoice, notes: list[str]) -> list[MessageRow]:
    admin, start = visit.observer.admin, wanted.start or _SINCE
    asked = visit.ask(
        "the search",
        lambda: admin.find_messages(name, key=wanted.key, since=start, max_messages=wanted.most),
    )
    found = asked.or_else(None)
    if found is None:
        return []
    notes.append(f"Since {start}; {found.searched:,} offsets were looked at.")
    notes += [f"Queue {each.queue} was not read from offset {each.offset} on: {each.reason}" for each in found.unread]
    if found.is_cut:
        notes.append("There may be more.")
    return [
        message_row_of(each)
        for each in found.messages
        if (not wanted.tag or each.tag == wanted.tag)
        and (not wanted.queue or f"{each.queue.broker_name}:{each.queue.queue_id}" == wanted.queue)
    ]


PAGE = Page(path="/topics/{topic}", template="topic.html", gather=gather, title="Topic", live_s=3.0, has_form=True)
