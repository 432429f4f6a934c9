"""The part of `Admin` that concerns consumer groups."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from minimq.administration.fan_out import raise_failures
from minimq.administration.group_descriptions import GroupDescription, group_from_wire
from minimq.administration.masters import Masters
from minimq_common.errors import (
    GroupConflict,
    GroupNotFound,
    InvalidArgument,
    MiniMQError,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import MessageQueue
from minimq_common.names import check_group, check_topic
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Members and queues that an error names.
_NAMED = 5

#: Where a group is to go on: the beginning or the end of each queue, a moment, or an offset.
ResetTo = Literal["earliest", "latest"] | datetime | int


class _Answers(NamedTuple):
    """What was answered when all brokers were asked about one group, by broker name."""

    found: Mapping[str, broker_pb2.DescribeGroupResponse]
    failed: Mapping[str, MiniMQError]

    @property
    def is_known(self) -> bool:
        return any(answer.client_ids or answer.queues for answer in self.found.values())

    def description(self, group: str, now: datetime) -> GroupDescription:
        reasons = {broker: error.message for broker, error in self.failed.items()}
        return group_from_wire(group, self.found, reasons, now)


class GroupAdmin:
    """Lists and describes consumer groups and lets them go on elsewhere; users have it as `Admin`."""

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

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

    def describe_groups(self) -> list[GroupDescription]:
        """Return what all groups look like, sorted by name; raises as `list_groups` does."""
        masters = self._masters.find_readable()
        names, _ = self._names(masters)
        asked = self._ask(names, masters)
        now = datetime.now(UTC)
        # One that was known a moment ago may be gone.
        return [answers.description(group, now) for group, answers in asked.items() if answers.is_known]

    def describe_group(self, group: str) -> GroupDescription:
        """Return who is in a group, who reads which queue, and what is unread.

        A broker that does not answer is named in `unanswered`, with the reason, and its queues are missing. One that
        no name server lists any more is missing altogether.

        Raises:
            GroupNotFound: all brokers answered, and none knows the group.
            MiniMQError: no broker that answered knows the group, but others did not answer.
        """
        masters = self._masters.find_readable()
        answers = self._ask([check_group(group)], masters)[group]
        if not answers.is_known:
            raise_failures(f"group {group} is not known", answers.failed, masters, "the others do not know it")
            raise GroupNotFound(
                f"there is no group {group}: `minimq group list` shows those there are; one that only brokers know "
                "which are away comes back with them"
            )
        return answers.description(group, datetime.now(UTC))

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: ResetTo = "earliest",
        *,
        queues: Iterable[MessageQueue] | None = None,
        force: bool = False,
    ) -> dict[MessageQueue, int]:
        """Let a group go on elsewhere in a topic, which also a group may be told that has not begun yet.

        It is refused while members are connected, or queues are held for some that have just left. With `force` members
        lose the queues and are given them again at the new place; what they have in hand they cannot commit any more.
        Queues of a broker that no name server knows stay as they are: the answer says which were reset.

        Args:
            group: its name.
            topic: its name.
            to: "earliest", "latest", a moment with a time zone (the first message stored at or after it), or an offset.
            queues: which of the topic; all when None.
            force: also while members are connected.

        Returns:
            Where the group goes on, by queue, sorted.

        Raises:
            GroupConflict: members are connected, or queues are held for some; the text names them.
            TopicNotFound, QueueNotFound: there is no such topic or queue.
            OffsetOutOfRange: one of the queues does not store the offset.
            InvalidArgument: an argument breaks a rule.
            Unavailable: a broker that carries the topic has no master now; the text names it, and nothing was changed.
            SystemBusy: the name servers have just started, and it is not known yet which brokers there are.
            MiniMQError: a broker failed; the text says which, and which others have done it already.
        """
        request = _reset_request(check_group(group), check_topic(topic), to, force)
        chosen = None if queues is None else _ids_by_broker(topic, queues)
        offsets = self._masters.patiently(lambda: self._reset(request, chosen))
        return dict(sorted(offsets.items()))

    def _reset(
        self, request: broker_pb2.ResetOffsetsRequest, chosen: Mapping[str, Sequence[int]] | None
    ) -> dict[MessageQueue, int]:
        """Reset all queues of the topic, or those chosen by broker name.

        All brokers are looked at before one is changed; each decides once more by itself.
        """
        group, topic = request.group, request.topic
        masters, described = self._masters_of(topic, chosen)
        ids = chosen or {broker: [] for broker in masters}
        _check_queues(topic, ids, described, request.offset if request.WhichOneof("to") == "offset" else None)
        if not request.force:
            self._refuse_if_live(group, topic, ids, masters)
        requests = {broker: _for_queues(request, ids[broker]) for broker in masters}
        answers, failures = self._masters.calls.call_each(masters, lambda stub: stub.ResetOffsets, requests)
        done = f"done on {', '.join(answers)}: " if answers else ""
        remedy = f"{done}repeat the call to complete it"
        raise_failures(f"the offsets of group {group} were not reset", failures, masters, remedy)
        return {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }

    # ---- Looking --------------------------------------------------------------------------------

    def _names(self, masters: Mapping[str, str]) -> tuple[list[str], dict[str, MiniMQError]]:
        """Return the names that the brokers know together, and the failures of the others; raises if all failed."""
        request = broker_pb2.ListGroupsRequest()
        answers, failures = self._masters.calls.call_all(masters, lambda stub: stub.ListGroups, request)
        if not answers:
            raise_failures("the groups are not known", failures, masters, "try again")
        return sorted({group for answer in answers.values() for group in answer.groups}), failures

    def _ask(self, groups: Sequence[str], masters: Mapping[str, str]) -> dict[str, _Answers]:
        """Return what the brokers say of each group, all asked at once."""
        keys = [(group, broker) for group in groups for broker in masters]
        answers, failures = self._masters.calls.call_each(
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

    # ---- Resetting ------------------------------------------------------------------------------

    def _masters_of(
        self, topic: str, chosen: Iterable[str] | None
    ) -> tuple[dict[str, str], dict[str, broker_pb2.DescribeTopicResponse]]:
        """Return the masters that carry a topic, those of the chosen brokers or all, and what they say of it.

        Raises:
            TopicNotFound: no broker carries it.
            QueueNotFound: a broker that was chosen does not.
            Unavailable: one that carries it has no master now.
        """
        masters = self._masters.find(to_change=True)
        asked = masters if chosen is None else {broker: masters[broker] for broker in chosen if broker in masters}
        described = self._masters.describe(topic, asked)
        # Slaves show the queues of a broker whose master is away.
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
        """Return the names of the brokers to which the route of a topic leads."""
        try:
            return [data.broker_name for data in self._masters.nameservers.route(topic).queues]
        except TopicNotFound:
            return []  # which masters may carry all the same: it was made a moment ago

    def _refuse_if_live(
        self, group: str, topic: str, ids: Mapping[str, Sequence[int]], masters: Mapping[str, str]
    ) -> None:
        """Raise `GroupConflict` when members are connected, or queues to be reset are held for some that have left."""
        request = broker_pb2.DescribeGroupRequest(group=group)
        answers, failures = self._masters.calls.call_all(masters, lambda stub: stub.DescribeGroup, request)
        raise_failures(f"group {group} cannot be looked up", failures, masters, "nothing was changed")
        connected = sorted({client_id for answer in answers.values() for client_id in answer.client_ids})
        if connected:
            raise GroupConflict(
                f"members of group {group} are connected: {_some(connected)}; stop them first, or reset with force "
                "(--force): they go on at the new place then"
            )
        held = [
            f"{MessageQueue(topic, broker, item.queue_id)} for {item.holder}"
            for broker, answer in answers.items()
            for item in answer.queues
            if item.holder and item.topic == topic and (not ids[broker] or item.queue_id in ids[broker])
        ]
        if held:
            raise GroupConflict(
                f"queues of group {group} are held for members that have left: {_some(held)}; wait until that is over, "
                "or reset with force (--force)"
            )


def _ids_by_broker(topic: str, queues: Iterable[MessageQueue]) -> dict[str, list[int]]:
    """Return ids of queues by broker name, both sorted. Raises `InvalidArgument` for none, or one of another topic."""
    ids: dict[str, list[int]] = {}
    for queue in sorted(set(queues)):
        if queue.topic != topic:
            raise InvalidArgument(f"queue {queue} is not one of topic {topic}")
        ids.setdefault(queue.broker_name, []).append(queue.queue_id)
    if not ids:
        raise InvalidArgument("queues is empty: name some, or leave it out for all")
    return ids


def _check_queues(
    topic: str,
    ids: Mapping[str, Sequence[int]],
    described: Mapping[str, broker_pb2.DescribeTopicResponse],
    offset: int | None,
) -> None:
    """Raise `QueueNotFound` or `OffsetOutOfRange` when a queue is not there, or does not store the offset."""
    outside: list[str] = []
    for broker in ids:
        found = {status.queue_id: status for status in described[broker].queues}
        for queue_id in ids[broker] or found:
            name = MessageQueue(topic, broker, queue_id)
            if queue_id not in found:
                raise QueueNotFound(f"there is no queue {name}: {broker} has {len(found)} queues of the topic")
            first, end = found[queue_id].min_offset, found[queue_id].max_offset
            if offset is not None and not first <= offset <= end:
                outside.append(f"{name} ({first} to {end})")
    if outside:
        raise OffsetOutOfRange(
            f"offset {offset} is not in {_some(outside)}: nothing was changed; choose the queues that have it (--queue)"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _reset_request(group: str, topic: str, to: ResetTo, force: bool) -> broker_pb2.ResetOffsetsRequest:
    """Return what to ask for about all queues of a broker. Raises `InvalidArgument`."""
    request = broker_pb2.ResetOffsetsRequest(group=group, topic=topic, force=force)
    match to:
        case "earliest":
            request.start.at = broker_pb2.START_AT_EARLIEST
        case "latest":
            request.start.at = broker_pb2.START_AT_LATEST
        case datetime() if to.tzinfo is None:
            raise InvalidArgument("the moment has no time zone: for example, datetime.now(UTC) has one")
        case datetime():
            request.start.at = broker_pb2.START_AT_TIMESTAMP
            request.start.timestamp_ms = round(to.timestamp() * 1000)
        case int() if not isinstance(to, bool) and to >= 0:
            request.offset = to
        case _:
            raise InvalidArgument(f"to is {to!r}: it must be 'earliest', 'latest', a moment or an offset from 0 on")
    return request


def _for_queues(request: broker_pb2.ResetOffsetsRequest, ids: Iterable[int]) -> broker_pb2.ResetOffsetsRequest:
    copy = broker_pb2.ResetOffsetsRequest(queue_ids=ids)
    copy.MergeFrom(request)
    return copy
