"""`minimq peek`: messages of a topic to stdout, without a group."""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from minimq.cli.away import tell_away
from minimq.cli.base import TIME_HELP, check_allowed, option, start_of, stop_on_signal
from minimq.cli.completion import complete_topics
from minimq.cli.message_output import FORMATS, MessageOutput, OutputHalted
from minimq.cli.queue_name import parse_queue
from minimq_common.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound, Unavailable
from minimq_common.model import MessageQueue, Permission

if TYPE_CHECKING:
    import threading

    from minimq.admin import Admin
    from minimq.administration.descriptions import QueueDescription
    from minimq.receiving.pull_consumer import PullConsumer
    from minimq.receiving.received import ReceivedMessage
    from minimq_common.moments import Time

_POLL_S = 0.2
#: Without a message for this long, queues with more messages count as unreachable.
_PATIENCE_S = 10.0
_DEFAULT_LAST = 10


@click.command(short_help="Show the messages of a topic, without a group.")
@click.argument("topic", shell_complete=complete_topics)
@option("--queue", "queues", multiple=True, metavar="BROKER:ID", help="Only this queue; may be given several times.")
@option("--offset", type=click.IntRange(min=0), metavar="N", help="Begin at this offset, which each queue must have.")
@option(
    "--from",
    "start",
    envvar="MINIMQ_PEEK_FROM",
    metavar="earliest|TIME",
    callback=partial(start_of, also="'earliest', "),
    help=f"Begin at this time. {TIME_HELP}",
)
@option(
    "--last",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help=f"The last N messages of all these queues, in the order of their store time; {_DEFAULT_LAST} unless a start "
    "is given.",
)
@option(
    "--max", "limit", envvar="MINIMQ_PEEK_MAX", type=click.IntRange(min=1), metavar="N", help="End after N messages."
)
@option("-f", "--follow", is_flag=True, help="Wait for new messages after that, until Ctrl-C.")
@option(
    "--format",
    "shape",
    envvar="MINIMQ_PEEK_FORMAT",
    type=click.Choice(list(FORMATS)),
    default="body",
    show_default=True,
    help="The body alone, or one JSON object with everything for each message.",
)
@click.pass_obj
def peek(  # noqa: PLR0913 - the flags of the command
    nameserver: str,
    *,
    topic: str,
    queues: tuple[str, ...],
    offset: int | None,
    start: Time | None,
    last: int | None,
    limit: int | None,
    follow: bool,
    shape: str,
) -> None:
    """Write messages of a topic to stdout, one on a line, and leave no trace.

    It needs no group and commits nothing, so no consumer misses a message. Unless --follow is given, it stops at the
    ends that the queues had at its start. The exit status is 1 if queues are missing because their broker is away.

    \b
    Examples:
      minimq peek orders
      minimq peek orders --queue broker-a:0 --offset 4711 --max 1 --format json
      minimq peek orders --from -15m
      minimq peek orders --last 100 --follow
    """  # noqa: D301 - click's mark for lines that stay as they are
    from minimq.admin import Admin
    from minimq.receiving.pull_consumer import PullConsumer

    if sum(given is not None for given in (offset, start, last)) > 1:
        raise click.UsageError("--offset, --from and --last exclude each other")
    if offset is None and start is None:
        last = last or _DEFAULT_LAST
    chosen = [parse_queue(topic, text) for text in queues]
    check_allowed(nameserver, topic, Permission.READ)
    with Admin(nameserver) as admin:
        described = admin.describe_topic(topic)
        found = _chosen(described.queues, chosen)
        starts = _starts(admin, found, offset, start, last)
    ends = {item.queue: item.max_offset for item in found}
    with stop_on_signal() as told, PullConsumer(nameserver) as consumer:
        output = MessageOutput(sys.stdout.fileno(), FORMATS[shape], told)
        consumer.assign(starts)
        for queue, first in starts.items():
            consumer.seek(queue, first)
        try:
            for messages in _parts(consumer, starts, ends, told, last=last, follow=follow):
                output.write(messages[: None if limit is None else limit - output.count])
                if limit is not None and output.count >= limit:
                    break
        except (BrokenPipeError, OutputHalted):  # nobody reads any more
            return
    if not output.count:
        click.echo("no messages", err=True)
    if described.away and not chosen:
        tell_away(described.away, "not read")
        sys.exit(1)


def _parts(
    consumer: PullConsumer,
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    told: threading.Event,
    *,
    last: int | None,
    follow: bool,
) -> Iterator[list[ReceivedMessage]]:
    """Yield the stored messages, all or the last ones; then, to follow, new messages, until the stop event."""
    stored = _to_the_ends(consumer, starts, ends, told)
    if last is None:
        yield from stored
    else:
        yield _latest(stored, last)
    while follow and not told.is_set():
        yield consumer.poll(_POLL_S)


def _chosen(found: Sequence[QueueDescription], chosen: Sequence[MessageQueue]) -> list[QueueDescription]:
    """Return the chosen queues, all if none are. Raises `QueueNotFound`."""
    known = {item.queue: item for item in found}
    for queue in chosen:
        if queue not in known:
            raise QueueNotFound(f"there is no queue {queue}: `minimq topic describe {queue.topic}` lists the queues")
    return [known[queue] for queue in chosen] or list(found)


def _starts(
    admin: Admin, found: Sequence[QueueDescription], offset: int | None, start: Time | None, last: int | None
) -> dict[MessageQueue, int]:
    """Return where to begin in each queue. Raises `OffsetOutOfRange` or `InvalidArgument`."""
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


def _to_the_ends(
    consumer: PullConsumer, starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], told: threading.Event
) -> Iterator[list[ReceivedMessage]]:
    """Yield the messages between the starts and the ends of queues, until the stop event.

    Raises:
        Unavailable: some of them cannot be read.
    """
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


def _latest(parts: Iterator[list[ReceivedMessage]], count: int) -> list[ReceivedMessage]:
    """Return the messages that were stored last, in the order of their store time."""
    latest: list[ReceivedMessage] = []
    for messages in parts:
        latest = heapq.nlargest(count, latest + messages, key=_place)
    return latest[::-1]


def _place(message: ReceivedMessage) -> tuple[int, MessageQueue, int]:
    return message.batch.stored_ms_of(message.index), message.queue, message.queue_offset
