"""The part of `Admin` that concerns consumer groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from minimq.administration.failures import raise_failures
from minimq.administration.group_descriptions import GroupDescription, group_from_wire
from minimq.administration.live_members import DELETION, refuse_if_live
from minimq.administration.masters import Masters
from minimq.administration.resets import Reset, ids_by_broker, reset_request
from minimq.transport.start_position import Start
from minimq_common.errors import GroupNotFound, MiniMQError
from minimq_common.model import AwayBroker, MessageQueue
from minimq_common.names import check_group, check_topic
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)


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
    """Lists, describes and deletes consumer groups and lets them go on elsewhere; users have it as `Admin`."""

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
        now, away = datetime.now(UTC), self._masters.away_lookup()
        # One that was known a moment ago may be gone.
        return [answers.description(group, now, away) for group, answers in asked.items() if answers.is_known]

    def describe_group(self, group: str) -> GroupDescription:
        """Return who is in a group, who reads which queue, and what is unread.

        A broker that does not answer is named in `unanswered`, with the reason, and its queues are missing. One that
        has gone is named in `away`, as long as the name servers remember it.

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
        """Let a group go on elsewhere in a topic, which also a group may be told that has not begun yet.

        It is refused while members are connected, or queues are held for some that have just left. With `force` members
        lose the queues and are given them again at the new place; what they have in hand they cannot commit any more.
        It is refused while a broker that carries the topic is away, unless `queues` names those of others; with `force`
        its queues stay as they are, and the answer says which were reset.

        Args:
            group: its name.
            topic: its name.
            to: "earliest", "latest", an offset, or a time, for the first message stored at or after it: a datetime with
                a time zone, "2026-01-31T08:00Z" or "-24h". Milliseconds since 1970 are written "1769846400000ms", since
                a number is an offset.
            queues: which of the topic; all when None.
            force: also while members are connected, or a broker that carries the topic is away.
            dry_run: check everything and return where the group would go on, but change nothing.

        Returns:
            Where the group goes on, by queue, sorted.

        Raises:
            GroupConflict: members are connected, or queues are held for some; the text names them.
            TopicNotFound, QueueNotFound: there is no such topic or queue.
            OffsetOutOfRange: one of the queues does not store the offset.
            InvalidArgument: an argument breaks a rule.
            Unavailable: a broker that carries the topic is away or has no master now; the text names it, and nothing
                was changed.
            SystemBusy: the name servers have just started, and it is not known yet which brokers there are.
            MiniMQError: a broker failed; the text says which, and which others have done it already.
        """
        request = reset_request(check_group(group), check_topic(topic), to, force)
        chosen = None if queues is None else ids_by_broker(topic, queues)
        reset = Reset(self._masters, request, chosen)
        offsets = self._masters.with_retries(lambda: reset.run(dry_run=dry_run))
        return dict(sorted(offsets.items()))

    def delete_group(
        self, group: str, *, force: bool = False, dead_letters: bool = False, wait: bool = True
    ) -> tuple[AwayBroker, ...]:
        """Delete a consumer group: its offsets, where it began, and what waits for another try.

        A group that comes again under the name is a new one, and begins where it says. Deletion is refused while a
        broker is away, which would bring the group back when it starts.

        Args:
            group: its name.
            force: also while members are connected: they begin anew, and keep what waits for another try. And also
                while brokers are away.
            dead_letters: delete its dead letters as well; they are kept otherwise.
            wait: return only when no name server that answers shows its own topics any more.

        Returns:
            The brokers that are away, and bring the group back if they know it: delete it again then.

        Raises:
            GroupNotFound: no broker knows it.
            GroupConflict: members are connected, or queues are held for some; the text names them.
            Unavailable: a broker is away or has no master now; the text names it, and nothing was changed.
            MiniMQError: a broker failed; the text says which. Repeat the call to complete the deletion.
        """
        request = broker_pb2.DeleteGroupRequest(group=check_group(group), force=force, dead_letters=dead_letters)
        versions: dict[str, int] = {}

        def delete() -> None:
            masters = self._masters.find_all()
            if not force:
                remedy = "delete it on the others with force (--force)"
                self._masters.refuse_if_away(f"group {group} was not deleted", remedy)
                refuse_if_live(self._masters, group, masters, DELETION)
            answers, failures = self._masters.calls.call_all(masters, lambda stub: stub.DeleteGroup, request)
            versions.update({broker: item.data_version for broker, item in answers.items() if item.deleted})
            raise_failures(f"group {group} was not deleted", failures, masters, "repeat the call to complete it")

        self._masters.with_retries(delete)
        if not versions:
            raise _not_found(group)
        if wait:
            self._masters.wait_until_shown(versions, gone=True)
        return tuple(each for each in self._masters.away() if each.broker_name not in versions)

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
        answers, failures = self._masters.calls.call_all(
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
        f"there is no group {group}: `minimq group list` shows the groups; if only absent brokers know it, it comes "
        "back with them"
    )
