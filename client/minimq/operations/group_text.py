"""The description of a group for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from minimq.operations.operation import Given, Plan, Row, Rows, Table, View, columns
from minimq.operations.rows import row_of
from minimq.operations.words import duration_of, listing, missing
from minimq.routes.away import state_of
from minimq_common.model import MessageQueue
from minimq_common.moments import Time
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.administration.group_descriptions import GroupDescription, GroupQueueDescription, PoppedQueueDescription

#: An expiry later than this is not shown; JSON always has the time.
_SOON = timedelta(days=2)

#: The default number of queues shown: enough to see problems, few enough for one screen.
FEW = 10
#: Queues that a plan lists.
_MOST_QUEUES = 20
#: Consumers that are listed for one queue.
_HOLDERS = 3

_GROUPS = Table(
    "no groups", columns("group members topics lag behind dead_letters expires_at", expires_at="Expires in")
)
_MEMBERS = Table(
    "no members", columns("number member queues lag behind topics seen_by", number="#", seen_by="Seen only by")
)
_QUEUES = Table("no queues", columns("topic broker queue reader committed lag behind", reader="Read by"))


def describe_lines(found: GroupDescription, *, all_queues: bool) -> list[str | Rows]:
    """Return the summary of a group, its members, and the most important queues, or all."""
    lines: list[str | Rows] = [_summary(found)]
    if found.dead_letters:
        lines.append(f"dead letters that are still open: minimq dlq show {found.group}")
    if expires_in := time_to_expiry(found.expires_at, datetime.now(UTC)):
        lines.append(f"nobody uses it: it will be deleted in {expires_in}")
    numbers = {member.client_id: f"#{number}" for number, member in enumerate(found.members, 1)}
    if found.members:
        lines += ["", _members(found, numbers)]
    chosen = found.queues if all_queues else _worst(found)
    if chosen:
        lines.append("")
        lines += _queues((*chosen, *filter(_has_unread, found.retry_queues if all_queues else ())), numbers)
    if len(chosen) < len(found.queues):
        lines.append(f"\nnot shown: {count_of(len(found.queues) - len(chosen), 'queue')}; --queues shows all")
    return lines


def _summary(found: GroupDescription) -> str:
    """Return the state of a group in one sentence."""
    how = [found.strategy] if found.strategy else []
    if found.hold_s:
        how.append(f"hold {found.hold_s:g} s")
    members = count_of(len(found.members), "member") + (f" ({', '.join(how)})" if how else "")
    if found.is_published and not found.members:
        members = "offsets published by a Spark query for monitoring"
    lag = "nothing unread"
    if found.lag:
        lag = f"{count_of(found.lag, found.lag_unit)} behind, the oldest stored {duration_of(found.lag_s)} ago"
    flying = f", {count_of(found.in_flight, 'message')} in flight" if found.in_flight else ""
    retrying = f", {count_of(found.retrying, 'message')} waiting for a retry" if found.retrying else ""
    dead = f", {count_of(found.dead_letters, 'dead letter')} stored" if found.dead_letters else ""
    if missing := sorted({away.broker_name for away in found.away} | found.unanswered.keys()):
        dead += f", dead letters of {', '.join(missing)} not counted"
    unseen = sum(away.queues for away in found.away)
    away = f", {count_of(unseen, 'queue')} of brokers that are away not counted" if unseen else ""
    return f"{found.group}: {members}, {lag}{flying}{retrying}{dead}{away}"


def _has_unread(queue: GroupQueueDescription) -> bool:
    return queue.lag > 0


def _worst(found: GroupDescription) -> list[GroupQueueDescription]:
    """Return the queues to look at first, sorted: unread and held ones and, if there are members, those without one."""
    suspects = [
        queue
        for queue in found.queues
        if queue.lag or queue.waiting or queue.holder or (found.members and found.strategy and not queue.owner)
    ]
    suspects.sort(key=lambda queue: (queue.owner is not None, -queue.lag_s, -queue.lag))
    return sorted(suspects[:FEW], key=lambda queue: queue.queue)


def _members(found: GroupDescription, numbers: Mapping[str, str]) -> Rows:
    """Show members by number, since the names of clients are too long for a column of the other table."""
    rows: list[Row] = [
        {
            "number": numbers[member.client_id],
            "member": member.client_id,
            "queues": len(member.queues),
            "lag": member.lag,
            "behind": duration_of(member.lag_s) if member.lag else None,
            "topics": ", ".join(member.topics),
            "seen_by": ", ".join(member.seen_by),
        }
        for member in found.members
    ]
    hidden = {"topics": not found.topics_differ, "seen_by": found.is_agreed}
    return Rows(_MEMBERS, rows, frozenset(column for column, is_hidden in hidden.items() if is_hidden))


def _queues(queues: Sequence[GroupQueueDescription], numbers: Mapping[str, str]) -> list[str | Rows]:
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
    topics = sorted({queue.queue.topic for queue in queues})
    if len(topics) > 1:
        return [Rows(_QUEUES, rows)]
    return [f"topic {topics[0]}:\n", Rows(_QUEUES, rows, frozenset({"topic"}))]


def _reader(queue: GroupQueueDescription, numbers: Mapping[str, str]) -> str:
    """Describe the reader of a queue, the members that wait for it, and its hold."""
    if queue.popped is not None and queue.owner is None:
        return _popped(queue.popped, numbers)
    said = "nobody" if queue.owner is None else numbers[queue.owner]
    if queue.held_for_s:
        said += f", held {duration_of(queue.held_for_s)}"
        if queue.holder and queue.holder in numbers:  # a member that has left has no number, and its name is too long
            said += f" for {numbers[queue.holder]}"
    if queue.waiting:
        said += f", {' '.join(numbers.get(client, client) for client in queue.waiting)} waits"
    return said


def _popped(popped: PoppedQueueDescription, numbers: Mapping[str, str]) -> str:
    """Describe the messages in flight by consumer, and the highest number of tries."""
    parts = [f"{count} with {numbers.get(client, 'others')}" for client, count in popped.holders.items()][:_HOLDERS]
    if popped.returned:
        parts.append(f"{popped.returned} waiting for a retry")
    if popped.most_tries > 1:
        parts.append(f"up to {popped.most_tries} tries")
    if popped.missed:
        parts.append(f"{popped.missed} deleted before they were settled")
    return ", ".join(parts) or "none in flight"


def time_to_expiry(expires_at: datetime | None, now: datetime) -> str | None:
    """Return the time until a group is deleted; None while that is too far ahead to show."""
    if expires_at is None or expires_at - now > _SOON:
        return None
    return duration_of((expires_at - now).total_seconds())


def say_target(to: Time) -> str:
    """Return where a reset leads, in words."""
    if isinstance(to, int):
        return f"offset {to:,}"
    words = {"earliest": "the earliest message", "latest": "the end"}
    return words.get(str(to), f"the first message stored since {to}")


def say_distances(new: Mapping[MessageQueue, int], now: Mapping[MessageQueue, int]) -> list[str]:
    """Return sentences about how far a reset moves a group."""
    moves = {queue: offset - now[queue] for queue, offset in new.items() if queue in now}
    back, ahead = -sum(each for each in moves.values() if each < 0), sum(each for each in moves.values() if each > 0)
    said = []
    if back:
        said.append(f"{count_of(back, 'message')} will be delivered again.")
    if ahead:
        said.append(f"{count_of(ahead, 'message')} will be passed over without being delivered.")
    if not back and not ahead:
        said.append("No queue moves: all are there already.")
    changed = sorted((queue for queue in moves if moves[queue]), key=lambda queue: (-abs(moves[queue]), queue))
    said += [
        f"{queue.broker_name}:{queue.queue_id} from {now[queue]:,} to {new[queue]:,}: {abs(moves[queue]):,} "
        f"{'back' if moves[queue] < 0 else 'ahead'}."
        for queue in changed[:_MOST_QUEUES]
    ]
    if len(changed) > _MOST_QUEUES:
        said.append(f"{len(changed) - _MOST_QUEUES:,} further queues move less far.")
    if fresh := len(new) - len(moves):
        said.append(f"In {count_of(fresh, 'queue')} the group has not begun, and will begin there.")
    return said


def view_groups(_admin: Admin, _given: Given, found: list[GroupDescription], _plan: Plan | None) -> View:
    """Return the list of groups."""
    keep = ("group", "is_published", "strategy", "dead_letters", "expires_at", "unanswered", "away")
    rows = [
        row_of(
            each,
            *("lag", "lag_s", "retrying"),
            keep=keep,
            members=len(each.members),
            topics=sorted({queue.queue.topic for queue in each.queues}),
        )
        for each in found
    ]
    shown = [
        {
            **row,
            "members": "published" if row["published"] and not row["members"] else row["members"],
            "behind": duration_of(row["lag_s"]) if row["lag"] else None,
            "expires_at": time_to_expiry(row["expires_at"], datetime.now(UTC)),
        }
        for row in rows
    ]
    without = frozenset(key for key in ("dead_letters", "expires_at") if not any(row[key] for row in shown))
    unanswered = {broker: reason for each in found for broker, reason in each.unanswered.items()}
    away = sorted({f"{away.broker_name}: {state_of(away)}" for each in found for away in each.away})
    notes = [*missing((), unanswered, "not counted"), *(f"{line}, its queues are not counted" for line in away)]
    return View(json=rows, lines=[Rows(_GROUPS, shown, without)], notes=notes)


def say_readers(admin: Admin, topic: str) -> str:
    """Return a sentence about the groups that read a topic."""
    groups = [each for each in admin.describe_groups() if any(queue.queue.topic == topic for queue in each.queues)]
    if not groups:
        return "No group reads it, as far as you may see."
    unread = sum(queue.lag for group in groups for queue in group.queues if queue.queue.topic == topic)
    names, count = listing([group.group for group in groups]), count_of(unread, "unread message")
    members = sum(len(group.members) for group in groups)
    connected = (
        f" {count_of(members, 'member')} of {'it' if len(groups) == 1 else 'them'} connected." if members else ""
    )
    if len(groups) == 1:
        return f"Group {names} reads it, and has {count} of it.{connected}"
    return f"Groups {names} read it, and have {count} of it.{connected}"
