"""Pages about one message with its body, and about new messages of a topic."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from minimq import ReceivedMessage
from minimq.admin.descriptions import QueueDescription
from minimq.aio import PullConsumer
from minimq.features.search.search_bounds import MessageAddress, parse_address
from minimq_common.errors import CorruptBatch
from minimq_console.answers import parameters_of
from minimq_console.bodies import SHOWN_BYTES, WAYS, shown, visible
from minimq_console.console import Console
from minimq_console.page import Data, Page, PageContext
from minimq_console.pages.topics import chosen_queues, describe, message_row
from minimq_console.parameters import Parameters

#: Seconds for which new messages are collected before they are shown, and how many of them are shown.
_GATHER_S, _MAX = 0.5, 50
#: Bytes that are fetched ahead for one viewer.
_PREFETCH_BYTES = 1 << 20
_PATH = "/topics/{topic}/messages/{broker}/{queue}/{offset}"
#: URL path of the body of a message.
BODY_PATH = f"{_PATH}/body"

# ---- One message ------------------------------------------------------------------------------------


def gather_message(visit: PageContext) -> Data:
    """Return the message at the address; on request, also what groups have done with it."""
    way, traced = visit.parameters.choice("show", WAYS, "auto"), visit.parameters.flag("trace")
    place = _address_of(visit.parameters)
    message = visit.ask("the message", lambda: visit.admin.message_at(place)).required()
    trace = visit.ask("the trace", lambda: visit.admin.trace_message(place)).or_else(None) if traced else None
    properties, message_group = _properties(message)
    decode, decoded = visit.console.decode, None
    if way == "auto" and decode is not None and len(message.body) <= SHOWN_BYTES:
        decoded = visit.ask("the body", lambda: decode(message)).or_else(None)
    chosen, text = shown(message.body if decoded is None else decoded.json, way)
    return {
        "message": message_row(message),
        "born_at": message.born_at,
        "due_at": message.due_at,
        "message_group": message_group,
        "properties": properties,
        "way": chosen,
        "body": text,
        "is_cut": len(message.body) > SHOWN_BYTES,
        "schema": "" if decoded is None else decoded.schema,
        "trace": None if trace is None else visit.shown("message trace", trace),
    }


async def download(console: Console, request: Request) -> Response:
    """Return the body of the message at the address as a file that no browser runs or shows."""
    visit = PageContext(request.state.visitor, parameters_of(request), console)
    place = _address_of(visit.parameters)
    asked = visit.ask("the message", lambda: visit.admin.message_at(place))
    message = await asyncio.get_running_loop().run_in_executor(console.gathering, asked.required)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{place.queue.topic}-{place.queue.broker_name}")
    headers = {
        "Content-Disposition": f'attachment; filename="{name}-{place.queue.queue_id}-{place.offset}.bin"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "no-store",
    }
    return Response(message.body, headers=headers, media_type="application/octet-stream")


def _address_of(parameters: Parameters) -> MessageAddress:
    return parse_address("{topic}/{broker}/{queue}@{offset}".format_map(parameters.names))


def _properties(message: ReceivedMessage) -> tuple[Mapping[str, str], str | None]:
    try:
        return {visible(name): visible(value) for name, value in message.properties.items()}, message.message_group
    except CorruptBatch:
        return {}, None


# ---- New messages -----------------------------------------------------------------------------------


def gather_choice(visit: PageContext) -> Data:
    """Return the topic, queue and tag to watch. Raises `MinimqError` if there is no such topic or queue."""
    choice = _choice(visit)
    chosen_queues(describe(visit, choice["topic"]), choice["queue"])
    return choice


async def follow(visit: PageContext) -> AsyncIterator[Data]:
    """Yield new messages, at least an empty list every second, until the stream is closed."""
    choice = _choice(visit)
    queues = await asyncio.to_thread(_described, visit, choice)
    async with PullConsumer(visit.observer.cluster, prefetch_bytes=_PREFETCH_BYTES) as consumer:
        await consumer.assign(each.queue for each in queues)
        for each in queues:
            await consumer.seek(each.queue, each.max_offset)
        while True:
            rows = await _gathered(consumer, choice["tag"])
            skipped = max(len(rows) - _MAX, 0)
            if len(rows) >= _MAX:
                for each in await asyncio.to_thread(_described, visit, choice):
                    skipped += max(each.max_offset - consumer.position(each.queue), 0)
                    await consumer.seek(each.queue, each.max_offset)
            yield {"messages": rows[:_MAX][::-1], "skipped": skipped}


async def _gathered(consumer: PullConsumer, tag: str) -> list[Data]:
    until = time.monotonic() + _GATHER_S
    rows: list[Data] = []
    while (left_s := until - time.monotonic()) > 0:
        messages = await consumer.poll(left_s, _MAX)
        rows += [message_row(message) for message in messages if not tag or message.tag == tag]
        if len(rows) >= _MAX:
            return rows
    return sorted(rows, key=lambda row: row["stored_at"])


def _described(visit: PageContext, choice: Data) -> Sequence[QueueDescription]:
    described = visit.admin.describe_topics([choice["topic"]])
    return chosen_queues(described[0], choice["queue"]) if described else describe(visit, choice["topic"]).queues


def _choice(visit: PageContext) -> Data:
    parameters = visit.parameters
    return {
        "topic": parameters.name("topic"),
        "queue": parameters.text("queue", most=300),
        "tag": parameters.text("tag", most=255),
    }


PAGES = (
    Page(_PATH, "message.html", gather_message, "Message", live_s=None),
    Page(
        "/topics/{topic}/tail",
        "tail.html",
        gather_choice,
        "New messages",
        follow=follow,
        has_form=True,
        rows_template="tail_rows.html",
    ),
)
