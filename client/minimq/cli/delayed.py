"""`minimq delayed`: messages that wait until they are due."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from minimq.cli.base import option, output_option, show, show_json
from minimq.cli.commands import add_operations
from minimq.cli.completion import complete_topics
from minimq.operations.delayed import DelayedOperations
from minimq.operations.operation import Row, Table, columns
from minimq.operations.words import duration_of, size_of

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.administration.delayed_admin import DelayedMessages, DelayedTotals
    from minimq_common.moments import Time

_TOTALS = Table("no delayed messages", columns("topic messages batches next_due_at", next_due_at="Next due"))
_WAITING = Table(
    "no delayed messages", columns("due_at due_in broker queue messages size recall_handle", due_at="Due", due_in="In")
)


def _admin(nameserver: str) -> Admin:
    from minimq.admin import Admin

    return Admin(nameserver)


@click.group(short_help="List or recall delayed messages.")
def delayed() -> None:
    """List delayed messages, which wait until they are due, and recall those that can be recalled."""


add_operations(delayed, DelayedOperations, "delayed")


def _time_of(_context: click.Context, parameter: click.Parameter, text: str | None) -> Time | None:
    if text is None:
        return None
    from minimq.cli.line_format import moment_of

    return moment_of(text, parameter.opts[0])


@delayed.command("list", short_help="List the delayed messages of a topic, or count those of all.")
@option("--topic", metavar="TOPIC", help="List the messages of this topic.", shell_complete=complete_topics)
@option(
    "--from",
    "due_from",
    envvar="MINIMQ_DELAYED_LIST_FROM",
    callback=_time_of,
    metavar="TIME",
    help="Only messages due from then on: 2026-12-24T18:00Z.",
)
@option(
    "--before",
    "due_before",
    envvar="MINIMQ_DELAYED_LIST_BEFORE",
    callback=_time_of,
    metavar="TIME",
    help="Only messages due before that time.",
)
@option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="COUNT",
    help="Show so many lines at most: the first to become due.",
)
@output_option
@click.pass_obj
def list_delayed(
    nameserver: str,
    topic: str | None,
    due_from: Time | None,
    due_before: Time | None,
    limit: int,
    output: str,
) -> None:
    """List the delayed messages of a topic in the order in which they are due; or how many each topic has.

    Messages that were sent together and are due together are one line. "Recall handle" is what `minimq delayed recall`
    takes; messages that were sent without --recallable have none.

    \b
    Examples:
      minimq delayed list
      minimq delayed list --topic reminders --before 2026-12-24T18:00Z
    """
    if topic is None and (due_from or due_before):
        raise click.UsageError("--from and --before need --topic")
    with _admin(nameserver) as admin:
        if topic is None:
            show(output, _TOTALS, [_total(each) for each in admin.delayed_totals() if each.messages])
            return
        found = admin.delayed_messages(topic, due_from=due_from, due_before=due_before)
        rows = [_waiting(each) for each in islice(found, limit)]
        has_more = next(found, None) is not None
    if output == "json":
        show_json(rows)
    else:
        now = datetime.now(UTC)
        without = set() if any(row["recall_handle"] for row in rows) else {"recall_handle"}
        show(output, _WAITING, [_readable(row, now) for row in rows], without=without)
    if has_more:
        click.echo(f"only the first {limit:,} are shown: see --limit, --from and --before", err=True)


def _total(totals: DelayedTotals) -> Row:
    return {
        "topic": totals.topic,
        "messages": totals.messages,
        "batches": totals.batches,
        "next_due_at": totals.next_due_at,
    }


def _waiting(waiting: DelayedMessages) -> Row:
    return {
        "due_at": waiting.due_at,
        "stored_at": waiting.stored_at,
        "topic": waiting.queue.topic,
        "broker": waiting.queue.broker_name,
        "queue": waiting.queue.queue_id,
        "messages": waiting.messages,
        "bytes": waiting.bytes,
        "recall_handle": waiting.recall_handle,
    }


def _readable(row: Row, now: datetime) -> Row:
    due_at, size = row["due_at"], row["bytes"]
    assert isinstance(due_at, datetime)
    assert isinstance(size, int)
    return {**row, "due_in": duration_of((due_at - now).total_seconds()), "size": size_of(size)}
