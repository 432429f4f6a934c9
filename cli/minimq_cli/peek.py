"""`minimq peek`: stored and new messages of a topic, without a group."""

from __future__ import annotations

import heapq
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Annotated

import click
from click.core import ParameterSource

from minimq.admin import values
from minimq.admin.message_rows import as_line, message_lines, store_order
from minimq.admin.operation import Param
from minimq.admin.texts import missing
from minimq_cli.base import check_permission, stop_on_signal, tell
from minimq_cli.commands import LIMIT, declared, output_param
from minimq_cli.message_output import FORMATS, LineOf, MessageOutput, OutputHalted, Tags, Where, with_expressions
from minimq_common.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound
from minimq_common.model import MessageQueue, Permission
from minimq_common.timestamps import Time

if TYPE_CHECKING:
    from minimq.admin.admin import Admin
    from minimq.admin.descriptions import QueueDescription, TopicDescription
    from minimq.consuming.range_reader import RangeReader
    from minimq.consuming.received import ReceivedMessage

_DEFAULT_LIMIT = 10
_MAX_LAST = 10_000
_POLL_S = 0.2
#: Seconds without an answer after which a queue counts as unreachable.
_TIMEOUT_S = 5.0
#: Prefetch limit of each queue, and the number of messages that are written together.
_BUFFER_BYTES, _BLOCK = 1 << 20, 256

_FORMATS: Mapping[str, LineOf] = {**FORMATS, "table": as_line}
_QUEUE = Param(flag="--queue", metavar="BROKER:ID", read=values.queue)
_FROM = Param(flag="--from", metavar="earliest|TIME", read=values.beginning)


@with_expressions
@declared("peek", "Show the messages of a topic, without a group.")
def peek(
    nameserver: str,
    topic: Annotated[str, Param(complete="topics", metavar="TOPIC|ADDRESS")],
    *,
    queues: Annotated[Sequence[MessageQueue], _QUEUE] = (),
    offset: Annotated[int | None, Param(low=0, metavar="N")] = None,
    start: Annotated[Time | None, _FROM] = None,
    limit: Annotated[int | None, replace(LIMIT, low=0)] = None,
    follow: Annotated[bool, Param(letter="-f")] = False,
    tags: Tags = (),
    where: Where = None,
    output: Annotated[str, output_param("table", *FORMATS)] = "raw",
) -> None:
    """Write messages of a topic to stdout, one on a line, and leave no trace.

    It needs no group and commits nothing, so no consumer misses a message. The bodies are written as they are, for
    pipes and scripts; with --output table, control characters are shown as escapes. Without --follow, it ends where
    the queues ended when it started. The exit status is 1 if queues are missing because their broker is offline.

    An address, such as orders/broker-a/3@10423, stands for the one message that is stored there.

    \b
    Examples:
      minimq peek orders
      minimq peek orders -o table --follow --tags paid --where "region = 'eu'"
      minimq peek orders --from -15m
      minimq peek orders --queue broker-a:0 --offset 4711 -n 1 -o jsonl
      minimq peek orders/broker-a/0@4711 -o table

    Args:
        nameserver: of the cluster.
        topic: its name, or the address of a message.
        queues: only this queue.
        offset: begin at this offset, which each queue must have.
        start: begin at this time. A time is 2026-01-31T08:00Z, with a time zone, or before now: -24h, -90m, -7d; or
            1769846400000ms since 1970.
        limit: the last N messages of all these queues together, by their store time, 10 by default; or, with --offset
            or --from, the first N.
        follow: wait for new messages after that, until Ctrl-C.
        tags: show only messages with these tags, such as "paid || refunded".
        where: show only messages whose properties, tag (TAGS) or keys (KEYS) match: "region = 'eu' AND amount > 10".
        output: the body alone (raw), a readable line (table), or a JSON object with everything on each line.
    """
    if "@" in topic or "/" in topic:
        _check_alone()
        _show_one(nameserver, topic, output)
        return
    if offset is not None and start is not None:
        raise click.UsageError("--offset and --from exclude each other")
    wanted = _filter(tags, where)
    last = None
    if offset is None and start is None:
        last, limit = _DEFAULT_LIMIT if limit is None else limit, None
        if last > _MAX_LAST:
            raise InvalidArgument(f"--limit is {last}: without --from or --offset it must be at most {_MAX_LAST}")
    chosen = [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]
    described, found, starts = _look(nameserver, topic, chosen, offset, start, last)
    unread = [] if chosen else missing(described.offline, described.unanswered, "not read")
    if follow:
        tell(unread)
    with stop_on_signal() as told:
        lines = MessageOutput(sys.stdout.fileno(), _FORMATS[output], told)
        read = _read(nameserver, found, starts, told, last=last, follow=follow)
        try:
            _write(lines, map(wanted, read), limit)
        except (BrokenPipeError, OutputHalted):  # the reader of the pipe has exited
            return
    if not lines.count:
        click.echo("no messages", err=True)
    if unread and not follow:
        tell(unread)
        sys.exit(1)


def _write(lines: MessageOutput, read: Iterable[list[ReceivedMessage]], limit: int | None) -> None:
    for messages in read:
        lines.write(messages[: None if limit is None else limit - lines.count])
        if limit is not None and lines.count >= limit:
            return


def _check_alone() -> None:
    """Raise `UsageError` if options select messages although an address is given."""
    context = click.get_current_context()
    given = (each for each in context.params if each not in ("topic", "output"))
    for name in given:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"an address is one message: leave out --{name}")


def _show_one(nameserver: str, address: str, output: str) -> None:
    from minimq.admin.admin import Admin

    with Admin(nameserver) as admin:
        message = admin.message_at(address)
    click.echo("\n".join(message_lines(message)) if output == "table" else _FORMATS[output](message))


def _filter(tags: Sequence[str], where: str | None) -> Callable[[list[ReceivedMessage]], list[ReceivedMessage]]:
    if not tags and where is None:
        return lambda messages: messages
    from minimq.filters import message_filter

    return message_filter(" || ".join(tags) or "*", where).apply


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

    with Admin(nameserver) as admin:
        check_permission(admin.route(topic), Permission.READ)
        described = admin.describe_topic(topic)
        known = {item.queue: item for item in described.queues}
        if lacking := [queue for queue in chosen if queue not in known]:
            absent = missing(described.offline, described.unanswered, "not read")
            why = "; ".join(absent) or f"`minimq topic describe {topic}` lists the queues"
            raise QueueNotFound(f"there is no queue {lacking[0]}: {why}")
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
    assert start is not None
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
    """Yield stored messages in the order of their store times, all or the last ones; then, with `follow`, new ones."""
    from minimq.consumer import PullConsumer
    from minimq.consuming.range_reader import RangeOptions, RangeReader

    ends = {item.queue: item.max_offset for item in found}
    options = RangeOptions(buffer_bytes=_BUFFER_BYTES, max_wait_s=_TIMEOUT_S)
    with closing(RangeReader(nameserver, options)) as reader:
        queues = (_stored(reader, queue, first, ends[queue]) for queue, first in starts.items() if first < ends[queue])
        stored: Iterator[ReceivedMessage] = takewhile(
            lambda _: not told.is_set(), heapq.merge(*queues, key=store_order)
        )
        if last is not None:
            stored = iter(deque(stored, maxlen=last))
        while block := list(islice(stored, _BLOCK)):
            yield block
    if not follow:
        return
    with PullConsumer(nameserver) as consumer:
        consumer.assign(ends)
        for queue, end in ends.items():
            consumer.seek(queue, end)
        while not told.is_set():
            yield consumer.poll(_POLL_S)


def _stored(reader: RangeReader, queue: MessageQueue, start: int, end: int) -> Iterator[ReceivedMessage]:
    for batch in reader.read(queue, start, end):
        yield from (message for message in batch.messages(start) if message.queue_offset < end)
