"""The common base of simulated brokers and members of a group: times, processes that may hang, sessions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from minimq_broker.groups.leases import LeaseKey
from minimq_broker.state.state import QueueKey
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

    lease_timeout_s: float = 3.0
    timeout_s: float = 6.0
    grace_s: float = 4.0
    heartbeat_s: float = 1.0
    revoke_timeout_s: float = 2.0
    interval_s: float = 5.0
    handover_timeout_s: float = 0.0
    longest_delay_s: float = 1.0


class Violation(AssertionError):
    """Something happened that must not."""


class Process:
    """Something that may hang: what comes meanwhile is looked at when it goes on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.alive = True
        self.hangs_until = 0.0
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    @property
    def hangs(self) -> bool:
        return self.world.now < self.hangs_until

    def hang(self, seconds: float) -> None:
        self.hangs_until = self.world.now + seconds
        self.world.at(self.hangs_until, self._resume)

    def post(self, action: Callable[..., None], *arguments: Any) -> None:
        """Have something done by the process, now or when it goes on."""
        if not self._inbox and self.alive and self.world.now >= self.hangs_until:
            self._perform(action, arguments)
        else:
            self._inbox.append((action, arguments))
            self._resume()

    def _resume(self) -> None:
        while self._inbox and self.alive and not self.hangs:
            self._perform(*self._inbox.popleft())

    def _perform(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        action(*arguments)


class Session:
    """A stream between a member and a broker: in order both ways, until it breaks."""

    def __init__(self, world: World, member: SimulatedMember, broker: SimulatedBroker) -> None:
        self.member = member
        self.broker = broker
        self.open = True
        self._world = world
        #: When the latest words arrive, up and down: later ones do not overtake them.
        self._up_at = self._down_at = 0.0

    def up(self, *words: Any) -> None:
        if self.open:
            self._up_at = max(self._up_at, self._world.now + self._world.delay())
            self._world.at(self._up_at, self._arrive_up, words)

    def down(self, *words: Any) -> None:
        if self.open:
            self._down_at = max(self._down_at, self._world.now + self._world.delay())
            self._world.at(self._down_at, self._arrive_down, words)

    def break_(self) -> None:
        """Lose what is under way. Each side learns of it in its own time."""
        if self.open:
            self.open = False
            self._world.after(self._world.delay(), self.broker.disconnected, self)
            self._world.after(self._world.delay(), self.member.post, self.member.ended, self)

    def _arrive_up(self, words: Sequence[Any]) -> None:
        if self.open:
            self.broker.receive(self, words)

    def _arrive_down(self, words: Sequence[Any]) -> None:
        if self.open:
            self.member.post(self.member.hear, self, words)


@cache
def key_of(queue: MessageQueue) -> LeaseKey:
    return LeaseKey(GROUP, QueueKey(TOPICS[queue.topic][0], queue.queue_id))


def short(epoch: int) -> str:
    return f"epoch {epoch >> 32}.{epoch & 0xFFFFFFFF}"
