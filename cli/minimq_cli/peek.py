"""`minimq peek` and `minimq message tail`: stored and new messages of a topic, without a group."""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import click

from minimq.admin import values
from minimq.admin.messages import as_line, store_order
from minimq.admin.operation import Param
from minimq.admin.texts import missing
from minimq_cli.base import check_allowed, stop_on_signal, tell
from minimq_cli.commands import declared
from minimq_cli.message_output import LineOf, MessageOutput, OutputHalted, as_body, as_json
from minimq_common.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound, Unavailable
from minimq_common.model import MessageQueue, Permission
from minimq_common.moments import Time

if TYPE_CHECKING:
    from minimq.admin.admin import Admin
    from minimq.admin.descriptions import QueueDescription, TopicDescription
    from minimq.consuming.pull_consumer import PullConsumer
    from minimq.consuming.received import ReceivedMessage

_DEFAULT_LAST = 10
_MOST_LAST = 10_000
_POLL_S = 0.2
#: Seconds without a message after which queues with unread messages count as unreachable.
_PATIENCE_S = 10.0

#: The line formats by value of `--output`.
OUTPUTS: Mapping[str, LineOf] = {"raw": as_body, "text": as_line, "json": as_json}
_OUTPUT = Param(letter="-o", choices={name: name for name in OUTPUTS})
_QUEUE = Param(flag="--queue", metavar="BROKER:ID", read=values.queue)
_FROM = Param(flag="--from", metavar="earliest|TIME", read=partial(values.moment_or_end, also="'earliest', "))


@declared("peek", "Show the messages of a topic, without a group.")
def peek(
    nameserver: str,
    topic: values.TopicName,
    *,
    queues: Annotated[Sequence[MessageQueue], _QUEUE] = (),
    offset: Annotated[int | None, Param(low=0, metavar="N")] = None,
    start: Annotated[Time | None, _FROM] = None,
    last: Annotated[int | None, Param(low=1, high=_MOST_LAST, metavar="N")] = None,
    limit: Annotated[int | None, Param(flag="--max", low=1, metavar="N")] = None,
    follow: Annotated[bool, Param(letter="-f")] = False,
    output: Annotated[str, _OUTPUT] = "raw",
) -> None:
    """Write messages of a topic to stdout, one on a line, and leave no trace.

    It needs no group and commits nothing, so no consumer misses a message. The bodies are written as they are, for
    pipes and scripts; `message tail` and `message view` show messages to people. Without --follow, it ends
    where the queues ended when it started. The exit status is 1 if queues are missing because their broker is offline.

    \b
    Examples:
      minimq peek orders
      minimq peek orders --queue broker-a:0 --offset 4711 --max 1 --output json
      minimq peek orders --from -15m
      minimq peek orders --last 100 --follow

    Args:
        nameserver: of the cluster.
        topic: its name.
        queues: only this queue; may be given several times.
        offset: begin at this offset, which each queue must have.
        start: begin at this time. A time is 2026-01-31T08:00Z, with a time zone, or before now: -24h, -90m, -7d; or
            1769846400000ms since 1970.
        last: the last N messages of all these queues together, by their store time; 10 unless a start is given.
        limit: end after N messages.
        follow: wait for new messages after that, until Ctrl-C.
        output: the body alone, a readable line, or one JSON object with everything for each message.
    """
    if sum(given is not None for given in (offset, start, last)) > 1:
        raise click.UsageError("--offset, --from and --last exclude each other")
    if offset is None and start is None:
        last = last or _DEFAULT_LAST
    chosen = [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]
    described, found, starts = _look(nameserver, topic, chosen, offset, start, last)
    with stop_on_signal() as told:
        lines = MessageOutput(sys.stdout.fileno(), OUTPUTS[output], told)
        try:
            for messages in _read(nameserver, found, starts, told, last=last, follow=follow):
                lines.write(messages[: None if limit is None else limit - lines.count])
                if limit is not None and lines.count >= limit:
                    break
        except (BrokenPipeError, OutputHalted):  # the reader of the pipe has exited
            return
    if not lines.count:
        click.echo("no messages", err=True)
    if (described.offline or described.unanswered) and not chosen:
        tell(missing(described.offline, described.unanswered, "not read"))
        sys.exit(1)


@declared("tail", "Show the messages of TOPIC as they arrive, until Ctrl-C.")
def tail(
    nameserver: str,
    topic: values.TopicName,
    *,
    last: Annotated[int, Param(low=0, high=_MOST_LAST, metavar="N")] = _DEFAULT_LAST,
    tags: Annotated[str, Param(metavar="EXPRESSION")] = "*",
    where: Annotated[str | None, Param(metavar="EXPRESSION")] = None,
    output: Annotated[str, Param(choices={"text": "text", "json": "json"})] = "text",
) -> None:
    """Show the messages of TOPIC as they arrive, until Ctrl-C.

    It needs no group and commits nothing. Control characters are shown as escapes; `peek` writes bodies as they are.

    \b
    Examples:
      minimq message tail orders
      minimq message tail orders --last 0 --tags paid --where "region = 'eu'"

    Args:
        nameserver: of the cluster.
        topic: its name.
        last: begin with the last N.
        tags: only messages with these tags: 'paid || refunded'.
        where: only messages for which it is true: "region = 'eu'".
        output: a readable line, or one JSON object with everything for each message.
    """
    from minimq.consuming.message_filter import MessageFilter

    wanted = MessageFilter(tags, where)
    described, found, starts = _look(nameserver, topic, [], None, None, last)
    tell(missing(described.offline, described.unanswered, "not read"))
    with stop_on_signal() as told:
        lines = MessageOutput(sys.stdout.fileno(), as_json if output == "json" else as_line, told)
        try:
            for messages in _read(nameserver, found, starts, told, last=last, follow=True):
                lines.write(wanted.apply(messages))
        except (BrokenPipeError, OutputHalted):  # the reader of the pipe has exited
            return


def _look(
    nameserver: str,
    topic: str,
    chosen: Sequence[MessageQueue],
    offset: int | None,
    start: Time | None,
    last: int | None,
) -> tuple[TopicDescription, Sequence[QueueDescription], dict[MessageQueue, int]]:
    """Return the topic, the chosen queues (by default all), and the start offset of each. Raises `MinimqError`."""
    from minimq.admin.admin import Admin

    check_allowed(nameserver, topic, Permission.READ)
    with Admin(nameserver) as admin:
        described = admin.describe_topic(topic)
        known = {item.queue: item for item in described.queues}
        for queue in chosen:
            if queue not in known:
                offline = [each for each in described.offline if each.broker_name == queue.broker_name]
                silent = {name: why for name, why in described.unanswered.items() if name == queue.broker_name}
                for reason in missing(offline, silent, "not read"):
                    raise Unavailable(reason)
                raise QueueNotFound(f"there is no queue {queue}: `minimq topic describe {topic}` lists the queues")
        found = [known[queue] for queue in chosen] or described.queues
        return described, found, _starts(admin, found, offset, start, last)


def _starts(
    admin: Admin, found: Sequence[QueueDescription], offset: int | None, start: Time | None, last: int | None
) -> dict[MessageQueue, int]:
    if offset is not None:
        for item in found:
            if not item.min_offset <= offset <= item.max_offset:
                raise OffsetOutOfRange(
                    f"queue {item.queue} has the offsets {item.min_offset} to {item.max_offset}, not {offset}: choose "
                    "another queue with --queue BROKER:ID; "
                    f"`minimq topic describe {item.queue.topic}` shows where each ends"
                )
        return {item.queue: offset for item in found}
    if last is not None:
        return {item.queue: max(item.min_offset, item.max_offset - last) for item in found}
    if start == "earliest":
        return {item.queue: item.min_offset for item in found}
    if start is None or start == "latest":
        raise InvalidArgument("--from latest would show nothing: use --last, or --last 1 --follow")
    return admin.offsets_at((item.queue for item in found), start)


def _read(
    nameserver: str,
    found: Sequence[QueueDescription],
    starts: Mapping[MessageQueue, int],
    told: threading.Event,
    *,
    last: int | None,
    follow: bool,
) -> Iterator[list[ReceivedMessage]]:
    """Yield stored messages, all or the last ones; then, with `follow`, new ones until the stop event."""
    from minimq.consuming.pull_consumer import PullConsumer

    with PullConsumer(nameserver) as consumer:
        consumer.assign(starts)
        for queue, first in starts.items():
            consumer.seek(queue, first)
        stored = _to_the_ends(consumer, starts, {item.queue: item.max_offset for item in found}, told)
        if last is None:
            yield from stored
        else:
            latest: list[ReceivedMessage] = []
            for messages in stored:
                latest = heapq.nlargest(last, latest + messages, key=store_order)
            yield latest[::-1]
        while follow and not told.is_set():
            yield consumer.poll(_POLL_S)


def _to_the_ends(
    consumer: PullConsumer, starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], told: threading.Event
) -> Iterator[list[ReceivedMessage]]:
    left = {queue for queue, first in starts.items() if first < ends[queue]}
    heard_at = time.monotonic()
    while left and not told.is_set():
        messages = consumer.poll(_POLL_S)
        if messages:
            heard_at = time.monotonic()
            end = ends[messages[0].queue]
            if messages[-1].queue_offset >= end:  # later messages are only for --follow
                consumer.seek(messages[0].queue, end)
                messages = [message for message in messages if message.queue_offset < end]
            yield messages
        left = {queue for queue in left if consumer.position(queue) < ends[queue]}
        if left and time.monotonic() - heard_at > _PATIENCE_S:
            brokers = ", ".join(sorted({queue.broker_name for queue in left}))
            raise Unavailable(f"{len(left)} of the queues were not read to their ends: {brokers} does not answer")
