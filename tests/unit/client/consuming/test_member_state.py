"""The decisions of a group's member about queues: tables of events, and promises that hold whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.consuming.member_state import (
    Grant,
    LeaseLost,
    MemberState,
    Phase,
    ReleaseLease,
    RequestLease,
    Revoke,
    StartReading,
    Step,
)
from minimq_common.model import MessageQueue

REVOKE_TIMEOUT_S, LEASE_TIMEOUT_S = 5.0, 30.0
Q = MessageQueue("t", "a", 0)
R = MessageQueue("t", "a", 1)
OTHER = MessageQueue("t", "b", 0)


def grant(epoch: int) -> Grant:
    return Grant(epoch, 10, 1)


@pytest.fixture
def state() -> MemberState:
    """A member that has heard of both brokers at time 0."""
    made = MemberState(revoke_timeout_s=REVOKE_TIMEOUT_S, lease_timeout_s=LEASE_TIMEOUT_S)
    made.heard("a", 0.0, 0.0)
    made.heard("b", 0.0, 0.0)
    return made


@pytest.fixture
def holder(state: MemberState) -> MemberState:
    """A member that holds a queue under epoch 7."""
    state.aim([Q], 0.0)
    state.granted(Q, grant(7), 0.0)
    return state


def test_a_grant_that_crossed_the_giving_back_does_not_hold(state: MemberState) -> None:
    state.aim([Q], 0.0)
    assert state.aim([], 0.1) == [ReleaseLease(Q, 0)]
    assert state.aim([Q], 0.2) == [RequestLease(Q, 0, 1)]
    assert state.granted(Q, grant(7), 0.3) == [], "another has it by now"
    assert state.held() == []
    again = grant(9)._replace(given_back=1)
    assert state.granted(Q, again, 0.4) == [StartReading(Q, again)]
    assert state.connected("a") == [RequestLease(Q, 9, 1)]
    assert state.aim([], 0.5) == [Revoke(Q)]
    assert state.released({Q: 9}) == [ReleaseLease(Q, 9)]
    assert state.aim([Q], 0.6) == [RequestLease(Q, 9, 2)]
    assert state.granted(Q, again, 0.7) == [], "confirmed before it was given back"


# ---- trust --------------------------------------------------------------------------------------


def test_a_session_that_breaks_puts_its_leases_in_doubt_until_they_are_confirmed(holder: MemberState) -> None:
    holder.aim([Q, R, OTHER], 1.0)
    holder.granted(OTHER, grant(3), 1.0)
    trust = holder.trust("a")
    assert holder.disconnected("a", 4.0, 2.0) == [Q], "not what is only asked for, nor at other brokers"
    assert holder.disconnected("a", 4.0, 2.5) == [], "told once for each outage"
    assert holder.heard("a", 3.0, 3.0) == [], "the session is back, which says nothing of the lease"
    assert (trust.until, trust.is_broken) == (4.0, True)
    assert (holder.trust("a").until, holder.trust("a").is_broken) == (33.0, False)
    assert holder.granted(Q, grant(7), 3.0) == [StartReading(Q, grant(7))], "confirmed"
    assert holder.granted(Q, grant(7), 3.1) == []


def test_a_lease_in_doubt_is_lost_when_another_had_the_queue_meanwhile_or_nobody_knows(holder: MemberState) -> None:
    holder.disconnected("a", 4.0, 2.0)
    assert holder.granted(Q, grant(9), 3.0) == [StartReading(Q, grant(9))], (
        "a lease of its own, which the reader begins anew"
    )
    holder.disconnected("a", 6.0, 5.0)
    holder.heard("a", 20.0, 20.0)
    assert holder.tick(34.9) == []
    assert holder.tick(35.0) == [LeaseLost(Q)]


# ---- state --------------------------------------------------------------------------------------


# ---- whatever happens ---------------------------------------------------------------------------

QUEUES = [Q, R, OTHER]
events = st.lists(
    st.one_of(
        st.tuples(st.just("aim"), st.sets(st.sampled_from(QUEUES))),
        st.tuples(st.sampled_from(["granted", "lease_over"]), st.sampled_from(QUEUES), st.integers(1, 6)),
        st.tuples(st.sampled_from(["released", "saved"]), st.sampled_from(QUEUES)),
        st.tuples(st.just("heard"), st.sampled_from("ab"), st.floats(0, 40)),
        st.tuples(st.sampled_from(["connected", "disconnected"]), st.sampled_from("ab")),
        st.tuples(st.just("wanted"), st.sampled_from(QUEUES)),
        st.tuples(st.just("tick"), st.floats(0, 12)),
    ),
    max_size=60,
)


class Reader:
    """Does what it is told, and complains when that makes no sense."""

    def __init__(self) -> None:
        self.reads: dict[MessageQueue, int] = {}
        self.leaving: set[MessageQueue] = set()
        self.unconfirmed: set[MessageQueue] = set()
        #: What brokers were told when they were asked last: how often a queue was given back; and how often it was.
        self.asked: Counter[MessageQueue] = Counter()
        self.given_back: Counter[MessageQueue] = Counter()

    def take(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case RequestLease(queue, _, given_back):
                    assert given_back == self.given_back[queue]
                    self.asked[queue] = given_back
                case ReleaseLease(queue):
                    self.given_back[queue] += 1
                case StartReading(queue, given):
                    assert given.given_back == self.given_back[queue], "a lease that was given back"
                    before = self.reads.get(queue, 0)
                    assert given.epoch > before or (given.epoch == before and queue in self.unconfirmed), (
                        "an older lease"
                    )
                    self.reads[queue] = given.epoch
                    self.unconfirmed.discard(queue)
                    self.leaving.discard(queue)
                case Revoke(queue):
                    assert queue in self.reads
                    assert queue not in self.leaving, "revoked twice"
                    self.leaving.add(queue)
                case LeaseLost(queue):
                    assert queue in self.reads, "lost what was not had"
                    del self.reads[queue]
                    self.unconfirmed.discard(queue)
                    self.leaving.discard(queue)


def play(state: MemberState, reader: Reader, now: float, event: Any) -> Sequence[Step]:  # noqa: C901, PLR0911
    match event:
        case ("aim", target):
            return state.aim(target, now)
        case ("granted", queue, epoch):
            return state.granted(queue, grant(epoch)._replace(given_back=reader.asked[queue]), now)
        case ("lease_over", queue, epoch):
            if reader.reads.get(queue) == epoch:
                reader.unconfirmed.add(queue)
            return state.lease_over(queue, epoch, now)
        case ("released", queue):
            epoch = reader.reads.pop(queue, None)
            if epoch is None:
                return []
            reader.leaving.discard(queue)
            reader.unconfirmed.discard(queue)
            return state.released({queue: epoch})
        case ("saved", queue):
            return state.saved([queue])
        case ("heard", broker, ago):
            return state.heard(broker, max(now - ago, 0.0), now)
        case ("disconnected", broker):
            reader.unconfirmed.update(state.disconnected(broker, now, now))
            return []
        case ("connected", broker):
            return state.connected(broker)
        case ("wanted", queue):
            return state.wanted(queue)
        case _:
            trusts = {broker: state.trust(broker) for broker in "ab"}
            steps = state.tick(now)
            reader.unconfirmed |= {queue for queue in reader.reads if trusts[queue.broker_name].is_broken}
            return steps


@given(events)
def test_reader_and_member_never_disagree_about_what_is_held(happening: list[Any]) -> None:
    state, reader = MemberState(revoke_timeout_s=REVOKE_TIMEOUT_S, lease_timeout_s=LEASE_TIMEOUT_S), Reader()
    now, changes, held = 0.0, state.changes, state.held()
    for event in happening:
        now += event[1] if event[0] == "tick" else 0.1
        reader.take(play(state, reader, now, event))
        assert sorted(reader.reads) == state.held(), event
        assert reader.leaving == {queue for queue, claim in state._claims.items() if claim.phase is Phase.LEAVING}
        if state.held() != held:
            assert state.changes != changes, "a change that is not told"
        changes, held = state.changes, state.held()
    reader.take(state.tick(now))
    assert all(now < state.trust(queue.broker_name).until for queue in reader.reads)
