"""Consumer groups: list, describe, reset and delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from minimq.administration.activity import say_deleted_early
from minimq.administration.failures import raise_failures
from minimq.administration.group_descriptions import GroupDescription, GroupQueueDescription, group_from_wire
from minimq.operations import values
from minimq.operations.group_text import FEW, describe_lines, say_distances, say_target, view_groups
from minimq.operations.operation import (
    HIDDEN,
    AsyncOperations,
    Form,
    Given,
    Operation,
    Operations,
    Param,
    Plan,
    Rows,
    Table,
    View,
    asynchronous,
    columns,
    flag,
)
from minimq.operations.rows import away_rows, row_of
from minimq.operations.words import left_out, listing, missing
from minimq.transport.client_log import client_logger
from minimq_common.errors import GroupNotFound, InvalidArgument, MiniMQError
from minimq_common.model import AwayBroker, MessageQueue
from minimq_common.moments import Time
from minimq_common.names import check_group, check_topic, dead_letter_topic
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.words import count_of
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:
    from minimq.admin import Admin

log = client_logger(__name__)

_RESET = Table("no queues", columns("broker queue before after"))
_TO = Param(read=values.offset_or_moment, metavar="earliest|latest|TIME|OFFSET", is_option=True, is_required=True)
_QUEUE = Param(flag="--queue", metavar="BROKER:ID", read=values.queue)
_PAGE: Final = "/groups/{group}"


def manage_group(given: Given) -> Sequence[Need]:
    """Return the right to manage the group that is named."""
    return (Need(Verb.MANAGE, Resource.GROUP, check_group(given.group)),)


# ---- Plans and results ------------------------------------------------------------------------------


def _view_description(_admin: Admin, given: Given, found: GroupDescription, _plan: Plan | None) -> View:
    lost = sum(queue.lost for queue in found.queues)
    row = row_of(
        found,
        *("lag", "lag_unit", "lag_s", "retrying", "in_flight"),
        lost=lost,
        members=[
            {**row_of(each, "lag", "lag_s", keep=("client_id", "topics", "seen_by")), "queues": len(each.queues)}
            for each in found.members
        ],
        queues=[_queue_row(each) for each in found.queues],
        retry_queues=[_queue_row(each) for each in found.retry_queues],
    )
    notes = [
        *missing((), found.unanswered, "not counted"),
        *missing(found.away, {}, "not counted"),
        *(f"broker {broker}: {say_deleted_early(size)}" for broker, size in found.deleted_early.items()),
        *([f"{count_of(lost, 'offset')} of its topics went before the group had read them"] if lost else []),
    ]
    return View(json=row, lines=describe_lines(found, all_queues=given.all_queues), notes=notes)


def _queue_row(queue: GroupQueueDescription) -> dict[str, Any]:
    return row_of(queue, "lag")


def _reset_needs(given: Given) -> Sequence[Need]:
    read = (Need(Verb.READ, Resource.TOPIC, check_topic(given.topic)),) if given.topic else ()
    return (*manage_group(given), *read)


def _topic_choices(admin: Admin, given: Given) -> Mapping[str, Sequence[tuple[str, str]]]:
    topics = sorted({queue.queue.topic for queue in admin.describe_group(given.group).queues})
    if not topics:
        raise InvalidArgument(f"group {given.group} reads no topic yet: there is nothing to reset")
    return {"topic": [(each, each) for each in topics]}


def _plan_reset(admin: Admin, given: Given) -> Plan:
    group, topic, to = given.group, given.topic, given.to
    is_new = group not in admin.list_groups()
    if is_new and not given.new:
        raise GroupNotFound(
            f"there is no group {check_group(group)}: `minimq group list` shows the groups; add --new to set the "
            "start of a future group"
        )
    before = admin.committed_offsets(group, topic)
    described = None if is_new else admin.describe_group(group)
    reads = set() if described is None else {queue.queue.topic for queue in described.queues}
    for member in () if described is None else described.members:
        reads.update(member.topics)
    if not (given.new or before or topic in reads):
        raise GroupNotFound(
            f"group {group} has not read topic {topic} so far: `minimq group describe {group}` shows its topics; "
            "add --new to set its beginning in a new one"
        )
    after = admin.reset_offsets(group, topic, to, queues=given.queues, force=given.force, dry_run=True)
    sentences = [f"Group {group} goes on in topic {topic} at {say_target(to)}, in {count_of(len(after), 'queue')}."]
    sentences += say_distances(after, before)
    warnings = []
    if described is not None and described.members:
        names = listing([each.client_id for each in described.members])
        warnings.append(
            f"{count_of(len(described.members), 'member')} connected: {names}. They go on at the new offsets."
        )
    else:
        sentences.append("No member is connected.")
    away = () if described is None else described.away
    warnings += [f"Broker {each.broker_name} is away: its queues do not move." for each in away]
    return Plan(
        sentences=sentences,
        warnings=warnings,
        rows=_reset_rows(after, before),
        table=_RESET,
        # A time such as -2h is another one later.
        carried={"to": f"{round(to.timestamp() * 1000)}ms"} if isinstance(to, datetime) else {},
    )


def _reset_rows(after: Mapping[MessageQueue, int], before: Mapping[MessageQueue, int]) -> list[dict[str, object]]:
    return [
        {"broker": queue.broker_name, "queue": queue.queue_id, "before": before.get(queue), "after": offset}
        for queue, offset in after.items()
    ]


def _view_reset(admin: Admin, given: Given, after: Mapping[MessageQueue, int], plan: Plan | None) -> View:
    group, topic = given.group, given.topic
    before = {(row["broker"], row["queue"]): row["before"] for row in (plan.rows if plan else ())}
    rows = [{**row, "before": before.get((row["broker"], row["queue"]))} for row in _reset_rows(after, {})]
    is_new = bool(before) and not any(each is not None for each in before.values()) and given.new
    said = f"group {group} continues from these offsets in topic {topic}"
    if is_new:
        said = f"group {group} is new: when it starts, it begins here in topic {topic}"
    reset = {queue.broker_name for queue in after}
    away = () if given.queues else [each for each in admin.route(topic).away if each.broker_name not in reset]
    return View(json=rows, lines=[f"{said}\n", Rows(_RESET, rows)], notes=left_out(away, "not reset"))


def _plan_deletion(admin: Admin, given: Given) -> Plan:
    name = check_group(given.group)
    group = admin.describe_group(name)
    letters = count_of(group.dead_letters, "dead letter")
    topics = count_of(len({queue.queue.topic for queue in group.queues}), "topic")
    warnings = ["A group that uses the name later is a new one, and begins elsewhere. It cannot be taken back."]
    if group.members:
        fate = "they start over." if given.force else "it is refused until they have ended."
        warnings.append(f"{count_of(len(group.members), 'member')} connected: {fate}")
    return Plan(
        sentences=[
            f"Deletes group {name} with its offsets in {count_of(len(group.queues), 'queue')} of {topics}, and "
            f"{count_of(group.retrying, 'message')} that wait for a retry.",
            f"It has {count_of(group.lag, 'unread message')}, which stay in their topics.",
            f"Its {letters} go as well." if given.dead_letters else f"Its {letters} stay.",
        ],
        warnings=warnings,
        question=f"Delete group {name}?",
    )


def _view_deletion(admin: Admin, given: Given, away: Sequence[AwayBroker], _plan: Plan | None) -> View:
    kept = dead_letter_topic(given.group)
    is_kept = kept in admin.list_topics()
    return View(
        json={"group": given.group, "away": away_rows(away)},
        lines=[f"group {given.group} deleted" + (f"; its dead letters are kept in topic {kept}" if is_kept else "")],
        notes=left_out(away, "brings the group back when it starts, if it knows the group: then delete it again"),
    )


# ---- Operations -------------------------------------------------------------------------------------


class _Answers(NamedTuple):
    """The answers of all brokers about one group, by broker name."""

    found: Mapping[str, broker_pb2.DescribeGroupResponse]
    failed: Mapping[str, MiniMQError]

    @property
    def is_known(self) -> bool:
        return any(answer.client_ids or answer.queues for answer in self.found.values())

    def description(self, group: str, now: datetime, away: Callable[[str], Iterable[AwayBroker]]) -> GroupDescription:
        reasons = {broker: error.message for broker, error in self.failed.items()}
        return group_from_wire(group, self.found, reasons, now, away)


class GroupOperations(Operations):
    """Lists, describes, resets and deletes consumer groups; users have it as `Admin`."""

    def list_groups(self) -> list[str]:
        """Return the names of all consumer groups that have members or committed offsets, sorted.

        A broker that does not answer is logged, and its groups are missing unless another broker knows them.

        Raises:
            MiniMQError: not one master answered.
        """
        names, failures = self._names(self._masters.find_readable())
        for broker, error in failures.items():
            log.warning("admin: groups unknown broker=%s reason=%s", broker, error)
        return names

    @Operation("group list", example="group list", view=view_groups)
    def describe_groups(self) -> list[GroupDescription]:
        """List all consumer groups with their lag.

        "Lag" counts the messages that are not committed, "Behind" is the age of the oldest of them. In compacted
        topics, and where the group filters, "Lag" counts offsets.
        "Members" is "published" where a Spark query publishes its
        progress for monitoring. "Dead letters" counts the messages that failed too often; `minimq group describe` shows
        how to read them. A group that nobody uses expires: "Expires in" shows the last two days. If a broker does not
        answer, its part is missing.

        Raises:
            MiniMQError: not one master answered.
        """
        masters = self._masters.find_readable()
        names, _ = self._names(masters)
        asked = self._ask(names, masters)
        now, away = datetime.now(UTC), self._masters.away_lookup()
        # A group that was known a moment ago may be gone.
        return [answers.description(group, now, away) for group, answers in asked.items() if answers.is_known]

    @Operation(
        "group describe",
        example="group describe billing",
        view=_view_description,
        flags=[flag("all_queues", f"Show all queues, not only the {FEW} most important ones.", "--queues")],
        can_watch=True,
        short="Show the members of a group, the queues of each, and the lag.",
    )
    def describe_group(self, group: values.GroupName) -> GroupDescription:
        """Show the members of a consumer group, the queues of each, and the lag.

        "Lag" counts the messages that are not committed, "Behind" is the age of the oldest of them. In compacted
        topics, and where the group filters, "Lag" counts offsets.
        The table shows the queues that nobody reads and those that
        are furthest behind. JSON always has all queues, with the epoch of the lease, the first offset and the end of
        each. A "held" queue waits for its former owner to save its state, at most for the time shown. Messages that
        wait for a retry are counted separately. The queues of brokers that are away or do not answer are missing.

        Args:
            group: its name.

        Raises:
            GroupNotFound: all brokers answered, and none knows the group.
            MiniMQError: no broker that answered knows the group, but others did not answer.
        """
        masters = self._masters.find_readable()
        answers = self._ask([check_group(group)], masters)[group]
        if not answers.is_known:
            raise_failures(f"group {group} is not known", answers.failed, masters, "the others do not know it")
            raise _not_found(group)
        return answers.description(group, datetime.now(UTC), self._masters.away_lookup())

    @Operation(
        "group reset-offset",
        example="group reset-offset billing orders --to earliest",
        needs=_reset_needs,
        plan=_plan_reset,
        view=_view_reset,
        plans_first=True,
        flags=[flag("new", "Accept a group that does not exist yet, or has not read the topic so far.")],
        forms=[
            Form(
                action="reset-offsets",
                path="/groups/{group}/reset",
                page=_PAGE,
                title="Reset the offsets of group {group}",
                label="Reset offsets",
                fields={
                    "topic": "Topic",
                    "to": "Go on at",
                    "queues": "Only these queues",
                    "force": "Also while members are connected",
                },
                choices=_topic_choices,
                defaults=lambda *_: {"to": "earliest"},
                typed="group",
            )
        ],
        short="Move a group to other offsets in a topic.",
    )
    def reset_offsets(
        self,
        group: values.GroupName,
        topic: values.TopicName,
        to: Annotated[Time, _TO] = "earliest",
        *,
        queues: Annotated[Iterable[MessageQueue] | None, _QUEUE] = None,
        force: bool = False,
        dry_run: Annotated[bool, HIDDEN] = False,
    ) -> dict[MessageQueue, int]:
        """Move a consumer group in a topic to the beginning, the end, a time or an offset.

        It is refused while members of the group are connected, unless `force` is given: they then continue at the new
        offset, and messages in flight may be redelivered. It is also refused while a broker of the topic is away;
        `force`, or `queues`, resets the queues of the others.

        Args:
            group: its name.
            topic: its name.
            to: where the group continues: the beginning, the end, the first message stored at or after a time, or an
                offset, which each queue must have. A time is 2026-01-31T08:00Z, with a time zone, or before now: -24h,
                -90m, -7d; or 1769846400000ms since 1970.
            queues: only this queue; may be given several times. None for all queues of the topic.
            force: reset even while members are connected, queues are held, or a broker of the topic is away.
            dry_run: check everything and return the new offsets, but change nothing.

        Returns:
            The new offsets by queue, sorted.

        Raises:
            GroupConflict: members are connected, or queues are held for some; the text names them.
            TopicNotFound, QueueNotFound: there is no such topic or queue.
            OffsetOutOfRange: one of the queues does not store the offset.
            InvalidArgument: an argument is invalid.
            Unavailable: a broker that carries the topic is away or has no master now; the text names it, and nothing
                was changed.
            SystemBusy: the name servers have just started, and do not know all brokers yet.
            MiniMQError: a broker failed; the text names it, and the brokers that are done.
        """
        from minimq.administration.resets import Reset, ids_by_broker, reset_request

        request = reset_request(check_group(group), check_topic(topic), to, force)
        named = None if queues is None else [_of_topic(topic, queue) for queue in queues]
        chosen = None if named is None else ids_by_broker(topic, named)
        reset = Reset(self._masters, request, chosen)
        offsets = reset.run(dry_run=dry_run)
        return dict(sorted(offsets.items()))

    @Operation(
        "group delete",
        example="group delete billing --yes",
        needs=manage_group,
        plan=_plan_deletion,
        view=_view_deletion,
        is_destructive=True,
        forms=[
            Form(
                action="delete-group",
                path="/groups/{group}/delete",
                page=_PAGE,
                to="/groups",
                title="Delete group {group}",
                label="Delete",
                fields={"dead_letters": "Delete its dead letters as well"},
                typed="group",
            )
        ],
        short="Delete a group: its offsets, and messages that wait for a retry.",
    )
    def delete_group(
        self,
        group: values.GroupName,
        *,
        dead_letters: bool = False,
        force: bool = False,
        wait: Annotated[bool, HIDDEN] = True,
    ) -> tuple[AwayBroker, ...]:
        """Delete a consumer group: its offsets, and the messages that wait for a retry.

        A group that later uses this name is a new group. It is refused, unless `force` is given, while members are
        connected or a broker is away, which would bring the group back when it starts. Brokers automatically delete a
        group that is unused for a week (--group-expiry).

        Args:
            group: its name.
            dead_letters: delete its dead letters as well; by default they are kept.
            force: delete even while members are connected, which will start over, or brokers are away, which will bring
                the group back.
            wait: return only when no reachable name server shows the topics of the group.

        Returns:
            The brokers that are away, and will bring the group back if they know it: then delete it again.

        Raises:
            GroupNotFound: no broker knows it.
            GroupConflict: members are connected, or queues are held for some; the text names them.
            Unavailable: a broker is away or has no master now; the text names it, and nothing was changed.
            MiniMQError: a broker failed; the text says which. Repeat the call to complete the deletion.
        """
        request = broker_pb2.DeleteGroupRequest(group=check_group(group), force=force, dead_letters=dead_letters)
        from minimq.administration.live_members import DELETION, refuse_if_live

        masters = self._masters.find_all()
        if not force:
            remedy = "delete it on the others with force (--force)"
            self._masters.refuse_if_away(f"group {group} was not deleted", remedy)
            refuse_if_live(self._masters, group, masters, DELETION)
        answers, failures = self._masters.call_all(masters, lambda stub: stub.DeleteGroup, request)
        raise_failures(f"group {group} was not deleted", failures, masters, "repeat the call to complete it")
        versions = {broker: item.data_version for broker, item in answers.items() if item.deleted}
        if not versions:
            raise _not_found(group)
        if wait:
            self._masters.wait_until_shown(versions, gone=True)
        return tuple(each for each in self._masters.away() if each.broker_name not in versions)

    def committed_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the committed offsets of a consumer group, sorted by queue; by default of all topics.

        Raises:
            MiniMQError: a broker failed; the text says which.
        """
        request = broker_pb2.GetCommittedRequest(group=check_group(group), topic=check_topic(topic) if topic else "")
        asked = self._masters.find_readable()
        answers, failures = self._masters.call_all(asked, lambda stub: stub.GetCommitted, request)
        raise_failures(f"the offsets of group {group} are not known", failures, asked, "try again")
        offsets = {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }
        return dict(sorted(offsets.items()))

    # ---- Looking --------------------------------------------------------------------------------

    def _names(self, masters: Mapping[str, str]) -> tuple[list[str], dict[str, MiniMQError]]:
        request = broker_pb2.ListGroupsRequest()
        answers, failures = self._masters.call_all(masters, lambda stub: stub.ListGroups, request)
        if not answers:
            raise_failures("the groups are not known", failures, masters, "try again")
        return sorted({group for answer in answers.values() for group in answer.groups}), failures

    def _ask(self, groups: Sequence[str], masters: Mapping[str, str]) -> dict[str, _Answers]:
        keys = [(group, broker) for group in groups for broker in masters]
        answers, failures = self._masters.call_all(
            {key: masters[key[1]] for key in keys},
            lambda stub: stub.DescribeGroup,
            {key: broker_pb2.DescribeGroupRequest(group=key[0]) for key in keys},
        )
        return {
            group: _Answers(
                {broker: answers[group, broker] for broker in masters if (group, broker) in answers},
                {broker: failures[group, broker] for broker in masters if (group, broker) in failures},
            )
            for group in groups
        }


def _not_found(group: str) -> GroupNotFound:
    return GroupNotFound(
        f"there is no group {group}: `minimq group list` shows the groups; a group that only absent brokers know "
        "comes back with them"
    )


def _of_topic(topic: str, queue: MessageQueue) -> MessageQueue:
    return queue if queue.topic else MessageQueue(topic, queue.broker_name, queue.queue_id)


class AsyncGroupOperations(AsyncOperations):
    """The same for `minimq.aio.Admin`."""

    list_groups = asynchronous(GroupOperations.list_groups)
    describe_groups = asynchronous(GroupOperations.describe_groups)
    describe_group = asynchronous(GroupOperations.describe_group)
    reset_offsets = asynchronous(GroupOperations.reset_offsets)
    delete_group = asynchronous(GroupOperations.delete_group)
    committed_offsets = asynchronous(GroupOperations.committed_offsets)
