"""The part of `Admin` that concerns consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from minimq.administration.failures import raise_failures
from minimq.administration.group_descriptions import GroupDescription, group_from_wire
from minimq.administration.live_members import DELETION, refuse_if_live
from minimq.administration.masters import Masters
from minimq.administration.resets import Reset, ids_by_broker, reset_request
from minimq.transport.client_log import client_logger
from minimq.transport.start_position import Start
from minimq_common.errors import GroupNotFound, MiniMQError
from minimq_common.model import AwayBroker, MessageQueue
from minimq_common.names import check_group, check_topic
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)


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


class GroupAdmin:
    """Lists, describes, resets and deletes consumer groups; a part of `Admin`."""

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
        """Return the descriptions of all groups, sorted by name. Raises as `list_groups` does."""
        masters = self._masters.find_readable()
        names, _ = self._names(masters)
        asked = self._ask(names, masters)
        now, away = datetime.now(UTC), self._masters.away_lookup()
        # A group that was known a moment ago may be gone.
        return [answers.description(group, now, away) for group, answers in asked.items() if answers.is_known]

    def describe_group(self, group: str) -> GroupDescription:
        """Return the members of a group, the reader of each queue, and the lag.

        A broker that does not answer is listed in `unanswered`, with the reason, and its queues are missing. A departed
        broker is listed in `away` as long as the name servers remember it.

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

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: Start = "earliest",
        *,
        queues: Iterable[MessageQueue] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> dict[MessageQueue, int]:
        """Move a group to other offsets in a topic; a group that does not exist yet will begin there.

        The reset is refused while members are connected, or queues are held for members that have just left. With
        `force` the members lose the queues and get them back at the new offsets; they can no longer commit their
        messages in flight.
        It is also refused while a broker of the topic is away, unless `queues` names queues of other brokers; with
        `force` the queues of that broker stay unchanged, and the result lists those that were reset.

        Args:
            group: its name.
            topic: its name.
            to: "earliest", "latest", an offset, or a time, for the first message stored at or after it: a datetime with
                a time zone, "2026-01-31T08:00Z" or "-24h". Milliseconds since 1970 are written "1769846400000ms", since
                a number is an offset.
            queues: the queues to reset; None for all queues of the topic.
            force: reset even while members are connected, or a broker of the topic is away.
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
        request = reset_request(check_group(group), check_topic(topic), to, force)
        chosen = None if queues is None else ids_by_broker(topic, queues)
        reset = Reset(self._masters, request, chosen)
        offsets = reset.run(dry_run=dry_run)
        return dict(sorted(offsets.items()))

    def delete_group(
        self, group: str, *, force: bool = False, dead_letters: bool = False, wait: bool = True
    ) -> tuple[AwayBroker, ...]:
        """Delete a consumer group: its committed and initial offsets, and the messages that wait for a retry.

        A group that later uses the name is new, and begins where its `start` says. Deletion is refused while a
        broker is away, which would bring the group back when it starts.

        Args:
            group: its name.
            force: delete even while members are connected, which start over and keep the messages that wait for a
                retry, and even while brokers are away.
            dead_letters: delete its dead letters as well; by default they are kept.
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
