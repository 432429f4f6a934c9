"""Pages about topics: all of them with rates and sizes, and one with its queues and some messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from minimq import MessageQueue, ReceivedMessage
from minimq.admin.descriptions import QueueDescription, TopicDescription
from minimq.admin.message_rows import store_order
from minimq.admin.views import row_of
from minimq.connection.offline_brokers import say_offline
from minimq.consuming.range_reader import RangeReader
from minimq_common.errors import CorruptBatch, InvalidArgument, OffsetOutOfRange
from minimq_common.model import Permission
from minimq_common.timestamps import start_ms
from minimq_console.actions import ACTIONS, toggles
from minimq_console.bodies import preview
from minimq_console.page import MAX_KEYS, ActionLink, Data, Page, PageContext
from minimq_console.parameters import Parameters, WrongParameter

#: The orders of rows. Only topics in the last sample have rates and counts; the others come last.
_ORDERS = ("name", "rate", "messages")
_MAX_OFFSET = (1 << 63) - 1
#: Maximum number of messages on a page.
_MAX_MESSAGES = 100
#: Default start of a search by key.
_SINCE = "-1h"

# ---- All topics -------------------------------------------------------------------------------------


def gather_topics(visit: PageContext) -> Data:
    """Return the topics that match the search, and descriptions of those on this page."""
    parameters, admin = visit.parameters, visit.admin
    search, own, order = parameters.text("search"), parameters.flag("own"), parameters.choice("order", _ORDERS, "name")
    known = {each.topic: each for each in visit.sample().activity.topics}
    names = [
        name
        for name in visit.ask("the topics", admin.list_topics).required()
        if search.lower() in name.lower() and (own or not name.startswith("%"))
    ]
    if order != "name":
        figures = {name: each.in_per_s if order == "rate" else each.messages for name, each in known.items()}
        names.sort(key=lambda name: (figures.get(name) is None, -(figures.get(name) or 0.0), name))
    shown, part = parameters.part_of(names)
    found = visit.ask("the topics on this page", lambda: admin.describe_topics(shown)).or_else([])
    described = {each.topic: each for each in found}
    visit.missing += {f"broker {broker}: {why}": None for each in found for broker, why in each.unanswered.items()}
    return {
        "search": search,
        "own": own,
        "order": order,
        "part": part,
        "topics": [_row(name, described.get(name), known[name].in_per_s if name in known else None) for name in shown],
        "actions": visit.offers(ACTIONS["create-topic"].on()),
    }


def _row(name: str, described: TopicDescription | None, in_per_s: float | None) -> Data:
    described = described or TopicDescription(name, (), ())
    settings, stored = described.settings, Counter[str]()
    for queue in described.queues:
        stored[queue.queue.broker_name] += queue.messages
    is_compacted = any(each.compaction is not None for each in settings)
    return {
        "topic": name,
        "messages": described.messages if settings else None,
        "in_per_s": in_per_s,
        "last_stored_at": max((each.last_stored_at for each in described.queues if each.last_stored_at), default=None),
        "brokers": [
            row_of(
                each,
                keep=("broker_name", "read_queues", "write_queues", "permission"),
                messages=stored[each.broker_name],
            )
            for each in settings
        ],
        "kind": "fifo" if any(each.fifo for each in settings) else "compacted" if is_compacted else "",
        "offline": [each.broker_name for each in described.offline],
        "unanswered": [*described.unanswered],
    }


# ---- One topic --------------------------------------------------------------------------------------


def gather_topic(visit: PageContext) -> Data:
    """Return the topic as its brokers describe it now, and messages of it."""
    name, wanted = visit.parameters.name("topic"), _wanted_of(visit.parameters)
    described = describe(visit, name)
    queues, notes = chosen_queues(described, wanted["queue"]), list[str]()
    find = _by_key if wanted["key"] else _newest if wanted["is_newest"] else _following
    messages = [message_row(each) for each in find(visit, queues, wanted, notes)]
    visit.missing += [f"broker {broker}: {why}" for broker, why in described.unanswered.items()]
    return {
        "topic": visit.shown("topic describe", described),
        "wanted": wanted,
        "messages": messages,
        "notes": notes,
        "chart": visit.observer.sampler.chart(("topic", name), "Messages stored", "messages/s"),
        "actions": visit.offers(*_actions(described)),
    }


def _actions(described: TopicDescription) -> list[ActionLink]:
    name = described.topic
    if name.startswith("%"):
        return []
    permission = Permission.READ_WRITE
    for each in described.settings:
        permission &= each.permission
    return [
        ACTIONS["produce"].on(topic=name),
        ACTIONS["resize-topic"].on(name=name),
        *toggles(ACTIONS["pause-topic"], permission, name=name),
        ACTIONS["change-topic"].on(name=name),
        ACTIONS["delete-topic"].on(name=name),
    ]


def describe(visit: PageContext, name: str) -> TopicDescription:
    """Return the description of a topic by the brokers that answer. Raises `MinimqError` if none does."""
    found = visit.ask("the topic", lambda: visit.admin.describe_topics([name])).required()
    if found and (found[0].settings or found[0].offline):
        return found[0]
    return visit.ask("the topic", lambda: visit.admin.describe_topic(name)).required()


def chosen_queues(described: TopicDescription, queue: str) -> Sequence[QueueDescription]:
    """Return the queue that is named "BROKER:ID", or all for an empty name. Raises `WrongParameter`."""
    if not queue:
        return described.queues
    broker, _, number = queue.rpartition(":")
    for each in described.queues:
        if (each.queue.broker_name, str(each.queue.queue_id)) == (broker, number):
            return (each,)
    offline = [say_offline([each]) for each in described.offline if each.broker_name == broker]
    why = [*offline, f"broker {broker}: {described.unanswered.get(broker, 'no such queue')}"][0]
    raise WrongParameter("queue", f"queue {queue} cannot be read: {why}")


def _wanted_of(parameters: Parameters) -> Data:
    wanted: Data = {
        "queue": parameters.text("queue", most=300),
        "offset": parameters.number("offset", None, 0, _MAX_OFFSET),
        "start": parameters.text("from", most=60),
        "key": parameters.text("key"),
        "tag": parameters.text("tag", most=255),
        "most": parameters.number("messages", 20, 1, _MAX_MESSAGES),
    }
    if wanted["start"] not in {"", "earliest"}:
        try:
            start_ms(wanted["start"], time.time(), "the parameter from", "'earliest', ")
        except InvalidArgument as error:
            raise WrongParameter("from", error.message) from None
    if wanted["offset"] is not None and (not wanted["queue"] or wanted["start"] or wanted["key"]):
        text = "the parameter offset is about one queue: give queue as BROKER:ID, and no from and no key"
        raise WrongParameter("offset", text)
    is_newest = wanted["offset"] is None and not (wanted["start"] or wanted["key"] or wanted["tag"])
    return {**wanted, "is_newest": is_newest}


PAGES = (
    Page("/topics", "topics.html", gather_topics, "Topics", label="Topics", live_s=4.0),
    Page(
        "/topics/{topic}",
        "topic.html",
        gather_topic,
        "Topic",
        live_s=3.0,
        # A search is not repeated by itself.
        stays=lambda data: not data["wanted"]["is_newest"],
        has_form=True,
    ),
)


# ---- Messages of queues -------------------------------------------------------------------------------

#: Maximum number of queues that are read for the newest messages: those written last.
MAX_QUEUES = 32
#: Maximum bytes of bodies that one page holds.
_MAX_BYTES = 32 << 20
_NEVER = datetime.min.replace(tzinfo=UTC)
#: Seconds before the timeout of a page in which no further batch is read.
_RESERVE_S = 0.3


def message_row(message: ReceivedMessage) -> Data:
    """Return the row of a message; "damaged" says why its keys cannot be read."""
    damaged, keys = None, list[str]()
    try:
        keys = list(message.keys[:MAX_KEYS])
    except CorruptBatch as error:
        damaged = error.message
    return row_of(
        message,
        keep=("queue", "message_id", "stored_at", "tag", "is_tombstone"),
        offset=message.queue_offset,
        keys=keys,
        size=len(message.body),
        preview=preview(message.body),
        damaged=damaged,
    )


def _newest(
    visit: PageContext, queues: Sequence[QueueDescription], wanted: Data, notes: list[str]
) -> list[ReceivedMessage]:
    """Return the last messages of some queues together, the newest first."""
    used = [queue for queue in queues if queue.messages]
    used.sort(key=lambda queue: queue.last_stored_at or _NEVER, reverse=True)
    if len(used) > MAX_QUEUES:
        notes.append(f"Of the {MAX_QUEUES} queues that were written last.")
    starts = {each.queue: max(each.min_offset, each.max_offset - wanted["most"]) for each in used[:MAX_QUEUES]}
    return _read(visit, used[:MAX_QUEUES], starts, wanted)[::-1][: wanted["most"]]


def _following(
    visit: PageContext, queues: Sequence[QueueDescription], wanted: Data, _notes: list[str]
) -> list[ReceivedMessage]:
    """Return the first messages of some queues from an offset or a time on, the oldest first."""
    start = wanted["start"]
    if wanted["offset"] is not None:
        starts = {each.queue: wanted["offset"] for each in queues}
    elif not start or start == "earliest":
        starts = {each.queue: each.min_offset for each in queues}
    else:
        asked = visit.ask(
            "the offsets at that time", lambda: visit.admin.offsets_at([each.queue for each in queues], start)
        )
        starts = asked.required()
    return _read(visit, queues, starts, wanted)[: wanted["most"]]


def _by_key(
    visit: PageContext, queues: Sequence[QueueDescription], wanted: Data, notes: list[str]
) -> list[ReceivedMessage]:
    start, name = wanted["start"] or _SINCE, visit.parameters.name("topic")
    most = _MAX_MESSAGES if wanted["tag"] or wanted["queue"] else wanted["most"]  # others are filtered out below
    found = visit.ask(
        "the search", lambda: visit.admin.find_messages(name, key=wanted["key"], since=start, limit=most)
    ).or_else(None)
    if found is None:
        return []
    notes.append(f"Since {start}; {found.searched:,} offsets were searched.")
    notes += [f"Queue {each.queue} was not read from offset {each.offset} on: {each.reason}" for each in found.unread]
    chosen = {each.queue for each in queues}
    messages = [
        each
        for each in found.messages
        if (not wanted["tag"] or each.tag == wanted["tag"]) and (not wanted["queue"] or each.queue in chosen)
    ]
    if found.is_cut or len(messages) > wanted["most"]:
        notes.append("There may be more.")
    return messages[: wanted["most"]]


def _read(
    visit: PageContext, queues: Sequence[QueueDescription], starts: Mapping[MessageQueue, int], wanted: Data
) -> list[ReceivedMessage]:
    """Return messages of several queues in the order of their store times, as many as the timeout allows."""
    ranges = [
        (each.queue, max(starts[each.queue], each.min_offset), each.max_offset)
        for each in queues
        if each.queue in starts and starts[each.queue] < each.max_offset
    ]
    give_up, room = time.monotonic() + visit.left_s - _RESERVE_S, _MAX_BYTES // max(len(ranges), 1)
    reader = visit.observer.reader
    asked = [
        visit.ask(f"queue {queue}", partial(_of_queue, reader, queue, start, end, wanted, room, give_up))
        for queue, start, end in ranges
    ]
    messages: list[ReceivedMessage] = []
    for each, (queue, _, _) in zip(asked, ranges, strict=True):
        found, is_cut = each.or_else(([], False))
        messages += found
        visit.missing += [f"queue {queue}: read in part"] if is_cut else []
    return sorted(messages, key=store_order)


def _of_queue(
    reader: RangeReader, queue: MessageQueue, start: int, end: int, wanted: Data, room: int, give_up: float
) -> tuple[list[ReceivedMessage], bool]:
    last, most, tags = wanted["is_newest"], wanted["most"], tuple(filter(None, [wanted["tag"]]))
    found, is_cut = list[ReceivedMessage](), False
    batches = reader.read(queue, start, end, tags)
    try:
        for batch in batches:
            found += [
                message
                for message in batch.messages(start)
                if message.queue_offset < end and (not tags or message.tag in tags)
            ]
            size = sum(len(message.body) for message in found)
            if not last and len(found) >= most:
                break
            if batch.end_offset < end and (size > room or time.monotonic() >= give_up):
                is_cut = True
                break
    except OffsetOutOfRange:  # retention has deleted the beginning meanwhile
        if not found:
            raise
    finally:
        batches.close()
    return found if last else found[:most], is_cut
