"""`minimq peek`: messages of a topic to stdout, without a group."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from minimq.cli.base import check_allowed, option, start_of, stop_on_signal, tell
from minimq.cli.completion import complete_topics
from minimq.cli.message_output import FORMATS, MessageOutput, OutputHalted
from minimq.cli.reading import chosen_queues, read_parts, starts_of
from minimq.operations.values import TIME_HELP
from minimq.operations.values import queue as parse_queue
from minimq.operations.words import missing
from minimq_common.model import Permission

if TYPE_CHECKING:
    from minimq_common.moments import Time

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
def peek(
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

    It needs no group and commits nothing, so no consumer misses a message. The bodies are written as they are, for
    pipes and scripts; `message tail` and `message view` show messages to people. Unless --follow is
    given, it stops at the ends that the queues had at its start. The exit status is 1 if queues are missing because
    their broker is away.

    \b
    Examples:
      minimq peek orders
      minimq peek orders --queue broker-a:0 --offset 4711 --max 1 --format json
      minimq peek orders --from -15m
      minimq peek orders --last 100 --follow
    """
    from minimq.admin import Admin
    from minimq.receiving.pull_consumer import PullConsumer

    if sum(given is not None for given in (offset, start, last)) > 1:
        raise click.UsageError("--offset, --from and --last exclude each other")
    if offset is None and start is None:
        last = last or _DEFAULT_LAST
    chosen = [parse_queue("--queue", text, topic) for text in queues]
    check_allowed(nameserver, topic, Permission.READ)
    with Admin(nameserver) as admin:
        described = admin.describe_topic(topic)
        found = chosen_queues(described.queues, chosen)
        starts = starts_of(admin, found, offset, start, last)
    ends = {item.queue: item.max_offset for item in found}
    with stop_on_signal() as told, PullConsumer(nameserver) as consumer:
        output = MessageOutput(sys.stdout.fileno(), FORMATS[shape], told)
        consumer.assign(starts)
        for queue, first in starts.items():
            consumer.seek(queue, first)
        try:
            for messages in read_parts(consumer, starts, ends, told, last=last, follow=follow):
                output.write(messages[: None if limit is None else limit - output.count])
                if limit is not None and output.count >= limit:
                    break
        except (BrokenPipeError, OutputHalted):  # nobody reads any more
            return
    if not output.count:
        click.echo("no messages", err=True)
    if (described.away or described.unanswered) and not chosen:
        tell(missing(described.away, described.unanswered, "not read"))
        sys.exit(1)
