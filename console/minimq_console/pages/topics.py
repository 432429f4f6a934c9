"""The topics: their rates, how much they hold, and where their queues are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from minimq.administration.descriptions import TopicDescription
from minimq_common.model import permission_name
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_console.action import Offer
from minimq_console.operation_actions import FORMS
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of

#: What rows may be sorted by. Only what was looked at last has rates and counts, so the others come after those.
_ORDERS = ("name", "rate", "messages")


class TopicOnBroker(msgspec.Struct, frozen=True):
    """A topic on one broker."""

    broker: str
    read_queues: int
    write_queues: int
    #: What clients may do with them.
    permission: str
    messages: int


class TopicRow(msgspec.Struct, frozen=True):
    """One topic."""

    topic: str
    #: Number of stored messages; None if no broker answered.
    messages: int | None
    #: Messages that are stored in a second; None until it was looked at twice.
    in_per_s: float | None
    #: When its newest message was stored; None if there has been none.
    last_stored_at: datetime | None
    brokers: tuple[TopicOnBroker, ...]
    #: "fifo", "compacted", or empty for others.
    kind: str
    away: tuple[str, ...]
    #: Names of brokers that did not answer.
    unanswered: tuple[str, ...]


class TopicsPage(PageData, frozen=True, kw_only=True):
    """A part of all topics."""

    search: str
    own: bool
    #: "name", "rate" or "messages".
    order: str
    part: TablePart
    topics: tuple[TopicRow, ...]


def gather(visit: Visit) -> TopicsPage:
    """Return the topics that are searched for, and describe those that are shown."""
    parameters, admin = visit.parameters, visit.observer.admin
    search, own, order = parameters.text("search"), parameters.flag("own"), parameters.choice("order", _ORDERS, "name")
    bounds = parameters.rows()
    sample = visit.sample()
    known = {each.topic: each for each in sample.activity.topics} if sample.activity is not None else {}
    names = [
        name
        for name in visit.ask("the topics", admin.list_topics).required()
        if search.lower() in name.lower() and (own or not name.startswith("%"))
    ]
    if order != "name":

        def figure(name: str) -> float:
            topic = known.get(name)
            found = None if topic is None else topic.in_per_s if order == "rate" else topic.messages
            return -1.0 if found is None else found

        names.sort(key=lambda name: (-figure(name), name))
    shown, part = part_of(names, bounds)
    described = visit.ask("the topics on this page", lambda: admin.describe_topics(shown)).or_else([])
    descriptions = {each.topic: each for each in described}
    rates = {name: topic.in_per_s for name, topic in known.items()}
    return TopicsPage(
        search=search,
        own=own,
        order=order,
        part=part,
        topics=tuple(row_of(name, descriptions.get(name), rates.get(name)) for name in shown),
        actions=_actions(visit, shown),
        missing=(*visit.missing, *_unanswered(described)),
    )


def _actions(visit: Visit, shown: Sequence[str]) -> tuple[Offer, ...]:
    needs = [Need(Verb.MANAGE, Resource.TOPIC, name) for name in (*shown, "new-topic")]
    return visit.offers(FORMS["create-topic"].on()) if visit.rights(needs) else ()


def row_of(name: str, described: TopicDescription | None, in_per_s: float | None) -> TopicRow:
    """Return the row of a topic, with its name alone if it could not be described."""
    if described is None:
        return TopicRow(name, None, in_per_s, None, (), "", (), ())
    stored: dict[str, int] = {}
    for queue in described.queues:
        stored[queue.queue.broker_name] = stored.get(queue.queue.broker_name, 0) + queue.messages
    settings = described.settings
    return TopicRow(
        topic=name,
        messages=described.messages if settings else None,
        in_per_s=in_per_s,
        last_stored_at=max((each.last_stored_at for each in described.queues if each.last_stored_at), default=None),
        brokers=tuple(
            TopicOnBroker(
                each.broker_name,
                each.read_queues,
                each.write_queues,
                permission_name(each.permission),
                stored.get(each.broker_name, 0),
            )
            for each in settings
        ),
        kind="fifo"
        if any(each.fifo for each in settings)
        else "compacted"
        if any(each.compaction is not None for each in settings)
        else "",
        away=tuple(each.broker_name for each in described.away),
        unanswered=tuple(described.unanswered),
    )


def _unanswered(described: Sequence[TopicDescription]) -> list[str]:
    reasons = {(broker, why): None for each in described for broker, why in each.unanswered.items()}
    return [f"broker {broker}: {why}" for broker, why in reasons]


PAGE = Page(path="/topics", template="topics.html", gather=gather, title="Topics", label="Topics", live_s=4.0)
