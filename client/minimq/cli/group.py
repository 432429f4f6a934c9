"""`minimq group`: consumer groups, their members, queues and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from minimq.administration.activity import say_deleted_early
from minimq.cli.away import away_to_json, tell_away, tell_left_out, tell_unanswered
from minimq.cli.base import offset_or_start_of, option, output_option, show_json
from minimq.cli.completion import complete_groups, complete_topics
from minimq.cli.group_delete import delete
from minimq.cli.group_json import group_to_json
from minimq.cli.group_text import FEW, show_group, time_to_expiry
from minimq.cli.queue_name import parse_queue
from minimq.cli.table import show_table
from minimq.operations.operation import Row, Table
from minimq.operations.values import TIME_HELP
from minimq.operations.words import duration_of
from minimq_common.errors import GroupNotFound, Unavailable
from minimq_common.names import check_group
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.administration.group_descriptions import (
        GroupDescription,
    )
    from minimq_common.moments import Time

_GROUPS = Table(
    "no groups",
    {
        "group": "Group",
        "members": "Members",
        "topics": "Topics",
        "lag": "Lag",
        "behind": "Behind",
        "dead_letters": "Dead letters",
        "expires_at": "Expires in",
    },
)
_RESET = Table("no queues", {"broker": "Broker", "queue": "Queue", "before": "Before", "after": "After"})


def _admin(nameserver: str) -> Admin:
    from minimq.admin import Admin

    return Admin(nameserver)


@click.group(short_help="Show, reset or delete consumer groups.")
def group() -> None:
    """Show the members, queues and progress of consumer groups, move groups to other offsets, and delete groups."""


group.add_command(delete)


# ---- List ---------------------------------------------------------------------------------------


@group.command("list")
@output_option
@click.pass_obj
def list_groups(nameserver: str, output: str) -> None:
    """List all consumer groups with their lag.

    "Lag" counts the messages that are not committed, "Behind" is the age of the oldest of them. In compacted topics,
    and where the group filters, "Lag" counts offsets. "Members" is "published" where a Spark query publishes its
    progress for monitoring. "Dead letters" counts the messages that failed too often; `minimq group describe` shows how
    to read them. A group that nobody uses expires: "Expires in" shows the last two days. The exit status is 0 even if a
    broker does not answer; its part is missing then.

    Example: minimq group list
    """
    from minimq.routes.away import state_of

    with _admin(nameserver) as admin:
        found = admin.describe_groups()
    _tell_unanswered(found)
    for line in sorted({f"{away.broker_name}: {state_of(away)}" for item in found for away in item.away}):
        click.echo(f"{line}, its queues are not counted", err=True)
    rows: list[Row] = [
        {
            "group": item.group,
            "members": len(item.members),
            "published": item.is_published,
            "strategy": item.strategy,
            "topics": sorted({queue.queue.topic for queue in item.queues}),
            "lag": item.lag,
            "lag_s": item.lag_s,
            "retrying": item.retrying,
            "dead_letters": item.dead_letters,
            "expires_at": item.expires_at,
            "unanswered": dict(item.unanswered),
            "away": away_to_json(item.away),
        }
        for item in found
    ]
    if output == "json":
        show_json(rows)
        return
    shown = list(map(_in_short, rows))
    without = {key for key in ("dead_letters", "expires_at") if not any(row[key] for row in shown)}
    show_table(_GROUPS, shown, without=without)


# ---- Describe -----------------------------------------------------------------------------------


@group.command(short_help="Show the members of a group, the queues of each, and the lag.")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@option(
    "--queues",
    "all_queues",
    envvar="MINIMQ_GROUP_DESCRIBE_QUEUES",
    is_flag=True,
    help=f"Show all queues, not only the {FEW} most important ones.",
)
@option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@output_option
@click.pass_obj
def describe(nameserver: str, name: str, all_queues: bool, watch: bool, interval: float, output: str) -> None:
    """Show the members of a consumer group, the queues of each, and the lag.

    "Lag" counts the messages that are not committed, "Behind" is the age of the oldest of them. In compacted topics,
    and where the group filters, "Lag" counts offsets. The table shows the
    queues that nobody reads and those that are furthest behind; --queues shows all. JSON always has all queues, with
    the epoch of the lease, the first offset and the end of each. A "held" queue waits for its former owner to save
    its state, at most for the time shown. Messages that wait for a retry are counted separately. The exit status is 0
    even
    if a broker does not answer; its queues are missing then.

    \b
    Examples:
      minimq group describe billing
      minimq group describe billing --queues
      minimq group describe billing --watch
      minimq group describe billing --output json | jq .lag
    """
    with _admin(nameserver) as admin:
        show = partial(_describe, admin, name, all_queues=all_queues, output=output)
        if not watch:
            show()
            return
        while True:
            try:
                show(clears=output == "table" and sys.stdout.isatty())
            except Unavailable as error:  # it may come back
                click.echo(f"error: {error}", err=True)
            time.sleep(interval)


def _describe(admin: Admin, name: str, *, all_queues: bool, output: str, clears: bool = False) -> None:
    found = admin.describe_group(name)
    if clears:
        click.clear()
    _tell_unanswered([found])
    tell_away(found.away, "not counted")
    for broker, size in found.deleted_early.items():
        click.echo(f"broker {broker}: {say_deleted_early(size)}", err=True)
    if lost := sum(queue.lost for queue in found.queues):
        click.echo(f"{count_of(lost, 'offset')} of its topics went before the group had read them", err=True)
    if output == "json":
        show_json(group_to_json(found))
    else:
        show_group(found, all_queues=all_queues)


# ---- Reset --------------------------------------------------------------------------------------


@group.command("reset-offset", short_help="Move a group to other offsets in a topic.")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.argument("topic", shell_complete=complete_topics)
@option(
    "--to",
    required=True,
    metavar="earliest|latest|TIME|OFFSET",
    callback=offset_or_start_of,
    help="Where the group continues: the beginning, the end, the first message stored at or after a time, or an "
    f"offset, which each queue must have. {TIME_HELP}",
)
@option(
    "--queue",
    "queues",
    multiple=True,
    metavar="BROKER:ID",
    help="Only this queue; may be given several times.",
)
@option(
    "--force",
    is_flag=True,
    help="Reset even while members are connected, queues are held, or a broker of the topic is away.",
)
@option("--new", is_flag=True, help="Accept a group that does not exist yet, or has not read the topic so far.")
@option("--dry-run", is_flag=True, help="Show where the group would continue, and change nothing.")
@output_option
@click.pass_obj
def reset_offset(
    nameserver: str,
    /,
    *,
    name: str,
    topic: str,
    to: Time,
    queues: tuple[str, ...],
    force: bool,
    new: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Move a consumer GROUP in a TOPIC to the beginning, the end, a time or an offset.

    The command is refused while members of the group are connected, unless --force is given: they then continue at the
    new offset, and messages in flight may be redelivered. It is also refused while a broker of the topic is away;
    --force,
    or --queue, resets the queues of the others. For a group that does not exist yet, or has not read the topic so far,
    give --new: it will begin there.

    \b
    Examples:
      minimq group reset-offset billing orders --to earliest
      minimq group reset-offset billing orders --to 2026-01-31T08:00Z
      minimq group reset-offset billing orders --to -90m
      minimq group reset-offset billing orders --to 4711 --queue broker-a:0
    """
    chosen = [parse_queue(topic, text) for text in queues] or None
    with _admin(nameserver) as admin:
        is_new = name not in admin.list_groups()
        if is_new and not new:
            raise GroupNotFound(
                f"there is no group {check_group(name)}: `minimq group list` shows the groups; add --new to set the "
                "start of a future group"
            )
        before = admin.committed_offsets(name, topic)
        if not (new or before or topic in _topics_of(admin, name)):
            raise GroupNotFound(
                f"group {name} has not read topic {topic} so far: `minimq group describe {name}` shows its topics; "
                "add --new to set its beginning in a new one"
            )
        after = admin.reset_offsets(name, topic, to, queues=chosen, force=force, dry_run=dry_run)
        away = () if chosen else admin.route(topic).away
    reset = {queue.broker_name for queue in after}
    tell_left_out([each for each in away if each.broker_name not in reset], "not reset")
    rows: list[Row] = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "before": before.get(queue),
            "after": offset,
        }
        for queue, offset in after.items()
    ]
    if output == "json":
        show_json(rows)
        return
    does = "begin" if is_new else "go on"
    if dry_run:
        said = f"dry run, nothing was changed; without --dry-run group {name} would {does} here in topic {topic}"
    elif is_new:
        said = f"group {name} is new: when it starts, it begins here in topic {topic}"
    else:
        said = f"group {name} continues from these offsets in topic {topic}"
    click.echo(f"{said}\n")
    show_table(_RESET, rows)


def _topics_of(admin: Admin, name: str) -> set[str]:
    """Return the topics that a group reads, including those without a commit."""
    found = admin.describe_group(name)
    return {queue.queue.topic for queue in found.queues}.union(*(member.topics for member in found.members))


# ---- Both ---------------------------------------------------------------------------------------


def _in_short(row: Row) -> Row:
    """Return times as people read them."""
    expires_at = row["expires_at"]
    return {
        **row,
        "members": "published" if row["published"] and not row["members"] else row["members"],
        "behind": duration_of(float(str(row["lag_s"]))) if row["lag"] else None,
        "expires_at": time_to_expiry(expires_at, datetime.now(UTC)) if isinstance(expires_at, datetime) else None,
    }


def _tell_unanswered(found: Iterable[GroupDescription]) -> None:
    """Report the brokers that did not answer, each once."""
    tell_unanswered({broker: reason for item in found for broker, reason in item.unanswered.items()}, "not counted")
