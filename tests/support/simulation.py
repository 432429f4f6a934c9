"""What simulated brokers and members of a group have in common: times, processes that may hang, sessions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minimq_broker.core.leases import LeaseKey
from minimq_broker.core.state import QueueKey
from minimq_common.model import MessageQueue

if TYPE_CHECKING:
    from support.group_world import World
    from support.simulated_broker import SimulatedBroker
    from support.simulated_member import SimulatedMember

GROUP = "g"
#: The topics that there may be: by name, the id and the brokers that carry it.
TOPICS = {"t": (1, ("broker-a", "broker-b")), "u": (2, ("broker-b",))}


@dataclass(frozen=True)
class Times:
    """Times in seconds; see the options of the same names.

    Attributes:
        grace_s: also the time in which former owners have precedence after a start.
        longest_delay_s: of what is on its way.
    """

    trust_s: float = 3.0
    timeout_s: float = 6.0
    grace_s: float = 4.0
    heartbeat_s: float = 1.0
    drain_s: float = 2.0
    interval_s: float = 5.0
    hold_s: float = 0.0
    longest_delay_s: float = 1.0


class Violation(AssertionError):
    """Something happened that must not."""


class Process:
    """Something that may hang: what comes meanwhile is looked at when it goes on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.alive = True
        self._hangs_until = 0.0
        self._inbox: deque[Callable[[], None]] = deque()

    @property
    def hangs(self) -> bool:
        return self.world.now < self._hangs_until

    def hang(self, seconds: float) -> None:
        self._hangs_until = self.world.now + seconds
        self.world.at(self._hangs_until, self._resume)

    def post(self, action: Callable[[], None]) -> None:
        """Have something done by the process, now or when it goes on."""
        self._inbox.append(action)
        if not self.hangs:
            self._resume()

    def _resume(self) -> None:
        while self._inbox and self.alive and not self.hangs:
            self._inbox.popleft()()


class Session:
    """A stream between a member and a broker: in order both ways, until it breaks."""

    def __init__(self, world: World, member: SimulatedMember, broker: SimulatedBroker) -> None:
        self.member = member
        self.broker = broker
        self.open = True
        self._world = world
        self._latest = {"up": 0.0, "down": 0.0}

    def up(self, *words: Any) -> None:  # noqa: ANN401 - what a member says
        self._carry("up", lambda: self.broker.receive(self, words))

    def down(self, *words: Any) -> None:  # noqa: ANN401 - what a broker says
        self._carry("down", lambda: self.member.post(lambda: self.member.hear(self, words)))

    def break_(self) -> None:
        """Lose what is under way. Each side learns of it in its own time."""
        if self.open:
            self.open = False
            self._world.after(self._world.delay(), lambda: self.broker.disconnected(self))
            self._world.after(self._world.delay(), lambda: self.member.post(lambda: self.member.ended(self)))

    def _carry(self, way: str, deliver: Callable[[], None]) -> None:
        if self.open:
            when = self._latest[way] = max(self._latest[way], self._world.now + self._world.delay())
            self._world.at(when, lambda: deliver() if self.open else None)


def key_of(queue: MessageQueue) -> LeaseKey:
    return LeaseKey(GROUP, QueueKey(TOPICS[queue.topic][0], queue.queue_id))


def short(epoch: int) -> str:
    return f"epoch {epoch >> 32}.{epoch & 0xFFFFFFFF}"
