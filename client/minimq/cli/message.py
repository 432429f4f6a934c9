"""`minimq message`: single messages by their address, key or id."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from minimq.cli.base import check_allowed, option, stop_on_signal, tell
from minimq.cli.commands import add_operations
from minimq.cli.completion import complete_topics
from minimq.cli.message_output import MessageOutput, OutputHalted, as_json
from minimq.cli.reading import read_parts, starts_of
from minimq.operations.message_text import as_line
from minimq.operations.messages import MessageOperations
from minimq.operations.words import missing
from minimq_common.model import Permission

if TYPE_CHECKING:
    pass


@click.group(short_help="Show, find and trace single messages.")
def message() -> None:
    """Show, find and trace single messages, without a group and without a trace."""


add_operations(message, MessageOperations, "message")


@message.command()
@click.argument("topic", shell_complete=complete_topics)
@option(
    "--last", type=click.IntRange(0, 10_000), default=10, show_default=True, metavar="N", help="Begin with the last N."
)
@option("--tags", default="*", metavar="EXPRESSION", help="Only messages with these tags: 'paid || refunded'.")
@option(
    "--where",
    metavar="EXPRESSION",
    help="Only messages for which it is true: \"region = 'eu'\".",
)
@option(
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="A readable line, or one JSON object with everything for each message.",
)
@click.pass_obj
def tail(nameserver: str, *, topic: str, last: int, tags: str, where: str | None, output: str) -> None:
    """Show the messages of TOPIC as they arrive, until Ctrl-C.

    It needs no group and commits nothing. Control characters are shown as escapes; `peek` writes bodies as they are.

    \b
    Examples:
      minimq message tail orders
      minimq message tail orders --last 0 --tags paid --where "region = 'eu'"
    """
    from minimq.admin import Admin
    from minimq.filtering.message_filter import MessageFilter
    from minimq.receiving.pull_consumer import PullConsumer

    wanted = MessageFilter(tags, where)
    check_allowed(nameserver, topic, Permission.READ)
    with Admin(nameserver) as admin:
        described = admin.describe_topic(topic)
        starts = starts_of(admin, described.queues, None, None, last)
    tell(missing(described.away, described.unanswered, "not read"))
    ends = {item.queue: item.max_offset for item in described.queues}
    with stop_on_signal() as told, PullConsumer(nameserver) as consumer:
        lines = MessageOutput(sys.stdout.fileno(), as_json if output == "json" else as_line, told)
        consumer.assign(starts)
        for queue, first in starts.items():
            consumer.seek(queue, first)
        try:
            for messages in read_parts(consumer, starts, ends, told, last=last, follow=True):
                lines.write(wanted.apply(messages))
        except (BrokenPipeError, OutputHalted):  # nobody reads any more
            return
