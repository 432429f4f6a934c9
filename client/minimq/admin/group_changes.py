"""Operations that reset and delete consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Final

from minimq.admin import values
from minimq.admin.groups import GroupReads, group_not_found
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import HIDDEN, Arguments, Form, Operation, Param, flag
from minimq.admin.texts import listing
from minimq.admin.views import Plan, PlanRow, View, offline_plan_rows
from minimq.consuming.start_position import offset_or_start
from minimq_common.errors import (
    GroupConflict,
    GroupNotFound,
    InvalidArgument,
    MinimqError,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import MessageQueue, OfflineBroker
from minimq_common.names import check_group, check_topic, dead_letter_topic, retry_topic
from minimq_common.text_units import count_of
from minimq_common.timestamps import MIN_MS, Time
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:
    from minimq.admin.master_client import MasterClient

_TO = Param(read=values.offset_or_moment, metavar="earliest|latest|TIME|OFFSET", is_option=True, is_required=True)
_QUEUE = Param(flag="--queue", metavar="BROKER:ID", read=values.queue)
_PAGE: Final = "/groups/{group}"

_DELETE_ON_OTHERS = "delete on the others with force (--force)"

#: Maximum number of names that an error lists.
_NAMED = 5


# ---- Plans and results ------------------------------------------------------------------------------


def _topic_choices(admin: GroupOperations, given: Arguments) -> Mapping[str, Sequence[tuple[str, str]]]:
    topics = sorted({queue.queue.topic for queue in admin.describe_group(given.group).queues})
    if not topics:
        raise InvalidArgument(f"group {given.group} reads no topic yet: there is nothing to reset")
    return {"topic": [(each, each) for each in topics]}


def _plan_reset(admin: GroupOperations, given: Arguments) -> Plan:
    group, topic = check_group(given.group), given.topic
    described = admin.describe_group(group) if group in admin.list_groups() else None
    members = () if described is None else described.members
    queues = () if described is None else (*described.queues, *described.retry_queues)
    reads = {each.queue.topic for each in queues}.union(*(member.topics for member in members))
    if not given.new and topic not in reads:
        raise GroupNotFound(
            f"group {group} has not read topic {topic} so far: `minimq group list` shows the groups, and `minimq group "
            "describe` the topics of one; add --new to set its beginning in a new one"
        )
    after = admin.reset_offset(group, topic, given.to, queues=given.queues, force=given.force, dry_run=True)
    before = {each.queue: each for each in queues if each.committed_offset is not None}
    rows, skipped = list[PlanRow](), 0
    for queue, offset in after.items():
        if (old := before.get(queue)) is None:
            rows.append(PlanRow(str(queue), None, offset, "the group begins here"))
            continue
        # Messages that were deleted before the group had read them are not skipped by the reset.
        ahead = offset - max(old.committed_offset or 0, old.min_offset)
        note = f"{ahead:,} skipped without delivery" if ahead > 0 else f"{-ahead:,} delivered again" if ahead else ""
        rows.append(PlanRow(str(queue), old.committed_offset, offset, note))
        skipped += max(ahead, 0)
    if members:
        names = listing([each.client_id for each in members])
        rows.append(PlanRow("connected members", len(members), len(members), f"go on at the new offsets: {names}"))
    silent = described.unanswered if described is not None else ()
    rows += [PlanRow(f"members on {broker}", note="does not answer: they are not counted") for broker in silent]
    if not given.queues:
        reset = {queue.broker_name for queue in after}
        offline = [each for each in admin._masters.offline(topic) if each.broker_name not in reset]
        rows += offline_plan_rows(topic, offline, "not reset")
    return Plan(rows=rows, is_harmless=not skipped)


def _view_reset(_admin: object, _given: Arguments, after: Mapping[MessageQueue, int], plan: Plan) -> View:
    offsets = {str(queue): offset for queue, offset in after.items()}
    return plan.view([replace(row, then=offsets.get(row.what, row.then)) for row in plan.rows])


def _plan_deletion(admin: GroupOperations, given: Arguments) -> Plan:
    if _is_pattern(given.group):
        names = _matching(admin, given.group)
        if not given.force:
            admin._masters.reject_if_offline(f"groups {given.group} were not deleted", _DELETE_ON_OTHERS)
        note = f"its dead letters {'go as well' if given.dead_letters else 'stay'}"
        rows = [PlanRow(f"group {name}", "exists", None, note) for name in names]
    else:
        admin._to_delete_group(check_group(given.group), force=given.force)
        rows = _deletion_rows(admin, given.group, dead_letters=given.dead_letters)
    back = "brings the group back when it starts, if it knows it: then delete it again"
    return Plan(rows=[*rows, *offline_plan_rows("group", admin._masters.offline(), back)])


def _deletion_rows(admin: GroupOperations, name: str, *, dead_letters: bool) -> list[PlanRow]:
    """Return what the deletion of a group removes. Raises `GroupNotFound` if nothing is left of it."""
    try:
        group = admin.describe_group(name)
    except GroupNotFound:  # its members and offsets are gone, or you may see none of its topics
        own = {retry_topic(name), *([dead_letter_topic(name)] if dead_letters else [])}
        left = sorted(own.intersection(admin._masters.topic_names()))
        if name not in admin.list_groups() and not left:
            raise
        return [PlanRow(f"group {name}", "exists", None, ", ".join(f"topic {each}" for each in left))]
    letters = group.dead_letters
    kept = PlanRow(f"dead letters of {name}", letters, letters, f"stay in topic {dead_letter_topic(name)}")
    return [
        PlanRow(f"offsets of {name}", len(group.queues), None, "a group that uses the name later is a new one"),
        PlanRow(f"unread by {name}", group.lag, None, "the messages stay in their topics"),
        PlanRow(f"waiting for a retry by {name}", group.retrying),
        replace(kept, then=None, note="") if dead_letters else kept,
        *([PlanRow(f"members of {name}", len(group.members), None, "they start over")] if group.members else []),
    ]


def _is_pattern(group: str) -> bool:
    return "*" in group


def _matching(admin: GroupReads, pattern: str) -> list[str]:
    check_group(pattern.replace("*", "x"))
    # Without the other special characters of `fnmatch`, which no name has.
    found = [name for name in admin.list_groups() if fnmatchcase(name, pattern)]
    if not found:
        raise GroupNotFound(f"no group matches {pattern}: `minimq group list`")
    return found


# ---- Operations -------------------------------------------------------------------------------------


class GroupOperations(GroupReads):
    """Lists, describes, resets and deletes consumer groups; a part of `Admin`."""

    @Operation(
        "group reset-offset",
        example="group reset-offset billing orders --to earliest",
        plan=_plan_reset,
        view=_view_reset,
        asks="Reset group {group} in topic {topic}, and skip messages?",
        flags=[flag("new", "Accept a group that does not exist yet, or has not read the topic so far.")],
        forms=[
            Form(
                "reset-offsets",
                _PAGE,
                "Reset the offsets of group {group}",
                "Reset offsets",
                fields={
                    "topic": "Topic",
                    "to": "Go on at",
                    "queues": "Only these queues",
                    "force": "Also while members are connected",
                },
                typed="group",
                defaults=lambda *_: {"to": "earliest"},
                choices=_topic_choices,
            )
        ],
    )
    def reset_offset(
        self,
        group: values.GroupName,
        topic: values.TopicName,
        to: Annotated[Time, _TO] = "earliest",
        *,
        queues: Annotated[Iterable[MessageQueue] | None, _QUEUE] = None,
        force: bool = False,
        dry_run: Annotated[bool, HIDDEN] = False,
    ) -> dict[MessageQueue, int]:
        """Move a consumer group to other offsets in a topic.

        It continues at the beginning, the end, a time or an offset. Without `force` it is rejected while members of the
        group are connected. With it, they continue at the new offset, and messages in flight may be redelivered. It is
        also rejected while a broker of the topic is offline; `force` or `queues` resets the queues of the others.

        Args:
            group: its name.
            topic: its name.
            to: where the group continues: at the beginning, the end, the first message stored at or after a time, or an
                offset that each queue must have. A time is "2026-01-31T08:00Z", with a time zone, or before now:
                "-24h", "-90m", "-7d"; or "1769846400000ms" since 1970.
            queues: only these queues; all queues of the topic by default.
            force: reset even while members are connected, queues are held, or a broker of the topic is offline.
            dry_run: check everything and return the new offsets, but change nothing.

        Returns:
            The new offsets by queue, sorted.

        Raises:
            GroupConflict: members are connected, or queues are held for some; the text names them.
            TopicNotFound, QueueNotFound: there is no such topic or queue.
            OffsetOutOfRange: one of the queues does not store the offset.
            Unavailable: a broker that carries the topic is offline or has no master now; the text names it, and nothing
                was changed.
        """
        chosen = None if queues is None else _ids_by_broker(check_topic(topic), queues)
        request = broker_pb2.ResetOffsetsRequest(group=check_group(group), topic=check_topic(topic), force=force)
        target = offset_or_start(to, "to")
        if isinstance(target, int):
            request.offset = target
        else:
            request.start.CopyFrom(target)
        return dict(sorted(self._reset(request, chosen, dry_run=dry_run).items()))

    def _reset(
        self, request: broker_pb2.ResetOffsetsRequest, chosen: Mapping[str, Sequence[int]] | None, *, dry_run: bool
    ) -> dict[MessageQueue, int]:
        """Reset all queues of a topic, or those in `chosen`. Checks all brokers before it changes the first."""
        group, topic = request.group, request.topic

        def check_offline() -> None:
            if chosen or not request.force:
                what = f"group {group} was not reset in topic {topic}"
                remedy = "choose queues of other brokers (--queue), or all of them with force (--force)"
                self._masters.reject_if_offline(what, remedy, topic=topic, names=chosen or ())

        masters, described = self._masters.before_offline(lambda: self._masters_of(topic, chosen), check_offline)
        ids = chosen or {broker: [] for broker in masters}
        offset = request.offset if request.WhichOneof("to") == "offset" else None
        found = _statuses(topic, ids, described, offset)
        if not request.force:
            _reject_if_live(self._masters, group, masters, "reset", "they then continue at the new offset", topic, ids)
        if dry_run:
            at = {broker_pb2.START_AT_EARLIEST: "min_offset", broker_pb2.START_AT_LATEST: "max_offset"}
            if offset is None and request.start.at not in at:
                return self._masters.offsets_at(found, request.start.timestamp_ms, masters)
            return {
                queue: getattr(status, at[request.start.at]) if offset is None else offset
                for queue, status in found.items()
            }
        requests = {broker: broker_pb2.ResetOffsetsRequest(queue_ids=ids[broker]) for broker in masters}
        for each in requests.values():
            each.MergeFrom(request)
        answers, failures = self._masters.call_all(masters, lambda stub: stub.ResetOffsets, requests)
        done = f"done on {', '.join(answers)}: " if answers else ""
        remedy = f"{done}repeat the call to complete it"
        raise_failures(f"the offsets of group {group} were not reset", failures, masters, remedy)
        return {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }

    def _masters_of(
        self, topic: str, chosen: Iterable[str] | None
    ) -> tuple[dict[str, str], dict[str, broker_pb2.DescribeTopicResponse]]:
        masters = self._masters.find()
        asked = masters if chosen is None else {broker: masters[broker] for broker in chosen if broker in masters}
        described = self._masters.describe(topic, asked)
        # The route also lists brokers without a master.
        carriers = sorted({*described, *self._routed(topic)})
        if not carriers:
            raise TopicNotFound.nowhere(topic)
        wanted = carriers if chosen is None else list(chosen)
        absent = [broker for broker in wanted if broker not in carriers]
        if absent:
            raise QueueNotFound(f"topic {topic} is not on {', '.join(absent)}: it is on {', '.join(carriers)}")
        missing = [broker for broker in wanted if broker not in described]
        if missing:
            raise Unavailable(
                f"topic {topic} is also on {', '.join(missing)}, which has no master now: nothing was changed; start "
                "it, or choose queues of other brokers"
            )
        return {broker: masters[broker] for broker in wanted}, described

    def _routed(self, topic: str) -> list[str]:
        try:
            return [data.broker_name for data in self._masters.route(topic).queues]
        except TopicNotFound:
            return []  # the topic may be too new for the route, and masters carry it already

    @Operation(
        "group delete",
        example="group delete 'test-*' --yes",
        plan=_plan_deletion,
        asks="Delete group {group}?",
        forms=[
            Form(
                "delete-group",
                _PAGE,
                "Delete group {group}",
                "Delete",
                to="/groups",
                fields={"dead_letters": "Delete its dead letters as well"},
                typed="group",
            )
        ],
    )
    def delete_group(
        self, group: values.GroupName, *, dead_letters: bool = False, force: bool = False
    ) -> tuple[OfflineBroker, ...]:
        """Delete a consumer group.

        Its offsets, and the messages that wait for a retry, go with it. A group that uses the name later is a new one.
        Without `force` the deletion is rejected while members are connected, or while a broker is offline: it would
        bring the group back when it starts. Brokers delete a group by themselves when it is unused for a week
        (--group-expiry).

        Args:
            group: its name, or a pattern such as "test-*", for all groups that match.
            dead_letters: delete its dead letters as well; by default they are kept.
            force: delete even while members are connected, which then start over, or brokers are offline, which bring
                the group back.

        Returns:
            The brokers that are offline, and will bring the group back if they know it: then delete it again.

        Raises:
            GroupNotFound: no broker knows it.
            GroupConflict: members are connected, or queues are held for some; the text names them.
        """
        if _is_pattern(group):
            return self._delete_matching(group, dead_letters=dead_letters, force=force)
        request = broker_pb2.DeleteGroupRequest(group=check_group(group), force=force, dead_letters=dead_letters)
        masters = self._to_delete_group(group, force=force)
        offline = self._masters.offline()
        answers = self._masters.delete(f"group {group}", masters, lambda stub: stub.DeleteGroup, request)
        deleted = [broker for broker, answer in answers.items() if answer.deleted]
        if not deleted:
            raise group_not_found(group)
        return tuple(each for each in offline if each.broker_name not in deleted)

    def _delete_matching(self, pattern: str, **how: bool) -> tuple[OfflineBroker, ...]:
        offline: dict[OfflineBroker, None] = {}
        groups = _matching(self, pattern)
        for number, group in enumerate(groups, 1):
            try:
                offline |= dict.fromkeys(self.delete_group(group, **how))
            except GroupNotFound:  # another command, or its expiry, was faster
                continue
            except MinimqError as error:
                done = f"{number - 1} of {count_of(len(groups), 'group')} were deleted, the others are left"
                raise error.with_message(f"{done}: {error.message}") from None
        return tuple(offline)

    def _to_delete_group(self, group: str, *, force: bool) -> dict[str, str]:
        """Return the masters on which to delete the group. Raises as `delete_group`."""
        masters = self._masters.find(need="all")
        if not force:
            self._masters.reject_if_offline(f"group {group} was not deleted", _DELETE_ON_OTHERS)
            _reject_if_live(self._masters, group, masters, "delete it", "they then start over")
        return masters


def _ids_by_broker(topic: str, queues: Iterable[MessageQueue]) -> dict[str, list[int]]:
    ids: dict[str, list[int]] = {}
    for queue in sorted(set(queues)):
        if queue.topic not in ("", topic):
            raise InvalidArgument(f"queue {queue} is not one of topic {topic}")
        ids.setdefault(queue.broker_name, []).append(queue.queue_id)
    if not ids:
        raise InvalidArgument("queues is empty: name some, or leave it out for all")
    return ids


def _statuses(
    topic: str,
    ids: Mapping[str, Sequence[int]],
    described: Mapping[str, broker_pb2.DescribeTopicResponse],
    offset: int | None,
) -> dict[MessageQueue, broker_pb2.QueueStatus]:
    """Return the selected queues. Raises `OffsetOutOfRange` unless all of them have the offset."""
    found, outside = {}, []
    for broker, chosen in ids.items():
        known = {status.queue_id: status for status in described[broker].queues}
        for queue_id in chosen or known:
            queue = MessageQueue(topic, broker, queue_id)
            if queue_id not in known:
                raise QueueNotFound(
                    f"there is no queue {queue}: {broker} has {count_of(len(known), 'queue')} of the topic"
                )
            status = found[queue] = known[queue_id]
            if offset is not None and not status.min_offset <= offset <= status.max_offset:
                outside.append(f"{queue} ({status.min_offset} to {status.max_offset})")
    if outside:
        remedy = "choose the queues that have it (--queue)"
        if offset is not None and offset >= MIN_MS:
            remedy = f"if it is a time, in milliseconds since 1970, write {offset}ms"
        raise OffsetOutOfRange(f"offset {offset} is not in {listing(outside, _NAMED)}: nothing was changed; {remedy}")
    return found


def _reject_if_live(
    masters: MasterClient,
    group: str,
    addresses: Mapping[str, str],
    action: str,
    consequence: str,
    topic: str = "",
    ids: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Raise `GroupConflict` if members are connected, or queues are held for members that have left."""
    request = broker_pb2.DescribeGroupRequest(group=group)
    answers, failures = masters.call_all(addresses, lambda stub: stub.DescribeGroup, request)
    raise_failures(f"group {group} cannot be looked up", failures, addresses, "nothing was changed")
    if action == "reset" and any(answer.published for answer in answers.values()):
        raise GroupConflict(
            f"group {group} is the published progress of a Spark query (option consumerGroup), which never reads it: "
            "to read elsewhere, start the query with startingOffsets and another checkpointLocation"
        )
    connected = sorted({client_id for answer in answers.values() for client_id in answer.client_ids})
    if connected:
        raise GroupConflict(
            f"members of group {group} are connected: {listing(connected, _NAMED)}; stop them first, or {action} "
            f"with force (--force): {consequence}"
        )
    held = [
        f"{MessageQueue(item.topic, broker, item.queue_id)} for {item.holder}"
        for broker, answer in answers.items()
        for item in answer.queues
        if item.holder and topic in ("", item.topic) and (not ids or not ids[broker] or item.queue_id in ids[broker])
    ]
    if held:
        raise GroupConflict(
            f"queues of group {group} are held for members that have left: {listing(held, _NAMED)}; wait until the "
            f"handover timeout ends, or {action} with force (--force)"
        )
