"""The brokers that are left out for a while, and the choice among the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
    assert faults.is_excluded("a", math.nextafter(end, 0))
    assert not faults.is_excluded("a", end)
    assert not faults.is_excluded("b", 0.1)


def test_a_quick_answer_leaves_nothing_behind() -> None:
    faults = FaultTable()
    faults.measured("a", 0.549, 0.0)
    assert faults.version == 0
    assert faults.excluded(0.0) == []
    assert not faults.excluded(0.0)
    assert faults.next_end(0.0) == math.inf


def test_a_shorter_exclusion_does_not_shorten_a_longer_one() -> None:
    faults = FaultTable()
    faults.failed("a", "full", 0.0, at_least_s=60.0)
    version = faults.version
    faults.failed("a", "busy", 1.0)
    assert faults.excluded(1.0) == [Exclusion("a", 0.0, 60.0, "full")]
    assert faults.version == version
    faults.failed("a", "busy", 55.0)
    assert faults.excluded(55.0) == [Exclusion("a", 0.0, 65.0, "busy")]
    assert faults.version != version


def test_an_exclusion_after_the_end_of_another_is_a_new_one() -> None:
    faults = FaultTable()
    faults.failed("a", "first", 0.0)
    faults.failed("a", "second", ERROR_S)
    assert faults.excluded(ERROR_S) == [Exclusion("a", ERROR_S, 2 * ERROR_S, "second")]


def test_the_server_may_ask_for_more_time_but_not_for_less() -> None:
    faults = FaultTable()
    faults.failed("a", "busy", 0.0, at_least_s=0.5)
    faults.failed("b", "busy", 0.0, at_least_s=12.5)
    assert (until(faults, "a", 0.0), until(faults, "b", 0.0)) == (ERROR_S, 12.5)


def test_the_reason_of_slowness_tells_the_latency() -> None:
    faults = FaultTable()
    faults.measured("a", 0.7, 5.0)
    assert faults.excluded(5.0) == [Exclusion("a", 5.0, 7.0, "an answer took 0.70 s")]


# ---- What a caller keeps ------------------------------------------------------------------------


def test_the_next_end_is_that_of_the_first_exclusion() -> None:
    faults = FaultTable()
    faults.measured("a", 3.0, 0.0)  # until 6
    faults.measured("b", 0.6, 2.0)  # until 4
    assert [faults.next_end(now) for now in (2.0, 4.0, 6.0)] == [4.0, 6.0, math.inf]
    assert [not faults.excluded(now) for now in (2.0, 4.0, 6.0)] == [False, False, True]


def test_exclusions_are_sorted_by_broker() -> None:
    faults = FaultTable()
    for broker in ("c", "a", "b"):
        faults.failed(broker, "full", 0.0)
    assert [exclusion.broker_name for exclusion in faults.excluded(0.0)] == ["a", "b", "c"]


def test_exclusions_that_are_over_are_forgotten() -> None:
    faults = FaultTable()
    for number in range(1_000):
        faults.measured(f"slow-{number}", 1.0, float(number))
    assert len(faults._exclusions) <= 2


# ---- Which brokers to use -----------------------------------------------------------------------


@dataclass
class Case:
    """A situation: brokers that are excluded, and those that do not answer."""

    what: str
    expected: str
    slow: str = ""
    gone: str = ""
    avoid: str | None = None
    names: str = "abc"


CASES = [
    Case("all are well", "abc"),
    Case("all are well, one is to be avoided", "ac", avoid="b"),
    Case("one is slow", "ac", slow="b"),
    Case("one is slow, one gone", "a", slow="b", gone="c"),
    Case("the only good one is to be avoided: slow ones are next", "b", slow="b", gone="c", avoid="a"),
    Case("the only good one is to be avoided, the others are gone", "a", gone="bc", avoid="a"),
    Case("all are slow", "abc", slow="abc"),
    Case("all are slow, one is to be avoided", "bc", slow="abc", avoid="a"),
    Case("slow ones come before gone ones", "b", slow="b", gone="ac"),
    Case("all are gone", "abc", gone="abc"),
    Case("all are gone, one is to be avoided", "bc", gone="abc", avoid="a"),
    Case("avoided and slow, the other gone", "a", slow="a", gone="b", avoid="a", names="ab"),
    Case("alone and well", "a", avoid="a", names="a"),
    Case("alone and slow", "a", slow="a", avoid="a", names="a"),
    Case("alone and gone", "a", gone="a", avoid="a", names="a"),
    Case("the one to be avoided carries the topic no more", "a", gone="a", avoid="b", names="a"),
    Case("nobody is there", "", names=""),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_choice(case: Case) -> None:
    chosen = choose_brokers(tuple(case.names), case.slow.__contains__, case.gone.__contains__, case.avoid)
    assert chosen == tuple(case.expected)


# ---- Whatever happens ---------------------------------------------------------------------------

BROKERS = ("a", "b", "c")
brokers = st.sampled_from(BROKERS)
seconds = st.sampled_from([0.0, 0.1, 1.0, 2.5, 7.0, 40.0])
latencies = st.floats(0, 20)
events = st.one_of(
    st.tuples(st.just("measured"), brokers, latencies),
    st.tuples(st.just("full"), brokers, seconds),
)
#: Each event comes so many seconds after the one before.
histories = st.lists(st.tuples(seconds, events), max_size=30)


def happen(faults: FaultTable, event: tuple[str, str, float], now: float) -> None:
    kind, broker, number = event
    if kind == "measured":
        faults.measured(broker, number, now)
    else:
        faults.failed(broker, kind, now, at_least_s=number)


@given(st.sets(brokers), st.sets(brokers), st.sampled_from([None, *BROKERS]))
def test_there_is_always_a_broker(slow: set[str], gone: set[str], avoid: str | None) -> None:
    for names in (BROKERS, BROKERS[:1], BROKERS[1:]):
        chosen = choose_brokers(names, slow.__contains__, gone.__contains__, avoid)
        assert chosen
        assert set(chosen) <= set(names)
        well = [name for name in names if name not in slow | gone | {avoid}]
        assert not well or list(chosen) == well


@given(histories)
def test_only_time_ends_an_exclusion(history: list[tuple[float, tuple[str, str, float]]]) -> None:
    faults, now = FaultTable(), 0.0
    for wait, event in history:
        now += wait
        before = {exclusion.broker_name: exclusion for exclusion in faults.excluded(now)}
        happen(faults, event, now)
        after = {exclusion.broker_name: exclusion for exclusion in faults.excluded(now)}
        for broker, exclusion in before.items():
            assert after[broker].until >= exclusion.until
            assert after[broker].since == exclusion.since


class Keeper:
    """A caller that computes again only when it has to."""

    def __init__(self, faults: FaultTable) -> None:
        self._faults = faults
        self._version, self._end = -1, math.inf
        self._kept: list[Exclusion] = []

    def value(self, now: float) -> list[Exclusion]:
        if self._version != self._faults.version or now >= self._end:
            self._version, self._end = self._faults.version, self._faults.next_end(now)
            self._kept = self._faults.excluded(now)
        return self._kept


@given(histories)
def test_version_and_next_end_tell_when_to_compute_again(history: list[tuple[float, tuple[str, str, float]]]) -> None:
    faults, now = FaultTable(), 0.0
    keeper = Keeper(faults)
    for wait, event in history:
        now += wait
        assert keeper.value(now) == faults.excluded(now)
        happen(faults, event, now)
        assert keeper.value(now) == faults.excluded(now)
