"""The brokers that are left out for a while, and the choice among the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.fault_table import Exclusion, FaultTable, choose_brokers

#: What an error costs by the default table.
ERROR_S = 10.0


def until(faults: FaultTable, broker: str, now: float) -> float | None:
    return next((exclusion.until for exclusion in faults.excluded(now) if exclusion.broker_name == broker), None)


# ---- Single exclusions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency_s", "excluded_s"),
    [
        (0.0, None),
        (0.549, None),
        (0.55, 2),
        (1.799, 2),
        (1.8, 5),
        (3.0, 6),
        (5.0, 10),
        (14.9, 10),
        (15.0, 30),
        (60, 30),
    ],
)
def test_the_longer_an_answer_took_the_longer_a_broker_is_excluded(latency_s: float, excluded_s: float | None) -> None:
    faults = FaultTable()
    faults.measured("a", latency_s, 0.0)
    assert until(faults, "a", 0.0) == excluded_s


def test_a_quick_answer_does_not_end_what_a_slow_one_began() -> None:
    faults, end = FaultTable(), 6.0
    faults.measured("a", 3.0, 0.0)
    faults.measured("a", 0.02, 0.1)
    assert not faults.available("a", math.nextafter(end, 0))
    assert faults.available("a", end)
    assert faults.available("b", 0.1)


def test_a_quick_answer_leaves_nothing_behind() -> None:
    faults = FaultTable()
    faults.measured("a", 0.549, 0.0)
    assert faults.version == 0
    assert faults.excluded(0.0) == []
    assert not faults.excluded(0.0)
    assert faults.next_end(0.0) == math.inf


def test_a_shorter_exclusion_does_not_shorten_a_longer_one() -> None:
    faults = FaultTable()
    faults.failed("a", "full", 0.0, unreachable=False, at_least_s=60.0)
    version = faults.version
    faults.failed("a", "busy", 1.0, unreachable=False)
    assert faults.excluded(1.0) == [Exclusion("a", 0.0, 60.0, "full", unreachable=False)]
    assert faults.version == version
    faults.failed("a", "busy", 55.0, unreachable=False)
    assert faults.excluded(55.0) == [Exclusion("a", 0.0, 65.0, "busy", unreachable=False)]
    assert faults.version != version


def test_an_exclusion_after_the_end_of_another_is_a_new_one() -> None:
    faults = FaultTable()
    faults.failed("a", "first", 0.0, unreachable=True)
    faults.failed("a", "second", ERROR_S, unreachable=True)
    assert faults.excluded(ERROR_S) == [Exclusion("a", ERROR_S, 2 * ERROR_S, "second", unreachable=True)]


def test_the_server_may_ask_for_more_time_but_not_for_less() -> None:
    faults = FaultTable()
    faults.failed("a", "busy", 0.0, unreachable=False, at_least_s=0.5)
    faults.failed("b", "busy", 0.0, unreachable=False, at_least_s=12.5)
    assert (until(faults, "a", 0.0), until(faults, "b", 0.0)) == (ERROR_S, 12.5)


def test_the_reason_of_slowness_tells_the_latency() -> None:
    faults = FaultTable()
    faults.measured("a", 0.7, 5.0)
    assert faults.excluded(5.0) == [Exclusion("a", 5.0, 7.0, "an answer took 0.70 s", unreachable=False)]


# ---- Probes -------------------------------------------------------------------------------------


def test_a_probe_that_is_answered_ends_being_unreachable() -> None:
    faults = FaultTable()
    faults.failed("a", "gone", 0.0, unreachable=True)
    assert faults.to_probe(1.0) == ["a"]
    assert not faults.reachable("a", 1.0)
    version = faults.version
    faults.reached("a", 1.0)
    assert faults.available("a", 1.0)
    assert faults.to_probe(1.0) == []
    assert faults.version != version


def test_a_probe_does_not_end_being_slow() -> None:
    faults = FaultTable()
    faults.measured("slow", 3.0, 0.0)
    faults.failed("full", "full", 0.0, unreachable=False)
    version = faults.version
    for broker in ("slow", "full", "well"):
        faults.reached(broker, 1.0)
    assert faults.to_probe(1.0) == []
    assert (until(faults, "slow", 1.0), until(faults, "full", 1.0)) == (6.0, ERROR_S)
    assert faults.version == version


def test_of_both_kinds_the_slow_one_stays() -> None:
    faults = FaultTable()
    faults.measured("a", 3.0, 0.0)
    faults.failed("a", "gone", 2.0, unreachable=True)
    assert faults.excluded(2.0) == [Exclusion("a", 0.0, 2.0 + ERROR_S, "gone", unreachable=True)]
    faults.reached("a", 3.0)
    assert faults.excluded(3.0) == [Exclusion("a", 0.0, 6.0, "an answer took 3.00 s", unreachable=False)]
    assert faults.reachable("a", 3.0)
    assert faults.available("a", 6.0)


def test_the_reason_is_that_of_what_lasts_longest() -> None:
    faults = FaultTable()
    faults.failed("a", "gone", 0.0, unreachable=True)
    faults.failed("a", "full", 1.0, unreachable=False)
    assert faults.excluded(1.0) == [Exclusion("a", 0.0, 1.0 + ERROR_S, "full", unreachable=True)]
    assert faults.excluded(ERROR_S) == [Exclusion("a", 1.0, 1.0 + ERROR_S, "full", unreachable=False)]


def test_a_broker_stays_out_while_probes_fail() -> None:
    faults = FaultTable()
    faults.failed("a", "gone", 0.0, unreachable=True)
    for second in range(1, 100):
        faults.unreached("a", float(second))
    assert faults.excluded(99.0) == [Exclusion("a", 0.0, 99.0 + ERROR_S, "gone", unreachable=True)]
    faults.reached("a", 99.5)
    assert faults.available("a", 99.5)


def test_a_probe_that_fails_late_begins_an_exclusion() -> None:
    faults = FaultTable()
    faults.failed("a", "gone", 0.0, unreachable=True)
    faults.unreached("a", ERROR_S + 1)
    assert faults.to_probe(ERROR_S + 1) == ["a"]


def test_a_probe_that_fails_after_the_broker_has_come_back_says_nothing() -> None:
    faults = FaultTable()
    faults.failed("a", "gone", 0.0, unreachable=True)
    faults.reached("a", 1.0)
    faults.unreached("a", 1.1)
    assert faults.available("a", 1.1)


# ---- What a caller keeps ------------------------------------------------------------------------


def test_the_next_end_is_that_of_the_first_part() -> None:
    faults = FaultTable()
    faults.measured("a", 3.0, 0.0)  # until 6
    faults.failed("a", "gone", 2.0, unreachable=True)  # until 12
    faults.measured("b", 0.6, 2.0)  # until 4
    assert [faults.next_end(now) for now in (2.0, 4.0, 6.0, 12.0)] == [4.0, 6.0, 12.0, math.inf]
    assert [not faults.excluded(now) for now in (2.0, 4.0, 6.0, 12.0)] == [False, False, False, True]


def test_exclusions_are_sorted_by_broker() -> None:
    faults = FaultTable()
    for broker in ("c", "a", "b"):
        faults.failed(broker, "gone", 0.0, unreachable=broker != "b")
    assert [exclusion.broker_name for exclusion in faults.excluded(0.0)] == ["a", "b", "c"]
    assert faults.to_probe(0.0) == ["a", "c"]


def test_exclusions_that_are_over_are_forgotten() -> None:
    faults = FaultTable()
    for number in range(1_000):
        faults.measured(f"slow-{number}", 1.0, float(number))
        faults.failed(f"gone-{number}", "gone", float(number), unreachable=True)
    assert len(faults._slow) <= 2
    assert len(faults.unreachable) <= ERROR_S


# ---- Which brokers to use -----------------------------------------------------------------------


@dataclass
class Case:
    """A situation at time 0: brokers that are slow and unreachable, with the time for which they are so."""

    what: str
    expected: str
    slow: dict[str, float] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    avoid: str | None = None
    names: str = "abc"


CASES = [
    Case("all are well", "abc"),
    Case("all are well, one is to be avoided", "ac", avoid="b"),
    Case("one is slow", "ac", slow={"b": 10}),
    Case("one is slow, one gone", "a", slow={"b": 10}, gone={"c": 10}),
    Case("the only good one is to be avoided: slow ones are next", "b", slow={"b": 90}, gone={"c": 10}, avoid="a"),
    Case("the only good one is to be avoided, the others are gone", "a", gone={"b": 10, "c": 10}, avoid="a"),
    Case("all are slow", "abc", slow={"a": 10, "b": 20, "c": 30}),
    Case("all are slow, one is to be avoided", "bc", slow={"a": 10, "b": 20, "c": 30}, avoid="a"),
    Case("slow ones come before gone ones, even for longer", "b", slow={"b": 90}, gone={"a": 10, "c": 10}),
    Case("all are gone", "b", gone={"a": 30, "b": 20, "c": 25}),
    Case("the first to come back is to be avoided", "b", gone={"a": 30, "b": 20}, avoid="b", names="ab"),
    Case("all are gone for as long, one is to be avoided", "b", gone={"a": 20, "b": 20, "c": 20}, avoid="a"),
    Case("avoided and slow, the other gone for longer", "a", slow={"a": 15}, gone={"b": 20}, avoid="a", names="ab"),
    Case("avoided and slow, the other gone for less", "b", slow={"a": 20}, gone={"b": 15}, avoid="a", names="ab"),
    Case("alone and well", "a", avoid="a", names="a"),
    Case("alone and slow", "a", slow={"a": 10}, avoid="a", names="a"),
    Case("alone and gone", "a", gone={"a": 10}, avoid="a", names="a"),
    Case("the one to be avoided carries the topic no more", "a", gone={"a": 10}, avoid="b", names="a"),
    Case("nobody is there", "", names=""),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_choice(case: Case) -> None:
    faults = FaultTable()
    for brokers, unreachable in ((case.slow, False), (case.gone, True)):
        for broker, seconds in brokers.items():
            faults.failed(broker, "as told", 0.0, unreachable=unreachable, at_least_s=seconds)
    assert choose_brokers(tuple(case.names), faults, case.avoid, 0.0) == tuple(case.expected)


# ---- Whatever happens ---------------------------------------------------------------------------

BROKERS = ("a", "b", "c")
brokers = st.sampled_from(BROKERS)
seconds = st.sampled_from([0.0, 0.1, 1.0, 2.5, 7.0, 40.0])
latencies = st.floats(0, 20)
events = st.one_of(
    st.tuples(st.just("measured"), brokers, latencies),
    st.tuples(st.just("slow"), brokers, seconds),
    st.tuples(st.just("gone"), brokers, seconds),
    st.tuples(st.just("reached"), brokers, st.just(0.0)),
    st.tuples(st.just("unreached"), brokers, st.just(0.0)),
)
#: Each event comes so many seconds after the one before.
histories = st.lists(st.tuples(seconds, events), max_size=30)


def happen(faults: FaultTable, event: tuple[str, str, float], now: float) -> None:
    kind, broker, number = event
    if kind == "measured":
        faults.measured(broker, number, now)
    elif kind == "reached":
        faults.reached(broker, now)
    elif kind == "unreached":
        faults.unreached(broker, now)
    else:
        faults.failed(broker, kind, now, unreachable=kind == "gone", at_least_s=number)


@given(histories, st.sampled_from([None, *BROKERS]))
def test_there_is_always_a_broker(history: list[tuple[float, tuple[str, str, float]]], avoid: str | None) -> None:
    faults, now = FaultTable(), 0.0
    for wait, event in history:
        now += wait
        happen(faults, event, now)
        for names in (BROKERS, BROKERS[:1], BROKERS[1:]):
            chosen = choose_brokers(names, faults, avoid, now)
            assert chosen
            assert set(chosen) <= set(names)
            well = [name for name in names if faults.available(name, now) and name != avoid]
            assert not well or list(chosen) == well


@given(histories)
def test_only_a_probe_makes_an_exclusion_end_earlier(history: list[tuple[float, tuple[str, str, float]]]) -> None:
    faults, now = FaultTable(), 0.0
    for wait, event in history:
        now += wait
        before = {exclusion.broker_name: exclusion for exclusion in faults.excluded(now)}
        happen(faults, event, now)
        after = {exclusion.broker_name: exclusion for exclusion in faults.excluded(now)}
        for broker, exclusion in before.items():
            if event[0] == "reached" and event[1] == broker and exclusion.unreachable:
                assert broker not in after or not after[broker].unreachable
            else:
                assert after[broker].until >= exclusion.until
                assert after[broker].since == exclusion.since


class Keeper:
    """A caller that computes again only when it has to."""

    def __init__(self, faults: FaultTable) -> None:
        self._faults = faults
        self._version, self._end = -1, math.inf
        self._kept: tuple[object, ...] = ()

    def value(self, now: float) -> tuple[object, ...]:
        if self._version != self._faults.version or now >= self._end:
            self._version, self._end = self._faults.version, self._faults.next_end(now)
            self._kept = choose_brokers(BROKERS, self._faults, "a", now), self._faults.excluded(now)
        return self._kept


@given(histories)
def test_version_and_next_end_tell_when_to_compute_again(history: list[tuple[float, tuple[str, str, float]]]) -> None:
    faults, now = FaultTable(), 0.0
    keeper = Keeper(faults)
    for wait, event in history:
        now += wait
        assert keeper.value(now) == (choose_brokers(BROKERS, faults, "a", now), faults.excluded(now))
        happen(faults, event, now)
        assert keeper.value(now) == (choose_brokers(BROKERS, faults, "a", now), faults.excluded(now))
