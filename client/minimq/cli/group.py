"""`minimq group`: consumer groups, who reads what in them, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from minimq.cli.base import Row, count_of, duration_of, option, output_option, show, show_json, show_table
from minimq_common.errors import GroupNotFound, InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.names import check_group

if TYPE_CHECKING:
    from minimq.administration.admin import Admin
    from minimq.administration.group_admin import ResetTo
    from minimq.administration.group_descriptions import (
        GroupDescription,
        GroupMemberDescription,
        GroupQueueDescription,
    )

#: So many queues are shown unless all are asked for: enough to see what is wrong, few enough for one screen.
_FEW = 10


def _admin(nameserver: str) -> Admin:
    from minimq.administration.admin import Admin

    return Admin(nameserver)


@click.group(short_help="Look at consumer groups, and let them go on elsewhere.")
def group() -> None:
    """See who reads what in consumer groups and how far they are, and let them go on elsewhere."""


# ---- List ---------------------------------------------------------------------------------------


@group.command("list")
@output_option
@click.pass_obj
def list_groups(nameserver: str, output: str) -> None:
    """List all consumer groups and how far they are behind.

    "Lag" counts the messages that are not committed, "Behind" is how long ago the oldest of them was stored. The exit
    status is 0 also when a broker does not answer; what it knows is missing then.

    Example: minimq group list
    """
    with _admin(nameserver) as admin:
        found = admin.describe_groups()
    _tell_unanswered(found)
    rows: list[Row] = [
        {
            "group": item.group,
            "members": len(item.members),
            "strategy": item.strategy,
            "topics": sorted({queue.queue.topic for queue in item.queues}),
            "lag": item.lag,
            "lag_s": item.lag_s,
            "retrying": item.retrying,
            "unanswered": dict(item.unanswered),
        }
        for item in found
    ]
    headings = {"group": "Group", "members": "Members", "topics": "Topics", "lag": "Lag", "behind": "Behind"}
    show(output, rows if output == "json" else list(map(_in_short, rows)), headings)


# ---- Describe -----------------------------------------------------------------------------------


@group.command(short_help="Show who is in a group, who reads which queue, and the lag.")
@click.argument("name", metavar="GROUP")
@option(
    "--queues",
    "all_queues",
    envvar="MINIMQ_GROUP_DESCRIBE_QUEUES",
    is_flag=True,
    help=f"Show all queues, not only the {_FEW} that need it most.",
)
@output_option
@click.pass_obj
def describe(nameserver: str, name: str, all_queues: bool, output: str) -> None:
    """Show the members of a consumer group, which queues each reads, and how far they are behind.

    "Lag" counts the messages that are not committed, "Behind" is how long ago the oldest of them was stored. Of the
    queues, the table has those that nobody reads and those that are furthest behind. --queues shows all of them; JSON
    has all in any case, and more about each: the epoch of its lease, its first offset and its end. A queue that is
    "held" waits for its former owner to save its state, at most for the time shown. Messages that wait for another try
    are counted apart. The exit status is 0 also when a broker does not answer; its queues are missing then.

    \b
    Examples:
      minimq group describe billing
      minimq group describe billing --queues
      minimq group describe billing --output json | jq .lag
    """  # noqa: D301 - click's mark for lines that stay as they are
    with _admin(nameserver) as admin:
        found = admin.describe_group(name)
    _tell_unanswered([found])
    if output == "json":
        show_json(_to_json(found))
        return
    show_group(found, all_queues=all_queues)


def show_group(found: GroupDescription, *, all_queues: bool) -> None:
    """Print what a person wants to know of a group: the sum, its members, and the queues that need a look, or all."""
    click.echo(_summary(found))
    numbers = {member.client_id: f"#{number}" for number, member in enumerate(found.members, 1)}
    if found.members:
        click.echo()
        _show_members(found, numbers)
    chosen = found.queues if all_queues else _worst(found)
    if chosen:
        click.echo()
        _show_queues((*chosen, *filter(_has_unread, found.retry_queues if all_queues else ())), numbers)
    if len(chosen) < len(found.queues):
        click.echo(f"\nnot shown: {count_of(len(found.queues) - len(chosen), 'queue')}; --queues shows all")


def _summary(found: GroupDescription) -> str:
    """Return the state of a group in one sentence."""
    how = [found.strategy] if found.strategy else []
    if found.assignment == "server":
        how.append("assigned by the server")
    if found.hold_s:
        how.append(f"hold {found.hold_s:g} s")
    members = count_of(len(found.members), "member") + (f" ({', '.join(how)})" if how else "")
    lag = "all is read"
    if found.lag:
        lag = f"{count_of(found.lag, 'message')} behind, the oldest stored {duration_of(found.lag_s)} ago"
    retrying = f", {count_of(found.retrying, 'message')} for another try" if found.retrying else ""
    return f"{found.group}: {members}, {lag}{retrying}"


def _has_unread(queue: GroupQueueDescription) -> bool:
    return queue.lag > 0


def _worst(found: GroupDescription) -> list[GroupQueueDescription]:
    """Return the queues to look at first, sorted: unread and held ones and, if there are members, those without one."""
    suspects = [
        queue
        for queue in found.queues
        if queue.lag or queue.waiting or queue.holder or (found.members and not queue.owner)
    ]
    suspects.sort(key=lambda queue: (queue.owner is not None, -queue.lag_s, -queue.lag))
    return sorted(suspects[:_FEW], key=lambda queue: queue.queue)


def _show_members(found: GroupDescription, numbers: Mapping[str, str]) -> None:
    """Show members by number, since the names of clients are too long for a column of the other table."""
    rows: list[Row] = [
        {
            "number": numbers[member.client_id],
            "member": member.client_id,
            "queues": len(member.queues),
            "lag": member.lag,
            "behind": duration_of(member.lag_s) if member.lag else None,
            "seen_by": ", ".join(member.seen_by),
        }
        for member in found.members
    ]
    headings = {"number": "#", "member": "Member", "queues": "Queues", "lag": "Lag", "behind": "Behind"}
    if not found.is_agreed:
        headings["seen_by"] = "Seen only by"
    show_table(rows, headings)


def _show_queues(queues: Sequence[GroupQueueDescription], numbers: Mapping[str, str]) -> None:
    rows: list[Row] = [
        {
            "topic": queue.queue.topic,
            "broker": queue.queue.broker_name,
            "queue": queue.queue.queue_id,
            "reader": _reader(queue, numbers),
            "committed": queue.committed_offset,
            "lag": queue.lag,
            "behind": duration_of(queue.lag_s) if queue.lag else None,
        }
        for queue in queues
    ]
    headings = {
        "topic": "Topic",
        "broker": "Broker",
        "queue": "Queue",
        "reader": "Read by",
        "committed": "Committed",
        "lag": "Lag",
        "behind": "Behind",
    }
    topics = sorted({queue.queue.topic for queue in queues})
    if len(topics) == 1:
        click.echo(f"topic {topics[0]}:\n")
        del headings["topic"]
    show_table(rows, headings)


def _reader(queue: GroupQueueDescription, numbers: Mapping[str, str]) -> str:
    """Say who reads a queue, who waits for it, and whether it is held."""
    said = "nobody" if queue.owner is None else numbers[queue.owner]
    if queue.held_for_s:
        said += f", held {duration_of(queue.held_for_s)}"
        if queue.holder and queue.holder in numbers:  # the name of one that has left would be too long for the table
            said += f" for {numbers[queue.holder]}"
    if queue.waiting:
        said += f", {' '.join(numbers.get(client, client) for client in queue.waiting)} waits"
    return said


def _to_json(found: GroupDescription) -> Row:
    return {
        "group": found.group,
        "strategy": found.strategy,
        "assignment": found.assignment,
        "hold_s": found.hold_s,
        "lag": found.lag,
        "lag_s": found.lag_s,
        "retrying": found.retrying,
        "deciding_broker": found.deciding_broker,
        "unanswered": dict(found.unanswered),
        "members": [_member_to_json(member) for member in found.members],
        "queues": [_queue_to_json(queue) for queue in found.queues],
        "retry_queues": [_queue_to_json(queue) for queue in found.retry_queues],
    }


def _member_to_json(member: GroupMemberDescription) -> Row:
    return {
        "client_id": member.client_id,
        "seen_by": list(member.seen_by),
        "queues": len(member.queues),
        "lag": member.lag,
        "lag_s": member.lag_s,
    }


def _queue_to_json(item: GroupQueueDescription) -> Row:
    return {
        "topic": item.queue.topic,
        "broker": item.queue.broker_name,
        "queue": item.queue.queue_id,
        "owner": item.owner,
        "epoch": item.epoch,
        "holder": item.holder,
        "held_for_s": item.held_for_s,
        "waiting": list(item.waiting),
        "min_offset": item.min_offset,
        "max_offset": item.max_offset,
        "committed_offset": item.committed_offset,
        "lag": item.lag,
        "lag_s": item.lag_s,
        "oldest_unread_at": item.oldest_unread_at,
    }


# ---- Reset --------------------------------------------------------------------------------------


@group.command("reset-offset", short_help="Let a group go on elsewhere in a topic.")
@click.argument("name", metavar="GROUP")
@click.argument("topic")
@option(
    "--to",
    required=True,
    metavar="earliest|latest|TIME|OFFSET",
    help="Where it goes on: the beginning, the end, the first message stored at or after a time (ISO 8601, in UTC "
    "unless it says otherwise), or an offset, which each queue must have.",
)
@option(
    "--queue",
    "queues",
    multiple=True,
    metavar="BROKER:ID",
    help="Only this queue; may be given several times.",
)
@option("--force", is_flag=True, help="Also while members are connected, or queues are held for some.")
@option("--new", is_flag=True, help="Also for a group that does not exist yet.")
@output_option
@click.pass_obj
def reset_offset(  # noqa: PLR0913 - by name
    nameserver: str, /, *, name: str, topic: str, to: str, queues: tuple[str, ...], force: bool, new: bool, output: str
) -> None:
    """Let a consumer GROUP go on elsewhere in a TOPIC: at the beginning, the end, a time or an offset.

    It is refused while members of the group are connected, unless --force is given: they go on at the new place then,
    and may see again what they had in hand. A group that does not exist yet begins there when it comes, but that has to
    be wanted: --new.

    \b
    Examples:
      minimq group reset-offset billing orders --to earliest
      minimq group reset-offset billing orders --to 2026-01-31T08:00Z
      minimq group reset-offset billing orders --to 4711 --queue broker-a:0
    """  # noqa: D301 - click's mark for lines that stay as they are
    target = _target(to)
    chosen = [_queue(topic, text) for text in queues] or None
    with _admin(nameserver) as admin:
        is_new = name not in admin.list_groups()
        if is_new and not new:
            raise GroupNotFound(
                f"there is no group {check_group(name)}: `minimq group list` shows those there are; --new says where "
                "one begins that is still to come"
            )
        before = admin.committed_offsets(name, topic)
        after = admin.reset_offsets(name, topic, target, queues=chosen, force=force)
    rows: list[Row] = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "before": before.get(queue),
            "arrow": "->",
            "after": offset,
        }
        for queue, offset in after.items()
    ]
    if output == "json":
        show_json([{key: value for key, value in row.items() if key != "arrow"} for row in rows])
        return
    click.echo(
        f"group {name} was not known so far: when it comes, it begins here in topic {topic}\n"
        if is_new
        else f"group {name} goes on elsewhere in topic {topic}\n"
    )
    show_table(rows, {"broker": "Broker", "queue": "Queue", "before": "Before", "arrow": "", "after": "After"})


def _target(to: str) -> ResetTo:
    """Return where to go on. Raises `InvalidArgument`."""
    match to:
        case "earliest" | "latest":
            return to
        case _ if to.isdecimal():
            return int(to)
    try:
        when = datetime.fromisoformat(to)
    except ValueError:
        raise InvalidArgument(
            f"--to {to!r} is neither 'earliest' nor 'latest' nor a time, such as 2026-01-31T08:00Z, nor an offset"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _queue(topic: str, text: str) -> MessageQueue:
    """Return the queue of "broker:id". Raises `InvalidArgument`."""
    broker, colon, queue_id = text.rpartition(":")
    if not (broker and colon and queue_id.isdecimal()):
        raise InvalidArgument(f"--queue {text!r} is not a queue: write BROKER:ID, for example broker-a:0")
    return MessageQueue(topic, broker, int(queue_id))


# ---- Both ---------------------------------------------------------------------------------------


def _in_short(row: Row) -> Row:
    """Return the age of the oldest unread message as people read it."""
    return {**row, "behind": duration_of(float(str(row["lag_s"]))) if row["lag"] else None}


def _tell_unanswered(found: Iterable[GroupDescription]) -> None:
    """Name the brokers that did not answer, each once."""
    reasons = {broker: reason for item in found for broker, reason in item.unanswered.items()}
    for broker, reason in sorted(reasons.items()):
        click.echo(f"broker {broker} does not answer, its queues are missing: {reason}", err=True)
