"""Consumer groups: list and describe them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minimq.admin import values
from minimq.admin.group_descriptions import GroupDescription, GroupQueueDescription, group_from_wire
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import Arguments, Operation, Operations, method
from minimq.admin.problems import mebibytes
from minimq.admin.texts import duration_of, left_out, missing
from minimq.admin.views import Plan, PlanRow, Row, Rows, Table, View, columns, filled, row_of
from minimq.connection.offline_brokers import by_broker
from minimq_common.errors import GroupNotFound, MinimqError, Unsupported
from minimq_common.model import MessageQueue, OfflineBroker
from minimq_common.names import check_group, check_topic
from minimq_common.text_units import count_of
from minimq_proto.v1 import broker_pb2, work_queues_pb2

if TYPE_CHECKING:
    from minimq.admin.descriptions import TopicDescription

_GROUPS = Table(
    "no groups", columns("group members topics lag behind dead_letters expires_at", expires_at="Expires in")
)
_MEMBERS = Table(
    "no members", columns("number member queues lag behind topics seen_by", number="#", seen_by="Seen only by")
)
_GROUP = Table(
    "no groups",
    columns("group members strategy lag behind in_flight retrying dead_letters expires_at", expires_at="Expires in"),
)
_QUEUES = Table(
    "no queues",
    columns(
        "topic broker queue reader committed lag behind held waiting in_flight returned blocked_by", reader="Read by"
    ),
)
#: Columns that are hidden while they have no value.
_GROUP_RARE: Final = ("strategy", "in_flight", "retrying", "dead_letters", "expires_at")
_QUEUE_RARE: Final = ("held", "waiting", "in_flight", "returned", "blocked_by")

log = logging.getLogger(__name__)


def describe_lines(found: GroupDescription) -> list[str | Rows]:
    """Return tables of a group, its members, and its queues."""
    numbers = {member.client_id: f"#{number}" for number, member in enumerate(found.members, 1)}
    queues = (*found.queues, *(each for each in found.retry_queues if each.lag))
    lines: list[str | Rows] = [filled(_GROUP, [_shown_row(_group_row(found))], *_GROUP_RARE)]
    if found.members:
        lines += ["", _members(found, numbers)]
    return [*lines, "", filled(_QUEUES, [_queue_row(each, numbers) for each in queues], *_QUEUE_RARE)]


def _members(found: GroupDescription, numbers: Mapping[str, str]) -> Rows:
    """Number the members: client ids are too long for a column of the queue table."""
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


def _queue_row(queue: GroupQueueDescription, numbers: Mapping[str, str]) -> Row:
    row = {
        "topic": queue.queue.topic,
        "broker": queue.queue.broker_name,
        "queue": queue.queue.queue_id,
        "reader": numbers.get(queue.owner or ""),
        "committed": queue.committed_offset,
        "lag": queue.lag,
        "behind": duration_of(queue.lag_s) if queue.lag else None,
        "held": duration_of(queue.held_for_s) if queue.held_for_s else None,
        "waiting": [numbers.get(client, client) for client in queue.waiting],
        **dict.fromkeys(("in_flight", "returned", "blocked_by")),
    }
    if (popped := queue.work_queue) is not None:
        row |= {"in_flight": popped.in_flight, "returned": popped.returned}
        row["blocked_by"] = None if popped.blocking_offset is None else f"offset {popped.blocking_offset}"
    return row


def _group_row(found: GroupDescription) -> dict[str, Any]:
    return row_of(
        found,
        *("lag", "lag_s", "retrying", "in_flight"),
        keep=("group", "is_published", "strategy", "dead_letters", "expires_at", "unanswered", "offline"),
        members=len(found.members),
        topics=sorted({queue.queue.topic for queue in found.queues}),
    )


def _shown_row(row: dict[str, Any]) -> Row:
    expires_at = row["expires_at"]
    return {
        **row,
        "members": "published" if row["published"] and not row["members"] else row["members"],
        "behind": duration_of(row["lag_s"]) if row["lag"] else None,
        "expires_at": expires_at and duration_of((expires_at - datetime.now(UTC)).total_seconds()),
    }


def _view_groups(_admin: object, _given: Arguments, found: list[GroupDescription], _plan: Plan | None) -> View:
    rows = [_group_row(each) for each in found]
    unanswered = {broker: why for each in found for broker, why in each.unanswered.items()}
    offline = by_broker(broker for each in found for broker in each.offline)
    notes = [*left_out(offline, "its queues are not counted"), *missing((), unanswered, "not counted")]
    shown = filled(_GROUPS, [_shown_row(row) for row in rows], "dead_letters", "expires_at")
    return View(json=rows, lines=[shown], notes=notes)


# ---- Plans and results ------------------------------------------------------------------------------


def _view_description(_admin: object, _given: Arguments, found: GroupDescription, _plan: Plan | None) -> View:
    lost = sum(queue.lost for queue in found.queues)
    row = row_of(
        found,
        *("lag", "lag_unit", "lag_s", "retrying", "in_flight"),
        lost=lost,
        members=[
            {**row_of(each, "lag", "lag_s", keep=("client_id", "topics", "seen_by")), "queues": len(each.queues)}
            for each in found.members
        ],
        queues=[row_of(each, "lag") for each in found.queues],
        retry_queues=[row_of(each, "lag") for each in found.retry_queues],
    )
    notes = [
        *missing(found.offline, found.unanswered, "not counted"),
        *(
            f"broker {broker}: {mebibytes(size)} deleted before their time, as its disk was nearly full"
            for broker, size in found.deleted_early.items()
        ),
        *([f"{count_of(lost, 'offset')} of its topics were deleted before the group had read them"] if lost else []),
    ]
    return View(json=row, lines=describe_lines(found), notes=notes)


# ---- Operations -------------------------------------------------------------------------------------


class _Answers(NamedTuple):
    """The answers of all brokers about one group, by broker name."""

    found: Mapping[str, broker_pb2.DescribeGroupResponse]
    failed: Mapping[str, MinimqError]
    work_queues: Mapping[str, work_queues_pb2.DescribeWorkQueuesResponse]

    @property
    def is_known(self) -> bool:
        return any(answer.client_ids or answer.queues for answer in self.found.values())

    def description(
        self, group: str, now: datetime, offline: Callable[[str], Iterable[OfflineBroker]]
    ) -> GroupDescription:
        reasons = {broker: error.message for broker, error in self.failed.items()}
        return group_from_wire(group, self.found, reasons, now, offline, self.work_queues)


class GroupReads(Operations):
    """Lists and describes consumer groups; a part of `Admin`."""

    @method
    def list_groups(self) -> list[str]:
        """Return the names of all consumer groups that have members or committed offsets, sorted.

        A broker that does not answer is logged, and its groups are missing unless another broker knows them.
        """
        names, failures = self._names(self._masters.find(need="readable"))
        for broker, error in failures.items():
            log.warning("admin: groups unknown broker=%s reason=%s", broker, error)
        return names

    @Operation("group list", reads=True, view=_view_groups)
    def describe_groups(self) -> list[GroupDescription]:
        """List all consumer groups with their lag.

        "Lag" counts the messages that are not committed; "Behind" is the age of the oldest. In compacted topics, and if
        the group filters, "Lag" counts offsets. "Members" is "published" if a Spark query publishes its progress as
        this group. "Dead letters" counts the messages that failed too often; `minimq group describe` shows how to read
        them. Unused groups expire. Brokers that are offline or do not answer are not counted.
        """
        masters = self._masters.find(need="readable")
        asked = self._ask(self._names(masters)[0], masters)
        now, offline = datetime.now(UTC), self._masters.offline_lookup()
        # A group may have been deleted since it was listed.
        return [answers.description(group, now, offline) for group, answers in asked.items() if answers.is_known]

    @Operation("group describe", reads=True, example="group describe billing", view=_view_description)
    def describe_group(self, group: values.GroupName) -> GroupDescription:
        """Show the members of a group, the queues of each, and the lag.

        "Lag" counts the messages that are not committed; "Behind" is the age of the oldest. In compacted topics, and if
        the group filters, "Lag" counts offsets. JSON also has the epoch of the lease, the first offset and the end of
        each queue. "Held": the queue is reserved, at most for this time, until its former owner has saved its state.
        "Retrying": messages that wait for a retry. "Blocked by": the message that has to be settled before new ones are
        delivered. The queues of brokers that are offline or do not answer are missing.

        Raises:
            GroupNotFound: all brokers answered, and none knows the group.
            MinimqError: no broker that answered knows the group, but others did not answer.
        """
        masters = self._masters.find(need="readable")
        answers = self._ask([check_group(group)], masters)[group]
        if not answers.is_known:
            raise_failures(f"group {group} is not known", answers.failed, masters, "the others do not know it")
            raise group_not_found(group)
        return answers.description(group, datetime.now(UTC), self._masters.offline_lookup())

    @method
    def committed_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the committed offsets of a consumer group, sorted by queue; by default of all topics.

        Of a broker without a master, a slave answers: its offsets may be older, or may be lost with the next master.
        """
        request = broker_pb2.GetCommittedRequest(group=check_group(group), topic=check_topic(topic) if topic else "")
        asked = self._masters.find(need="readable")
        answers, failures = self._masters.call_all(asked, lambda stub: stub.GetCommitted, request)
        raise_failures(f"the offsets of group {group} are not known", failures, asked, "try again")
        offsets = {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }
        return dict(sorted(offsets.items()))

    # ---- Calls ----------------------------------------------------------------------------------

    def _readers(self, topic: TopicDescription) -> list[GroupDescription]:
        """Return the groups that read a topic, by the brokers that carry it."""
        carrying = {each.broker_name for each in topic.settings}
        masters = {name: at for name, at in self._masters.find(need="readable").items() if name in carrying}
        now = datetime.now(UTC)
        asked = self._ask(self._names(masters)[0], masters)
        found = (answers.description(group, now, lambda _: ()) for group, answers in asked.items())
        return [each for each in found if any(queue.queue.topic == topic.topic for queue in each.queues)]

    def _reader_rows(self, topic: TopicDescription) -> list[PlanRow]:
        """Return a row for each group that reads a topic that is deleted."""
        rows = []
        for group in self._readers(topic):
            lag = sum(queue.lag for queue in group.queues if queue.queue.topic == topic.topic)
            members = f"{count_of(len(group.members), 'member')} connected" if group.members else ""
            rows.append(PlanRow(f"unread by group {group.group}", lag, None, members))
        return rows

    def _names(self, masters: Mapping[str, str]) -> tuple[list[str], dict[str, MinimqError]]:
        request = broker_pb2.ListGroupsRequest()
        answers, failures = self._masters.call_all(masters, lambda stub: stub.ListGroups, request)
        if not answers:
            raise_failures("the groups are not known", failures, masters, "try again")
        return sorted({group for answer in answers.values() for group in answer.groups}), failures

    def _ask(self, groups: Sequence[str], masters: Mapping[str, str]) -> dict[str, _Answers]:
        asked = self._masters.call_about(
            groups, masters, lambda stub: stub.DescribeGroup, lambda name: broker_pb2.DescribeGroupRequest(group=name)
        )
        popped = self._masters.call_about(
            groups,
            masters,
            lambda stub: stub.of(work_queues_pb2).Describe,
            lambda name: work_queues_pb2.DescribeWorkQueuesRequest(group=name),
        )
        found = {}
        for group, (answers, failures) in asked.items():
            taken, unknown = popped[group]
            # A broker may have no work queues.
            unknown = {broker: error for broker, error in unknown.items() if not isinstance(error, Unsupported)}
            found[group] = _Answers(answers, {**unknown, **failures}, taken)
        return found


def group_not_found(group: str) -> GroupNotFound:
    return GroupNotFound(
        f"there is no group {group}: `minimq group list` shows the groups; a group that only absent brokers know "
        "comes back with them"
    )
