"""The state of the queues of one group member, from request to release: pure.

The only owner of that state. Its caller reports events and carries out the returned steps in order: requests to
brokers, and commands for the reader of the queues. Time is an argument, in seconds on any monotonic clock.

A claim to a queue goes through these phases:

    ASKED    the broker was asked for the queue, and grants it once no other member holds it
    HELD     the queue is read under a lease
    LEAVING  the queue is revoked for another member: the reader finishes messages in flight, then reports `released`

A lease is trusted for `LEASE_TIMEOUT_S` after the broker's last sign of life. That time counts from when this member
sent the request that the broker has answered, so neither a delayed answer nor a process that slept extends it. When
trust ends, the queue is lost, whatever the broker thinks; the member asks for it again, under the former epoch, when
the broker is back.

When a session breaks, its leases become unconfirmed much earlier: the broker may notice, too, and grants the queues to
others after a grace. The grace counts from the latest request known to have arrived, since the session existed then.
With the defaults it ends 3 s after a heartbeat that may be up to 10 s old, so reading often stops at once. It continues
when the session is back and the broker has confirmed the lease, usually a moment later.

Silence alone does not make a lease unconfirmed. If a connection is cut unnoticed by both sides, the broker keeps the
session for 60 s (`--session-timeout`), while the member trusts the lease for 30 s. If only the broker notices, the next
heartbeat fails, and so the member notices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from minimq_common.model import MessageQueue


class LeaseDeadline:
    """Time until which the leases of one session are trusted. Changed by `MemberState`; any thread may read it."""

    __slots__ = ("is_broken", "until")

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        #: The session broke: the leases are unconfirmed until they are granted again in another session.
        self.is_broken = False


class Grant(NamedTuple):
    """A lease."""

    #: Proves the ownership; 0 where there are no leases.
    epoch: int
    offset: int
    #: Distinguishes topics that were created under the same name; 0 if unknown.
    topic_id: int
    given_back: int = 0
    address: str = ""
    #: Term of the log that the offset belongs to; 0 if it is not to be checked.
    term: int = 0
    #: That of the session.
    trust: LeaseDeadline = LeaseDeadline()


class RequestLease(NamedTuple):
    queue: MessageQueue
    #: Epoch of the last lease of this member; 0 for none.
    epoch: int
    given_back: int = 0


class ReleaseLease(NamedTuple):
    """Release the queue at the broker, or with epoch 0 withdraw the request for it."""

    queue: MessageQueue
    epoch: int


class StateSaved(NamedTuple):
    """Report to the broker that the state of a released queue is saved, so that others may have the queue."""

    queue: MessageQueue
    epoch: int


class StartReading(NamedTuple):
    """Start or continue reading the queue under this lease."""

    queue: MessageQueue
    grant: Grant


class Revoke(NamedTuple):
    """Finish the messages in flight of the queue, then report `released`: another member is to have it."""

    queue: MessageQueue


class LeaseLost(NamedTuple):
    """Stop reading the queue at once: this member no longer owns it."""

    queue: MessageQueue


Step = RequestLease | ReleaseLease | StateSaved | StartReading | Revoke | LeaseLost


class Phase(Enum):
    """The phase of a claim; see the module."""

    ASKED = "asked"
    HELD = "held"
    LEAVING = "leaving"


class _Claim:
    __slots__ = ("epoch", "leaving_since", "phase", "unconfirmed_since")

    def __init__(self) -> None:
        self.phase = Phase.ASKED
        self.epoch = 0
        self.leaving_since = 0.0
        #: Since when the lease is unconfirmed: its session broke, or its broker does not know it; else None.
        self.unconfirmed_since: float | None = None


class MemberState:
    """Decides which queues one member asks for, holds and gives up. Used by one thread."""

    def __init__(self, *, revoke_timeout_s: float, lease_timeout_s: float) -> None:
        self._revoke_timeout_s = revoke_timeout_s
        self._lease_timeout_s = lease_timeout_s
        self.changes = 0
        self._target: frozenset[MessageQueue] = frozenset()
        self._claims: dict[MessageQueue, _Claim] = {}
        #: Epoch of the last lease of each queue.
        self._epochs: dict[MessageQueue, int] = {}
        #: Number of releases of each queue; a grant that was sent before the latest release is void.
        self._given_back: Counter[MessageQueue] = Counter()
        #: Queues whose state the user has saved since their last lease began.
        self._saved: set[MessageQueue] = set()
        self._trust: dict[str, LeaseDeadline] = {}
        #: Brokers whose grants did not count, or whose trust ended: asked again at their next answer.
        self._distrusted: set[str] = set()

    # ---- queries --------------------------------------------------------------------------------

    def held(self) -> list[MessageQueue]:
        """Return the queues that this member owns as far as it knows, sorted."""
        return sorted(queue for queue, claim in self._claims.items() if claim.phase is not Phase.ASKED)

    def trust(self, broker: str) -> LeaseDeadline:
        """Return the trust in new leases of a broker; each answer of the broker extends it."""
        return self._trust.setdefault(broker, LeaseDeadline(-math.inf))

    # ---- events of the member -------------------------------------------------------------------

    def aim(self, target: Iterable[MessageQueue], now: float) -> list[Step]:
        """Set the target: the share of this member by the latest allocation."""
        self._target = frozenset(target)
        steps: list[Step] = []
        for queue in sorted(self._claims.keys() - self._target):
            claim = self._claims[queue]
            if claim.phase is Phase.ASKED:
                del self._claims[queue]
                steps.append(self._return(queue, 0))
            elif claim.phase is Phase.HELD:
                claim.phase, claim.leaving_since = Phase.LEAVING, now
                steps.append(Revoke(queue))
        for queue in sorted(self._target - self._claims.keys()):
            steps.append(self._ask(queue))
        return steps

    def released(self, epochs: Mapping[MessageQueue, int]) -> list[Step]:
        """Release queues that the reader has finished, each under its epoch; ignore a queue with a later lease."""
        steps: list[Step] = []
        for queue, epoch in epochs.items():
            claim = self._claims.get(queue)
            if claim is not None and claim.phase is not Phase.ASKED and claim.epoch == epoch:
                steps += self._give_back(queue, claim)
        return _together(steps)

    def retire(self) -> list[Step]:
        """Release all queues, which the reader has finished, before the member leaves its group."""
        self._target = frozenset()
        return self.released({queue: claim.epoch for queue, claim in self._claims.items()})

    def saved(self, queues: Iterable[MessageQueue]) -> list[Step]:
        """Record that the user has saved the state of queues; a queue that is still held reports it at its release."""
        steps: list[Step] = []
        for queue in queues:
            if queue not in self._epochs:
                continue  # this member never owned it
            self._saved.add(queue)
            claim = self._claims.get(queue)
            if claim is None or claim.phase is Phase.ASKED:
                steps.append(StateSaved(queue, self._epochs[queue]))
        return steps

    # ---- events of brokers ----------------------------------------------------------------------

    def connected(self, broker: str) -> list[Step]:
        """Repeat all requests to a broker: a session has begun, or answers were missed, so earlier ones may be lost."""
        steps: list[Step] = []
        for queue, epoch in sorted(self._epochs.items()):
            if queue.broker_name == broker and queue not in self._claims:
                steps.append(self._return(queue, epoch))
                steps += [StateSaved(queue, epoch)] if queue in self._saved else []
        for queue in sorted(self._claims):
            if queue.broker_name == broker:
                steps.append(self._ask_for(queue))
        return _together(steps)

    def disconnected(self, broker: str, until: float, now: float) -> list[MessageQueue]:
        """Record that a session broke; its broker keeps the leases at least until `until`.

        Returns the queues whose leases have just become unconfirmed.
        """
        former = self.trust(broker)
        self._trust[broker] = LeaseDeadline(former.until)
        former.until, former.is_broken = min(former.until, until), True
        queues = [queue for queue in self._held_at({broker}) if self._claims[queue].unconfirmed_since is None]
        for queue in queues:
            self._claims[queue].unconfirmed_since = now
        return queues

    def _held_at(self, brokers: Collection[str]) -> list[MessageQueue]:
        claims = self._claims.items()
        return [queue for queue, claim in claims if queue.broker_name in brokers and claim.phase is not Phase.ASKED]

    def heard(self, broker: str, sent_at: float, now: float) -> list[Step]:
        """Record the answer of a broker to a request of `sent_at`: the broker knew then that this member was alive."""
        trust = self.trust(broker)
        trust.until = max(sent_at + self._lease_timeout_s, trust.until)
        if broker not in self._distrusted or now >= trust.until:
            return []
        self._distrusted.discard(broker)
        return self.connected(broker)

    def granted(self, queue: MessageQueue, grant: Grant, now: float) -> list[Step]:
        """Handle the grant of a queue, or the confirmation of its lease."""
        if now >= self.trust(queue.broker_name).until:
            # This process has slept since the request. It asks again at the next answer of the broker.
            self._distrusted.add(queue.broker_name)
            return []
        claim = self._claims.get(queue)
        if claim is None:  # the queue is no longer wanted
            self._epochs[queue] = max(grant.epoch, self._epochs.get(queue, 0))
            return [self._return(queue, grant.epoch)]
        if grant.given_back < self._given_back[queue]:
            return []  # released before the grant arrived; the request made since will have its own answer
        if claim.phase is not Phase.ASKED and grant.epoch <= claim.epoch:
            return self._confirm(queue, claim, grant) if grant.epoch == claim.epoch else []
        leaves = claim.phase is Phase.LEAVING and queue not in self._target
        claim.phase = Phase.LEAVING if leaves else Phase.HELD
        claim.epoch = self._epochs[queue] = grant.epoch
        claim.unconfirmed_since = None
        self._saved.discard(queue)
        self.changes += 1
        begin = StartReading(queue, grant)
        return [begin, Revoke(queue)] if leaves else [begin]

    def wanted(self, queue: MessageQueue) -> list[Step]:
        """Handle a broker's report that another member waits for a queue of this one."""
        # If the queue is not claimed, its release was lost with a session: repeat it.
        return [] if queue in self._claims else [self._return(queue, self._epochs.get(queue, 0))]

    def lease_over(self, queue: MessageQueue, epoch: int, now: float) -> list[Step]:
        """Handle the answer that a broker does not know a lease: it has restarted, or granted the queue to another."""
        claim = self._claims.get(queue)
        if claim is None or claim.phase is Phase.ASKED or claim.epoch != epoch:
            return []
        if claim.phase is Phase.HELD and queue in self._target:
            # The reader pauses until the answer, and continues in place if no other member had the queue.
            if claim.unconfirmed_since is None:
                claim.unconfirmed_since = now
            return [self._ask_for(queue)]
        return [LeaseLost(queue), *self._give_back(queue, claim)]

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Step]:
        """Give up queues whose trust or drain time is over. Call it a few times a second."""
        steps: list[Step] = []
        silent = {broker for broker, trust in self._trust.items() if now >= trust.until}
        over = [
            queue
            for queue, claim in self._claims.items()
            if claim.phase is not Phase.ASKED and (queue.broker_name in silent or self._is_over(claim, now))
        ]
        for queue in sorted(over):
            claim = self._claims[queue]
            if queue.broker_name in silent:
                self._distrusted.add(queue.broker_name)
                steps += self._lose(queue, claim)
            elif self._unconfirmed_too_long(claim, now):
                steps += self._lose(queue, claim)
            else:
                steps += [LeaseLost(queue), *self._give_back(queue, claim)]
        return _together(steps)

    # ---- transitions ----------------------------------------------------------------------------

    def _ask(self, queue: MessageQueue) -> Step:
        self._claims[queue] = _Claim()
        return self._ask_for(queue)

    def _ask_for(self, queue: MessageQueue) -> Step:
        return RequestLease(queue, self._epochs.get(queue, 0), self._given_back[queue])

    def _return(self, queue: MessageQueue, epoch: int) -> Step:
        self._given_back[queue] += 1
        return ReleaseLease(queue, epoch)

    def _give_back(self, queue: MessageQueue, claim: _Claim) -> list[Step]:
        del self._claims[queue]
        self.changes += 1
        steps: list[Step] = [self._return(queue, claim.epoch)]
        if queue in self._saved:
            steps.append(StateSaved(queue, claim.epoch))
        if queue in self._target:  # the target has the queue again
            steps.append(self._ask(queue))
        return steps

    def _confirm(self, queue: MessageQueue, claim: _Claim, grant: Grant) -> list[Step]:
        was_unconfirmed, claim.unconfirmed_since = claim.unconfirmed_since is not None, None
        return [StartReading(queue, grant)] if was_unconfirmed and claim.phase is Phase.HELD else []

    def _lose(self, queue: MessageQueue, claim: _Claim) -> list[Step]:
        if queue not in self._target:
            return [LeaseLost(queue), *self._give_back(queue, claim)]
        self._claims[queue] = _Claim()
        self.changes += 1
        return [LeaseLost(queue)]

    def _is_over(self, claim: _Claim, now: float) -> bool:
        drained = claim.phase is Phase.LEAVING and now >= claim.leaving_since + self._revoke_timeout_s
        return drained or self._unconfirmed_too_long(claim, now)

    def _unconfirmed_too_long(self, claim: _Claim, now: float) -> bool:
        return claim.unconfirmed_since is not None and now >= claim.unconfirmed_since + self._lease_timeout_s


_ORDER = (LeaseLost, ReleaseLease, StateSaved, RequestLease)


def _together(steps: list[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: _ORDER.index(type(step))) if len(steps) > 1 else steps
