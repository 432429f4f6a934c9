"""A world of brokers and group members in virtual time, for schedules of faults that a seed decides.

The decisions are those of the real modules: `LeaseTable` and `GroupTable` at the brokers, `MemberState`, `Rounds` and
the strategies at the members. What lies between them is played here as the services and the member's thread do it:
sessions that keep the order of what they carry and lose the rest when they break, timers, and readers that take a while
to finish what is in flight.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from minimq.rebalance import allocate_group, allocation_strategy
from minimq.rebalance.strategy import uses_owners
from minimq_common.model import MessageQueue
from support.simulated_broker import SimulatedBroker
from support.simulated_member import SimulatedMember
from support.simulation import GROUP, TOPICS, Times, Violation, short

#: What time alone brings about has come by then: a silent client is given up after 10 s, and rounds are made each 5 s.
QUIET_S = 12.0


class World:
    """All brokers and members, and the events to come.

    Args:
        chance: decides what is open.
        times: of brokers and members.
        strategy: by which the group divides queues.
        queues: how many of each topic each broker has that carries it.
        topics: which topics there are.

    Attributes:
        now: virtual time, in seconds.
        trace: what has happened, as text.
    """

    def __init__(
        self, chance: random.Random, times: Times, strategy: str, queues: int, topics: Sequence[str] = ("t",)
    ) -> None:
        self.now = self._noted_at = 1000.0
        self.chance = chance
        self.times = times
        self.strategy = allocation_strategy(strategy)
        self.trace: list[str] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self.members: dict[str, SimulatedMember] = {}
        self.brokers = {name: SimulatedBroker(self, name) for name in ("broker-a", "broker-b")}
        self.topics = topics
        self.queues = [
            MessageQueue(topic, broker, number)
            for topic in topics
            for broker in TOPICS[topic][1]
            for number in range(queues)
        ]

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), action, arguments))

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), action, arguments))

    def delay(self) -> float:
        """Return how long something is on its way: mostly not long."""
        longest = self.times.longest_delay_s if self.chance.random() < 0.05 else 0.03
        return self.chance.uniform(0.0005, longest)

    def note(self, text: str) -> None:
        self._noted_at = self.now
        self.trace.append(f"{self.now - 1000.0:8.3f}  {text}")

    def run(self, until: float) -> None:
        """Let everything happen that is to happen until then."""
        events, next_event = self._events, heapq.heappop
        while events and events[0][0] <= until:
            self.now, _, action, arguments = next_event(events)
            action(*arguments)
        self.now = until

    def join(self, *topics: str, wanted: str = "*") -> SimulatedMember:
        """Add a member that subscribes to some topics, to all of them by default, with a filter."""
        member = SimulatedMember(self, f"m{len(self.members)}", topics or self.topics, wanted)
        self.members[member.name] = member
        return member

    def route(self, broker: str) -> None:
        """Let every member learn in its own time whether routes lead to a broker."""
        for member in self.members.values():
            self.after(self.delay(), member.look_at_route, broker)

    def owners(self, queue: MessageQueue) -> list[SimulatedMember]:
        """Return the members that would hand out messages of a queue now."""
        return [member for member in self.members.values() if member.owns(queue)]

    def check(self, gainer: SimulatedMember) -> None:
        """Raise a violation if a queue has two owners; called after each task by which a member may have gained one."""
        for queue in gainer.reads:
            others = [other for other in self.members.values() if queue in other.reads and other is not gainer]
            if others and gainer.owns(queue) and any(other.owns(queue) for other in others):
                said = ", ".join(f"{owner.name} under {short(owner.reads[queue])}" for owner in self.owners(queue))
                raise Violation(f"{queue} has two owners: {said}")

    def settle(self, longest_s: float) -> None:
        """Let everything happen that follows without faults to come, and see that the queues are divided then."""
        end = self.now + longest_s
        while self.now < end:
            self.run(min(self.now + 1.0, end))
            if self.now >= self._quiet_since() + QUIET_S:
                with contextlib.suppress(Violation):
                    self.check_settled()
                    return
        self.check_settled()

    def _quiet_since(self) -> float:
        """Return since when nobody has got or lost anything, and no fault lasts."""
        if not all(broker.alive for broker in self.brokers.values()):
            return math.inf
        members = [member for member in self.members.values() if member.alive]
        cuts = [line.cut_until for member in members for line in member.lines.values()]
        return max(self._noted_at, *cuts, *(process.hangs_until for process in (*members, *self.brokers.values())))

    def check_settled(self) -> None:
        """The queues are divided as the strategy does it; called some time after the last event.

        Topics with the same subscribers are divided together; one that nobody subscribes to is read by nobody.
        """
        divided: dict[tuple[str, ...], list[MessageQueue]] = {}
        for queue in self.queues:
            live = [name for name, member in self.members.items() if member.alive and queue.topic in member.topics]
            if len(self.owners(queue)) != min(len(live), 1):
                raise Violation(f"{queue} has the owners {[member.name for member in self.owners(queue)]}")
            divided.setdefault(tuple(sorted(live)), []).append(queue)
        for subscribers, queues in divided.items():
            self._check_shares(subscribers, queues)

    def _check_shares(self, subscribers: Sequence[str], queues: Sequence[MessageQueue]) -> None:
        shares = {name: sorted(set(queues).intersection(self.members[name].reads)) for name in subscribers}
        if uses_owners(self.strategy):
            sizes = [len(share) for share in shares.values()]
            if shares and max(sizes) - min(sizes) > 1:
                raise Violation(f"the shares have the sizes {sizes}")
            return
        for name, share in shares.items():
            wanted = allocate_group(self.strategy, GROUP, name, queues, subscribers, {})
            if wanted != share:
                raise Violation(f"{name} has {share} and not {wanted}")
