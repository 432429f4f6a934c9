"""The ends of transactions, whatever gets lost between writers and brokers."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minimq.features.transactions.decisions import Calls, CommitProtocol, Decision, StagedPart, Transaction
from minimq.features.transactions.transactions import _Attempt
from minimq_common.errors import InternalError, TransactionEnded, TransactionExpired, Unavailable
from support.chance import SEED

NAME = "row"


def part(broker_name: str, *sequences: int, producer_id: int = 7) -> StagedPart:
    return StagedPart(broker_name, producer_id, sequences)


def told(protocol: CommitProtocol, **latest: Decision | None) -> CommitProtocol:
    for broker_name, decision in latest.items():
        protocol.described(broker_name, decision)
    return protocol


def protocol_of(
    number: int, *parts: StagedPart, carrying: Iterable[str] = ("a", "b"), decided: bool = False
) -> CommitProtocol:
    protocol = CommitProtocol(Transaction(NAME, number), parts, decided=decided)
    protocol.see(set(carrying))
    return protocol


# ---- single decisions ---------------------------------------------------------------------------


def test_a_decision_for_the_number_stands_wherever_it_is_found() -> None:
    """It was made with the brokers that were there: what a new one has staged since is let go of by the same call."""
    earlier = Decision(4, (part("a", 1), part("b", 2)), ("a", "b"))
    protocol = protocol_of(4, part("0", 9), part("b", 8), carrying=["0", "a", "b"])
    told(protocol, b=earlier)
    assert protocol.calls() == Calls(["0", "a", "b"], earlier)
    assert protocol.decision == earlier


def test_a_broker_that_carries_nothing_any_more_is_not_named_again() -> None:
    before = Decision(4, (), ("a", "b", "c"))
    protocol = told(protocol_of(5, part("a", 3)), a=before, b=before, c=before)
    [_], decision = protocol.calls()
    assert decision is not None
    assert decision.broker_names == ("a", "b")


def test_a_later_number_means_that_another_writer_is_ahead() -> None:
    later = Decision(6, (), ("a", "b"))
    with pytest.raises(TransactionEnded, match="broker b has decided number 6"):
        told(protocol_of(5, part("a", 3)), b=later)
    protocol = told(protocol_of(5, part("a", 3)), a=None, b=None)
    with pytest.raises(TransactionEnded, match="another writer"):
        protocol.committed("a", later)


def test_two_decisions_for_one_number_are_told() -> None:
    protocol = told(protocol_of(0, part("a", 3)), a=Decision(0, (part("a", 1),), ("a",)))
    with pytest.raises(InternalError, match="broker b keeps another decision"):
        protocol.committed("b", Decision(0, (part("b", 1),), ("b",)))


def test_nothing_new_is_decided_with_a_part_missing() -> None:
    """A broker rejects a staged batch, since the transaction is decided; it will say so again when it is reached."""
    protocol = told(protocol_of(5, part("a", 3), decided=True), a=None, b=None)
    assert protocol.calls() == Calls(["a", "b"])
    assert protocol.staged_at("a") == ()
    earlier = Decision(5, (), ("a", "b"))
    assert told(protocol, b=earlier).calls() == Calls(["a", "b"], earlier)


def test_nothing_is_decided_of_which_a_part_has_expired() -> None:
    protocol = told(protocol_of(0, part("a", 1), part("b", 1, 2)), a=None)
    protocol.described("b", None, missing=2)
    with pytest.raises(TransactionExpired, match="not decided: broker b has dropped 2 of its batches"):
        protocol.calls()


def test_what_is_decided_stands_though_a_part_of_a_later_attempt_has_expired() -> None:
    earlier = Decision(0, (part("a", 5),), ("a", "b"))
    protocol = protocol_of(0, part("a", 1), part("b", 1, 2))
    protocol.described("b", None, missing=2)
    assert told(protocol, a=earlier).calls() == Calls(["a", "b"], earlier)


# ---- anything may happen ------------------------------------------------------------------------


@dataclass
class Broker:
    """The promises of a broker about the transactions of one name."""

    up: bool = True
    latest: Decision | None = None
    #: Number, producer and sequence of what is staged.
    staged: set[tuple[int, int, int]] = field(default_factory=set)
    #: Number and producer of what is published.
    published: list[tuple[int, int]] = field(default_factory=list)
    #: Numbers and producers whose batches it keeps until it hears of a decision.
    prepared: set[tuple[int, int]] = field(default_factory=set)

    def describe(self, number: int, parts: tuple[StagedPart, ...]) -> int:
        """Return how many batches are missing; keep them when none is."""
        if self.latest is not None and number <= self.latest.number:
            return 0
        named = {(number, at.producer_id, sequence) for at in parts for sequence in at.sequences}
        if named and named <= self.staged:
            self.prepared |= {batch[:2] for batch in self.staged if batch[0] == number}
        return len(named - self.staged)

    def expire(self) -> None:
        """Let go of what is staged and not to be kept, to make room for others."""
        self.staged = {batch for batch in self.staged if batch[:2] in self.prepared}

    def stage(self, number: int, producer_id: int, sequence: int) -> bool:
        if self.latest is not None and number <= self.latest.number:
            return False
        self.staged.add((number, producer_id, sequence))
        return True

    def commit(self, name: str, decision: Decision) -> Decision:
        if self.latest is not None and decision.number <= self.latest.number:
            return self.latest
        own = [
            (decision.number, at.producer_id, sequence)
            for at in decision.parts
            if at.broker_name == name
            for sequence in at.sequences
        ]
        assert self.staged.issuperset(own), f"{name} has lost what is decided"
        self.published += [(number, producer_id) for number, producer_id, _ in own]
        self.staged = {batch for batch in self.staged if batch[0] > decision.number}
        self.latest = decision
        return decision


class Call(NamedTuple):
    """A call to one broker; without a decision, it describes the parts."""

    broker_name: str
    decision: Decision | None
    parts: tuple[StagedPart, ...]


class World:
    """Brokers, and attempts to write to them, each of which stages two batches at each broker that is there.

    Args:
        names: of the brokers.
        hung: one that is registered, has nothing to do with any of it, and never answers.
    """

    def __init__(self, *names: str, hung: str | None = None) -> None:
        self.brokers = {name: Broker() for name in names}
        self.hung = hung
        self.attempts: list[CommitProtocol | None] = []
        #: Parts by number and attempt.
        self.parts: dict[tuple[int, int], int] = {}
        #: Numbers and calls.
        self.in_flight: list[tuple[int, Call]] = []

    @property
    def there(self) -> list[str]:
        return [name for name, broker in self.brokers.items() if broker.up]

    def begin(self, number: int) -> CommitProtocol:
        attempt = len(self.attempts)
        decided = False
        parts = []
        for name in self.there:
            sequences = [at for at in (0, 1) if self.brokers[name].stage(number, attempt, at)]
            decided = decided or len(sequences) < 2
            if sequences:
                parts.append(StagedPart(name, attempt, tuple(sequences)))
        self.parts[number, attempt] = sum(len(part.sequences) for part in parts)
        protocol = CommitProtocol(Transaction(NAME, number), parts, decided=decided)
        self.look(protocol)
        self.attempts.append(protocol)
        return protocol

    def look(self, protocol: CommitProtocol) -> None:
        protocol.see(self.there, [*self.there, self.hung] if self.hung else self.there)

    def call(self, number: int, call: Call) -> tuple[Decision | None, int]:
        broker = self.brokers[call.broker_name]
        if call.decision is None:
            return broker.latest, broker.describe(number, call.parts)
        return broker.commit(call.broker_name, call.decision), 0

    def step(self, index: int, which: int, outcome: str) -> None:
        """Let an attempt make one of the calls that it wants to make."""
        protocol = self.attempts[-1 - index % len(self.attempts)]
        if protocol is None:
            return
        try:
            names, decision = protocol.calls()
        except TransactionExpired:
            self.crash(index)
            return
        if not names:
            return
        name = names[which % len(names)]
        call = Call(name, decision, protocol.staged_at(name))
        if call.broker_name == self.hung or not self.brokers[call.broker_name].up or outcome == "not sent":
            protocol.failed(call.broker_name)
            self.look(protocol)
        elif outcome == "late":
            self.in_flight.append((protocol.transaction.number, call))
            protocol.failed(call.broker_name)
        else:
            latest, missing = self.call(protocol.transaction.number, call)
            if outcome == "answer lost":
                protocol.failed(call.broker_name)
                return
            try:
                if call.decision is None:
                    protocol.described(call.broker_name, latest, missing)
                else:
                    assert latest is not None
                    protocol.committed(call.broker_name, latest)
            except TransactionEnded:
                self.crash(index)

    def crash(self, index: int) -> None:
        self.attempts[-1 - index % len(self.attempts)] = None

    def change(self, name: str) -> None:
        """Let a broker appear, go offline or come back; one that knows of an earlier transaction is always there."""
        broker = self.brokers.setdefault(name, Broker(up=False))
        broker.up = not broker.up
        if not any(self.brokers[there].latest for there in self.there):
            broker.up = True

    def arrive(self, index: int) -> None:
        """Let a call arrive that is long given up."""
        if self.in_flight:
            number, call = self.in_flight.pop(index % len(self.in_flight))
            if self.brokers[call.broker_name].up:
                self.call(number, call)
            else:
                self.in_flight.append((number, call))

    def expire(self, name: str) -> None:
        if name in self.brokers and self.brokers[name].up:
            self.brokers[name].expire()

    def finish(self, protocol: CommitProtocol) -> None:
        for _ in range(200):
            if protocol.finished or protocol not in self.attempts:
                return
            self.look(protocol)
            self.step(len(self.attempts) - 1 - self.attempts.index(protocol), 0, "answered")
        raise AssertionError(f"no end: {protocol.calls()}")

    def check(self, numbers: int) -> None:
        """Of each number exactly one attempt is published, as a whole and once."""
        published = [batch for broker in self.brokers.values() for batch in broker.published]
        for number in range(numbers):
            of_number = [attempt for at, attempt in published if at == number]
            assert len(set(of_number)) == 1, f"number {number}: attempts {of_number}"
            assert len(of_number) == self.parts[number, of_number[0]], f"number {number} in parts"


#: What happens, to which of the latest attempts, a number that says more, and what becomes of a call.
Step = tuple[str, int, int, str]
_WHO = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), _WHO, st.integers(1, 4), st.just("")),
        st.tuples(st.just("step"), _WHO, st.integers(0, 3), st.sampled_from(["answer lost", "late", "not sent"])),
        st.tuples(st.sampled_from(["change", "expire"]), st.just(0), st.integers(0, 4), st.just("")),
        st.tuples(st.sampled_from(["crash", "arrive", "begin", "begin"]), _WHO, st.just(0), st.just("")),
    ),
    max_size=12,
)
#: Brokers that come and go.
NAMES = ("0", "00", "a", "b", "z")


def play(world: World, number: int, steps: list[Step], *, change: bool = True) -> None:
    """Let attempts at one number get in each other's way, with brokers that come and go, then end it."""
    world.begin(number)
    for what, index, which, outcome in steps:
        match what:
            case "run":
                for _ in range(2 * which):
                    world.step(index, 0, "answered")
            case "step":
                world.step(index, which, outcome)
            case "crash":
                world.crash(index)
            case "arrive":
                world.arrive(index)
            case "begin":
                world.begin(number)
            case "change" | "expire" if change or what == "expire":
                getattr(world, what)(NAMES[which])
    for broker in world.brokers.values():
        broker.up = True
    world.finish(world.begin(number))


def random_steps(chance: random.Random) -> list[Step]:
    kinds = ["run", "run", "run", "step", "step", "change", "crash", "arrive", "begin", "begin", "expire"]
    outcomes = ["answer lost", "late", "not sent"]
    return [
        (chance.choice(kinds), chance.randrange(3), chance.randint(1, 4), chance.choice(outcomes))
        for _ in range(chance.randint(1, 14))
    ]


def play_rounds(rounds: list[list[Step]], hung: str | None = None) -> None:
    """Attempts at earlier numbers, and calls they have made, are still about in the rounds after."""
    world = World("a", "b", hung=hung)
    world.finish(world.begin(0))
    for number, steps in enumerate(rounds, 1):
        play(world, number, steps)
        world.check(number + 1)
    for index in range(len(world.in_flight)):
        world.arrive(index)
    for protocol in [protocol for protocol in world.attempts if protocol is not None]:
        world.finish(protocol)
    world.check(len(rounds) + 1)


_APPEARS_MEANWHILE: list[Step] = [
    ("run", 0, 1, ""),
    ("change", 0, 0, ""),
    ("begin", 0, 0, ""),
    ("run", 0, 4, ""),
    ("run", 1, 4, ""),
]


@settings(max_examples=100, deadline=None)
@example([_APPEARS_MEANWHILE])
@given(st.lists(STEPS, min_size=1, max_size=2))
def test_one_attempt_is_published_as_a_whole_whatever_gets_lost(rounds: list[list[Step]]) -> None:
    play_rounds(rounds)


def test_so_it_is_in_thousands_of_histories() -> None:
    """Two decisions need a rare event: brokers that appear between the question and the decision of an attempt."""
    for seed in range(SEED, SEED + 2_500):
        chance = random.Random(seed)
        rounds = [random_steps(chance) for _ in range(chance.randint(1, 2))]
        try:
            play_rounds(rounds, hung=chance.choice([None, "000", "zz"]))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}: {rounds}") from error


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_so_is_the_first_of_a_name_as_long_as_all_see_the_same_brokers(steps: list[Step]) -> None:
    world = World("a", "b")
    play(world, 0, steps, change=False)
    world.check(1)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 12), st.sampled_from([["0"], ["z"], ["0", "z"]]))
def test_so_is_the_first_when_a_writer_goes_on_that_sees_more_brokers(until: int, appear: list[str]) -> None:
    world = World("a", "b")
    world.begin(0)
    for _ in range(until):
        world.step(0, 0, "answered")
    world.crash(0)
    world.brokers |= {name: Broker() for name in appear}
    world.finish(world.begin(0))
    world.check(1)


# ---- what an error says -------------------------------------------------------------------------


def test_a_decision_that_no_broker_knows_is_not_called_unknown() -> None:
    masters: Any = None
    attempt = _Attempt(protocol_of(0, decided=True), (), masters)
    said = attempt.timeout_error(0.5).message
    assert said.endswith("it is decided, as a broker reported, and no broker that answers knows the decision")
    attempt = _Attempt(protocol_of(0), (), masters)
    attempt._wait_for("a", Unavailable("nobody listens"))
    said = attempt.timeout_error(0.5).message
    assert "(broker a: nobody listens): it is not known whether it is decided: only these brokers know; " in said
