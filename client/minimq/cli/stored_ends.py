"""The ends of a topic's queues at the start of `minimq consume --exit-at-end`, and a group's progress to them.

Also where nothing is left to read the end is not reached before the group has the consumer as a member: a group that
refuses it says so, and not that there are no messages.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from minimq.operations.words import describe_unanswered
from minimq_common.errors import GroupNotFound, InvalidArgument, MiniMQError, TopicNotFound, TopicUnavailable
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.receiving.pull_consumer import PullConsumer
    from minimq_common.model import AwayBroker, MessageQueue

#: Interval of checks of the brokers and of the progress of other members.
_LOOK_S = 0.5
#: Seconds that a broker has in any case before it counts as silent.
_LEAST_TIMEOUT_S = 2.0


class BrokerWaits:
    """The absent brokers to wait for, each for the same time. Pure; times are seconds of a monotonic clock.

    Args:
        patience_s: how long to wait for each of them, from when it was first seen to be away.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._until: dict[str, float] = {}

    def look(self, away: Collection[str], now: float) -> set[str]:
        """Record which brokers are away now. Returns the new ones; the wait for a broker that is back starts over."""
        new = {name for name in away if name not in self._until}
        self._until = {name: self._until.get(name, now + self._patience_s) for name in away}
        return new

    def given_up(self, now: float) -> set[str]:
        """Return the brokers whose wait is over."""
        return {name for name, until in self._until.items() if now >= until}


class StoredEnds:
    """The ends that the queues of a topic had at the start, and whether the group has reached them.

    Args:
        nameserver: where the name servers are.
        topic: the topic that the group reads.
        group: the consumer group.
        consumer: the member of the group that runs here.
        patience_s: how long to wait for a broker that disappears before the group has reached its ends.
    """

    def __init__(self, nameserver: str, topic: str, group: str, consumer: PullConsumer, patience_s: float) -> None:
        from minimq.admin import Admin
        from minimq.connection.away import describe_away

        self._nameserver = nameserver
        self._topic = topic
        self._group = group
        self._consumer = consumer
        self._patience_s = patience_s
        self._waits = BrokerWaits(patience_s)
        with Admin(nameserver) as admin:
            readable = set(admin.route(topic).read_queues())
            description = admin.describe_topic(topic)
        #: The brokers of which one has to take the consumer into the group.
        self._brokers = {queue.broker_name for queue in readable}
        #: Of the brokers that were away or did not answer then, so that the ends of their queues are unknown.
        self._unknown = [
            *describe_away(description.away, "not read"),
            *describe_unanswered(
                {broker: why for broker, why in description.unanswered.items() if broker in self._brokers}, "not read"
            ),
        ]
        #: The brokers that are away now.
        self._away: dict[str, AwayBroker] = {}
        #: Why registered brokers do not answer now, and from which the consumer gets nothing either.
        self._silent: dict[str, str] = {}
        self._positions: dict[MessageQueue, int] = {}  # at the last look
        #: The queues with messages left to read, with their ends.
        self._left: dict[MessageQueue, int] = {
            item.queue: item.max_offset for item in description.queues if item.queue in readable and item.messages
        }
        self._look_at = time.monotonic() + _LOOK_S

    def reached(self) -> bool:
        """Return whether the group has read everything, except from brokers whose wait is over."""
        for queue, position in self._read_to().items():
            if position >= self._left.get(queue, 0):
                self._left.pop(queue, None)
        if self._waited_for() and time.monotonic() >= self._look_at:
            began = time.monotonic()
            self._look()
            now = time.monotonic()
            self._look_at = now + max(_LOOK_S, now - began)  # a broker that hangs must not stop the output of the rest
        return self._waited_for() <= self._waits.given_up(time.monotonic())

    def unread(self) -> list[str]:
        """Return a line for each broker whose queues were not read to their ends."""
        lines = [*self._unknown, *self._describe(self._waits.given_up(time.monotonic()), "not read")]
        if not self._consumer.is_member:
            lines.append(f"group {self._group}: not joined, no broker of topic {self._topic} has answered")
        return lines

    def _read_to(self) -> dict[MessageQueue, int]:
        """Return the positions of the consumer, which are those of the group in its queues."""
        positions: dict[MessageQueue, int] = {}
        for queue in self._consumer.assignment:
            # It may belong to another member by now; then that member's progress counts.
            with contextlib.suppress(InvalidArgument):
                positions[queue] = self._consumer.position(queue)
        return positions

    def _waited_for(self) -> set[str]:
        """Return the brokers without which the end is not reached."""
        left = {queue.broker_name for queue in self._left}
        return left if self._consumer.is_member else left | self._brokers

    def _look(self) -> None:
        from minimq.admin import Admin

        try:
            with Admin(self._nameserver, timeout_s=min(max(self._patience_s, _LEAST_TIMEOUT_S), 5.0)) as admin:
                self._look_for_brokers(admin)
                if not self._left.keys() <= set(self._consumer.assignment):
                    self._ask_about_others(admin)
        except MiniMQError as error:
            # The consumer reports a deleted topic; a temporary error is retried.
            if not (error.retriable or isinstance(error, TopicNotFound)):
                raise

    def _look_for_brokers(self, admin: Admin) -> None:
        try:
            route = admin.route(self._topic)
            there, away = {queue.broker_name for queue in route.read_queues()}, route.away
        except TopicUnavailable as error:
            there, away = set(), error.away
        self._away = {each.broker_name: each for each in away}
        before, self._positions = self._positions, self._read_to()
        moving = {queue.broker_name for queue, at in self._positions.items() if at != before.get(queue, at)}
        self._silent = {
            broker: why
            for described in admin.describe_topics([self._topic] if there else [])
            for broker, why in described.unanswered.items()
            if broker in there - moving
        }
        new = self._waits.look(self._waited_for() - (there - self._silent.keys()), time.monotonic())
        for line in self._describe(new, f"left to read, waiting up to {self._patience_s:g} s"):
            click.echo(line, err=True)

    def _describe(self, names: Collection[str], lacking: str) -> list[str]:
        from minimq.connection.away import describe_away

        left = Counter(queue.broker_name for queue in self._left)
        lines: list[str] = []
        for name in sorted(left.keys() & names):
            away = self._away.get(name)
            if away is not None:
                lines += describe_away([replace(away, queues=left[name])], lacking)
            elif name in self._silent:
                lines += describe_unanswered({name: self._silent[name]}, lacking)
            else:  # it was forgotten, or the topic was deleted there
                lines.append(
                    f"{name}: no longer has queues of {self._topic}, {count_of(left[name], 'queue')} {lacking}"
                )
        return lines

    def _ask_about_others(self, admin: Admin) -> None:
        mine = set(self._consumer.assignment)
        with contextlib.suppress(GroupNotFound):  # none has committed yet
            for queue, offset in ((at.queue, at.committed_offset) for at in admin.describe_group(self._group).queues):
                if queue not in mine and offset is not None and offset >= self._left.get(queue, offset + 1):
                    del self._left[queue]
