"""`minimq message`: single messages by their address, key or id."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from minimq.cli.base import check_allowed, option, output_option, show, show_json, stop_on_signal, tell
from minimq.cli.completion import complete_topics
from minimq.cli.message_lines import as_line, message_lines, message_row, trace_lines, trace_row
from minimq.cli.message_output import MessageOutput, OutputHalted, as_json
from minimq.cli.progress import progress_bar
from minimq.cli.reading import read_parts, starts_of
from minimq.operations.operation import Table, columns
from minimq.operations.values import TIME_HELP
from minimq.operations.words import missing
from minimq_common.model import Permission
from minimq_common.moments import Time

if TYPE_CHECKING:
    from minimq.finding.found_messages import FoundMessages, UnreadOffsets
    from minimq_common.model import AwayBroker

_FOUND = Table(
    "no messages",
    columns(
        "address stored_at tag keys bytes message_id",
        address="ADDRESS",
        stored_at="STORED",
        tag="TAG",
        keys="KEYS",
        bytes="BYTES",
        message_id="ID",
    ),
)


@click.group(short_help="Show, find and trace single messages.")
def message() -> None:
    """Show, find and trace single messages, without a group and without a trace."""


@message.command()
@click.argument("address")
@output_option
@click.pass_obj
def view(nameserver: str, *, address: str, output: str) -> None:
    """Show the message at an ADDRESS, such as orders/broker-a/3@10423.

    \b
    Examples:
      minimq message view orders/broker-a/3@10423
      minimq message view orders/broker-a/3@10423 --output json
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        found = admin.message_at(address)
    if output == "json":
        show_json(message_row(found, body=True))
        return
    for line in message_lines(found):
        click.echo(line)


@message.command()
@click.argument("topic", shell_complete=complete_topics)
@option("--key", metavar="KEY", help="Messages that have this key, as a whole.")
@option(
    "--id",
    "message_id",
    envvar="MINIMQ_MESSAGE_FIND_ID",
    metavar="ID",
    help="The message with this id, as a receipt has it.",
)
@option(
    "--since",
    default="-1h",
    show_default=True,
    metavar="earliest|TIME",
    help=f"Only messages stored from this time on. {TIME_HELP}",
)
@option("--until", metavar="TIME", help="Only messages stored before this time.")
@option(
    "--max",
    "limit",
    envvar="MINIMQ_MESSAGE_FIND_MAX",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    metavar="N",
    help="End after N.",
)
@option(
    "--verify",
    is_flag=True,
    help="Compare each batch with its checksum as well, which takes a multiple: damaged keys could hide a message.",
)
@output_option
@click.pass_obj
def find(
    nameserver: str,
    *,
    topic: str,
    key: str | None,
    message_id: str | None,
    since: Time,
    until: Time | None,
    limit: int,
    verify: bool,
    output: str,
) -> None:
    """Find the messages of TOPIC with a key or an id.

    They are shown in the order of their store times. The brokers look through what was stored in this range. The exit
    status is 1 if something could not be looked at.

    \b
    Examples:
      minimq message find orders --key 4711
      minimq message find orders --key 4711 --since -7d --until -6d
      minimq message find orders --id 9f3c1e5a7b2d4f60000000000000002a00000007 --output json
    """
    from minimq.admin import Admin

    if (key is None) == (message_id is None):
        raise click.UsageError("give --key or --id, one of them")
    with Admin(nameserver) as admin, progress_bar() as progress:
        found = admin.find_messages(
            topic,
            key=key,
            message_id=message_id,
            progress=progress,
            since=since,
            until=until,
            max_messages=limit,
            verify=verify,
        )
    show(output, _FOUND, [message_row(each, body=output == "json") for each in found.messages])
    if not _tell_left_out(found):
        sys.exit(1)


def _tell_left_out(found: FoundMessages) -> bool:
    """Report on stderr what could not be looked at; return whether that is nothing."""
    _tell_unread(found.unread, found.away, found.from_slaves)
    if found.is_cut:
        click.echo(f"the search ended with {len(found.messages):,} messages: there may be more (--max)", err=True)
    return not (found.unread or found.away)


def _tell_unread(unread: Iterable[UnreadOffsets], away: Iterable[AwayBroker], from_slaves: Iterable[str]) -> None:
    for each in unread:
        where = f"{each.queue}@{each.offset}" + (f" to {each.end_offset - 1}" if each.end_offset > each.offset else "")
        click.echo(f"{where}: not looked at: {each.reason}", err=True)
    tell(missing(away, {}, "not looked at"))
    for broker in from_slaves:
        click.echo(f"{broker}: a slave answered, which may lack the latest messages", err=True)


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


@message.command()
@click.argument("what", metavar="ID|ADDRESS")
@option(
    "--topic",
    shell_complete=complete_topics,
    help="Where to look for an ID; in all topics that you may read unless given.",
)
@option(
    "--since",
    default="-1h",
    show_default=True,
    metavar="earliest|TIME",
    help=f"Look for an ID among messages stored from this time on. {TIME_HELP}",
)
@output_option
@click.pass_obj
def trace(nameserver: str, *, what: str, topic: str | None, since: Time, output: str) -> None:
    """Show where a message is stored, and what each group has done with it.

    It is worked out from what the brokers know now, so it costs nothing before, and is never late. The exit status is 1
    if the message is not found, or something could not be looked at.

    \b
    Examples:
      minimq message trace orders/broker-a/3@10423
      minimq message trace 9f3c1e5a7b2d4f60000000000000002a00000007 --topic orders --since -7d
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin, progress_bar() as progress:
        found = admin.trace_message(what, topic=topic, progress=progress, since=since)
    if output == "json":
        show_json(trace_row(found))
    elif found.is_known:
        for line in trace_lines(found):
            click.echo(line)
    else:
        text = f"message {found.message_id} is in no queue since {since}, neither delayed nor half, nor was it recalled"
        click.echo(text, err=True)
    _tell_unread(found.unread, found.away, found.from_slaves)
    if not found.is_known or found.unread or found.away:
        sys.exit(1)
