"""The queues of one member of a group, from its first question for one until it gives it back: pure.

The single owner of that state. Its caller reports events and carries out the steps that it returns, in their order:
some are requests to brokers, the others are for the reader of the queues. Time is an argument, in seconds on
any clock that does not go back.

A queue that is claimed goes through these phases:

    ASKED    its broker was asked for it and will grant it when nobody else holds it
    HELD     it is read under a lease
    LEAVING  another member is to have it: the reader finishes what is in flight, then reports `released`

A lease is trusted for a while after the last sign of its broker: after the time at which this member sent what the
broker has answered, so that neither an answer that was long on its way nor a process that slept can deceive it. A queue
whose lease cannot be trusted any more is lost, whatever the broker thinks; it is asked for again, under its former
epoch, when the broker is back.

When a session breaks, its leases are unconfirmed long before that: the broker may see it break too, and gives the
queues to others after a grace. The grace counts from the latest request that is known to have arrived, because the
broker had the session then. With the defaults it ends 3 s after a heartbeat that may be up to 10 s old, so reading
often stops at once. It goes on when the session is back and the broker has confirmed the lease, which takes a moment.
A process that has stood still for long, as under a listener that holds the GIL, asks for its leases likewise.

Silence alone does not make a lease unconfirmed. If a line is cut so that neither side notices, the broker keeps the
session for 60 s (`--session-timeout`), and the member trusts the lease for 30 s. If only the broker notices, the next
heartbeat tells the member.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from minimq_common.model import MessageQueue

#: A process that looks at the time a few times a second stood still if it has not done so for so many seconds.
STOOD_STILL_S = 5.0


class Trust:
    """The trust in the leases that one session has brought. Its `MemberState` changes it; any thread may look."""

    __slots__ = ("is_broken", "until")

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        #: The leases are unconfirmed: with another one the broker grants them anew.
        self.is_broken = False


class Grant(NamedTuple):
    """A lease."""

    #: Proves the ownership; 0 where there are no leases.
    epoch: int
    offset: int
    #: Tells apart topics that had the same name one after the other; 0 when it is not known.
    topic_id: int
    given_back: int = 0
    address: str = ""
    #: The latest one in the log of which the offset is; 0 when it is to be taken as it is.
    term: int = 0
    #: Deliveries of messages from the offset on to members that died; they end at `in_hand_end`, 0 if it is not known.
    tries: int = 0
    in_hand_end: int = 0
    queue_end: int = 0
    #: Of the session that has brought it.
    trust: Trust = Trust()


class Ask(NamedTuple):
    """Tell the broker that the queue is wanted."""

    queue: MessageQueue
    #: Under which it was held last, 0 if it was not.
    epoch: int
    given_back: int = 0


class GiveBack(NamedTuple):
    """Tell the broker that the queue is not held or wanted any more; epoch 0: it was only wanted."""

    queue: MessageQueue
    epoch: int


class Saved(NamedTuple):
    """Tell the broker that the state of a queue that was given back is saved, so that others may have it."""

    queue: MessageQueue
    epoch: int


class Begin(NamedTuple):
    """Read the queue, or go on reading it, under this lease."""

    queue: MessageQueue
    grant: Grant


class Revoke(NamedTuple):
    """Finish what is in flight of the queue, then report `released`: another member is to have it."""

    queue: MessageQueue


class Lose(NamedTuple):
    """Stop reading the queue at once: it is not this member's any more."""

    queue: MessageQueue


Step = Ask | GiveBack | Saved | Begin | Revoke | Lose


class Phase(Enum):
    """The phase of a claim."""

    ASKED = "asked"
    HELD = "held"
    LEAVING = "leaving"


class _Claim:
    __slots__ = ("epoch", "leaving_since", "phase", "stood_still", "unconfirmed_since")

    def __init__(self) -> None:
        self.phase = Phase.ASKED
        self.epoch = 0
        self.leaving_since = 0.0
        #: Since when the lease waits to be confirmed, as its broker does not know it or the session broke; else None.
        self.unconfirmed_since: float | None = None
        #: This process has stood still, so another member may have the queue: it is not to be claimed.
        self.stood_still = False


class MemberState:
    """The queues of one member. Used by one thread."""

    def __init__(self, *, drain_s: float, trust_s: float) -> None:
        self._drain_s = drain_s
        self._trust_s = trust_s
        self.changes = 0
        self._target: frozenset[MessageQueue] = frozenset()
        self._claims: dict[MessageQueue, _Claim] = {}
        #: The epoch under which each queue was held last.
        self._epochs: dict[MessageQueue, int] = {}
        #: How often each queue was given back: a grant that was on its way meanwhile does not hold any more.
        self._given_back: Counter[MessageQueue] = Counter()
        #: Queues whose state is saved since they were given back, or will be by then.
        self._saved: set[MessageQueue] = set()
        self._trust: dict[str, Trust] = {}
        #: The latest look at the time, and the latest after which this process had stood still.
        self._ticked_at = math.inf
        self._woke_at = -math.inf
        self._distrusted: set[str] = set()

    # ---- questions ------------------------------------------------------------------------------

    def held(self) -> list[MessageQueue]:
        """Return the queues that are this member's as far as it knows, sorted."""
        return sorted(
            queue for queue, claim in self._claims.items() if claim.phase is not Phase.ASKED and not claim.stood_still
        )

    def phase(self, queue: MessageQueue) -> Phase | None:
        """Tell how far the claim to a queue is; None when there is none."""
        claim = self._claims.get(queue)
        return claim.phase if claim else None

    def trust(self, broker: str) -> Trust:
        """Return the trust in leases that a broker grants now, which each sign of it prolongs."""
        return self._trust.setdefault(broker, Trust(-math.inf))

    # ---- events of the member -------------------------------------------------------------------

    def aim(self, target: Iterable[MessageQueue], now: float) -> list[Step]:
        """Set the queues that the member is to have."""
        self._target = frozenset(target)
        steps: list[Step] = []
        for queue in sorted(self._claims.keys() - self._target):
            claim = self._claims[queue]
            if claim.phase is Phase.ASKED:
                del self._claims[queue]
                steps.append(self._return(queue, 0))
            elif claim.phase is Phase.HELD:
                self._begin_leaving(claim, now)
                steps.append(Revoke(queue))
        for queue in sorted(self._target - self._claims.keys()):
            steps.append(self._ask(queue))
        return steps

    def released(self, epochs: Mapping[MessageQueue, int]) -> list[Step]:
        """Note that the reader has finished with queues, each under its epoch; ignore a queue with a later lease."""
        steps: list[Step] = []
        for queue, epoch in epochs.items():
            claim = self._claims.get(queue)
            if claim is not None and claim.phase is not Phase.ASKED and claim.epoch == epoch:
                steps += self._give_back(queue, claim)
        return _together(steps)

    def retire(self) -> list[Step]:
        """Give all queues back, with which the reader has finished, before the member leaves its group."""
        self._target = frozenset()
        return self.released({queue: claim.epoch for queue, claim in self._claims.items()})

    def saved(self, queues: Iterable[MessageQueue]) -> list[Step]:
        """Note that the user has saved the state of queues; if a queue is still held, report that with its release."""
        steps: list[Step] = []
        for queue in queues:
            if queue not in self._epochs:
                continue  # it never was this member's
            self._saved.add(queue)
            claim = self._claims.get(queue)
            if claim is None or claim.phase is Phase.ASKED:
                steps.append(Saved(queue, self._epochs[queue]))
        return steps

    # ---- events of brokers ----------------------------------------------------------------------

    def connected(self, broker: str) -> list[Step]:
        """Repeat all that concerns a broker: a session has begun, and earlier requests may be lost."""
        steps: list[Step] = []
        for queue, epoch in sorted(self._epochs.items()):
            if queue.broker_name == broker and queue not in self._claims:
                steps.append(self._return(queue, epoch))
                steps += [Saved(queue, epoch)] if queue in self._saved else []
        for queue in sorted(self._claims):
            if queue.broker_name == broker:
                steps.append(self._ask_for(queue))
        return _together(steps)

    def disconnected(self, broker: str, until: float, now: float) -> list[MessageQueue]:
        """Note that a session has broken; the broker keeps the leases at least until the given time.

        Returns the queues whose leases are unconfirmed from now on; those that were before are not among them.
        """
        former = self.trust(broker)
        self._trust[broker] = Trust(former.until)
        former.until, former.is_broken = min(former.until, until), True
        queues = [queue for queue in self._held_at({broker}) if self._claims[queue].unconfirmed_since is None]
        for queue in queues:
            self._claims[queue].unconfirmed_since = now
        return queues

    def _held_at(self, brokers: Collection[str]) -> list[MessageQueue]:
        claims = self._claims.items()
        return [queue for queue, claim in claims if queue.broker_name in brokers and claim.phase is not Phase.ASKED]

    def heard(self, broker: str, sent_at: float, now: float) -> list[Step]:
        """Note that a broker has answered a request of `sent_at`: it has known since then that this member is alive."""
        trust = self.trust(broker)
        trust.until = max(sent_at + self._trust_s, trust.until)
        if broker not in self._distrusted or now >= trust.until:
            return []
        self._distrusted.discard(broker)
        return self.connected(broker)

    def granted(self, queue: MessageQueue, grant: Grant, now: float) -> list[Step]:
        """Note that a broker has granted a queue, or confirmed its lease."""
        if now >= self.trust(queue.broker_name).until:
            # This process has slept since then. It asks the broker again at the next sign of it.
            self._distrusted.add(queue.broker_name)
            return []
        claim = self._claims.get(queue)
        if claim is None:  # it was wanted once
            self._epochs[queue] = max(grant.epoch, self._epochs.get(queue, 0))
            return [self._return(queue, grant.epoch)]
        if grant.given_back < self._given_back[queue]:
            return []  # given back before this member heard of it; what it has asked since will be answered
        if claim.phase is not Phase.ASKED and grant.epoch <= claim.epoch:
            return self._confirm(queue, claim, grant) if grant.epoch == claim.epoch else []
        leaves = claim.phase is Phase.LEAVING and queue not in self._target
        claim.phase = Phase.LEAVING if leaves else Phase.HELD
        claim.epoch = self._epochs[queue] = grant.epoch
        claim.unconfirmed_since = None
        claim.stood_still = False
        self._saved.discard(queue)
        self.changes += 1
        begin = Begin(queue, grant)
        return [begin, Revoke(queue)] if leaves else [begin]

    def wanted(self, queue: MessageQueue) -> list[Step]:
        """Note that another member waits for a queue that is this member's according to its broker."""
        # The release may have got lost with a session.
        return [] if queue in self._claims else [self._return(queue, self._epochs.get(queue, 0))]

    def lease_over(self, queue: MessageQueue, epoch: int, now: float) -> list[Step]:
        """Note that a broker does not know a lease: it was restarted, or another member has the queue by now."""
        claim = self._claims.get(queue)
        if claim is None or claim.phase is Phase.ASKED or claim.epoch != epoch:
            return []
        if claim.phase is Phase.HELD and queue in self._target:
            # The reader stands still meanwhile. If nobody else was given the queue it goes on where it is.
            if claim.unconfirmed_since is None:
                claim.unconfirmed_since = now
            return [self._ask_for(queue)]
        return [Lose(queue), *self._give_back(queue, claim)]

    # ---- time -----------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Step]:
        """Look at the time; to be called a few times a second.

        A process that has stood still has not listened to brokers. It asks them before it gives up its queues.
        """
        steps: list[Step] = []
        silent = {broker for broker, trust in self._trust.items() if now >= trust.until}
        if now >= self._ticked_at + STOOD_STILL_S:
            self._woke_at = now
            self._distrusted |= silent
            for broker in silent:
                self.disconnected(broker, now, now)
            asking = self._held_at(silent)
            for queue in asking:
                self._claims[queue].stood_still = True
            self.changes += bool(asking)
        self._ticked_at = now
        if now < self._woke_at + self._trust_s:
            silent = set()
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
                steps += [Lose(queue), *self._give_back(queue, claim)]
        return _together(steps)

    # ---- transitions ----------------------------------------------------------------------------

    def _ask(self, queue: MessageQueue) -> Step:
        self._claims[queue] = _Claim()
        return self._ask_for(queue)

    def _ask_for(self, queue: MessageQueue) -> Step:
        return Ask(queue, self._epochs.get(queue, 0), self._given_back[queue])

    def _return(self, queue: MessageQueue, epoch: int) -> Step:
        self._given_back[queue] += 1
        return GiveBack(queue, epoch)

    def _begin_leaving(self, claim: _Claim, now: float) -> None:
        claim.phase = Phase.LEAVING
        claim.leaving_since = now

    def _give_back(self, queue: MessageQueue, claim: _Claim) -> list[Step]:
        del self._claims[queue]
        self.changes += 1
        steps: list[Step] = [self._return(queue, claim.epoch)]
        if queue in self._saved:
            steps.append(Saved(queue, claim.epoch))
        if queue in self._target:  # the allocation has changed back meanwhile
            steps.append(self._ask(queue))
        return steps

    def _confirm(self, queue: MessageQueue, claim: _Claim, grant: Grant) -> list[Step]:
        was_unconfirmed, claim.unconfirmed_since = claim.unconfirmed_since is not None, None
        self.changes += claim.stood_still
        claim.stood_still = False
        return [Begin(queue, grant)] if was_unconfirmed and claim.phase is Phase.HELD else []

    def _lose(self, queue: MessageQueue, claim: _Claim) -> list[Step]:
        if queue not in self._target:
            return [Lose(queue), *self._give_back(queue, claim)]
        self._claims[queue] = _Claim()
        self.changes += 1
        return [Lose(queue)]

    def _is_over(self, claim: _Claim, now: float) -> bool:
        drained = claim.phase is Phase.LEAVING and now >= claim.leaving_since + self._drain_s
        return drained or self._unconfirmed_too_long(claim, now)

    def _unconfirmed_too_long(self, claim: _Claim, now: float) -> bool:
        return claim.unconfirmed_since is not None and now >= claim.unconfirmed_since + self._trust_s


_ORDER = (Lose, GiveBack, Saved, Ask)


def _together(steps: list[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: _ORDER.index(type(step))) if len(steps) > 1 else steps
