"""Brokers in trouble: those that are avoided for a while, those that are silent, and the choice among the others."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from minimq.connection.broker_troubles import BrokerTroubles, Trouble, choose_brokers
from minimq_common.errors import NoPermission, SystemBusy, Unavailable
from support.cases import for_each

#: What an error costs by the default table.
ERROR_S = 10.0


def until(troubles: BrokerTroubles, broker: str, now: float) -> float | None:
    known = troubles.trouble(broker, now)
    return None if known is None else known.until


# ---- Single troubles ----------------------------------------------------------------------------


@for_each(
    ("latency_s", "avoided_s"),
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
def test_the_longer_an_answer_took_the_longer_a_broker_is_avoided(latency_s: float, avoided_s: float | None) -> None:
    troubles = BrokerTroubles()
    troubles.measured("a", latency_s, 0.0)
    assert until(troubles, "a", 0.0) == avoided_s


def test_the_server_may_ask_for_more_time_but_not_for_less() -> None:
    troubles = BrokerTroubles()
    troubles.failed("a", SystemBusy("busy", retry_after_s=0.5), 0.0, 0.0)
    troubles.failed("b", SystemBusy("busy", retry_after_s=12.5), 0.0, 0.0)
    assert (until(troubles, "a", 0.0), until(troubles, "b", 0.0)) == (ERROR_S, 12.5)


def test_an_error_that_says_nothing_against_the_broker_and_a_stream_that_ended_are_no_trouble() -> None:
    troubles = BrokerTroubles()
    troubles.failed("a", NoPermission("not now"), 9.0, 0.0)
    troubles.failed("a", None, 9.0, 0.0)
    assert not troubles.known


def test_a_silent_broker_has_to_answer_and_is_avoided_on_if_it_was_slow() -> None:
    troubles = BrokerTroubles()
    troubles.failed("a", Unavailable("gone"), 1.0, 0.0)
    troubles.failed("a", Unavailable("still gone"), 0.0, 1.0)
    assert troubles.trouble("a", 1000.0) == Trouble(0.0, 2.0, "gone", is_silent=True)
    assert troubles.is_silent("a")
    troubles.answers("a")
    assert not troubles.is_silent("a")
    assert (until(troubles, "a", 1.9), until(troubles, "a", 2.0)) == (2.0, None)


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


@for_each("case", CASES)
def test_choice(case: Case) -> None:
    chosen = choose_brokers(tuple(case.names), case.slow.__contains__, case.gone.__contains__, case.avoid)
    assert chosen == tuple(case.expected)


# ---- Whatever happens ---------------------------------------------------------------------------

BROKERS = ("a", "b", "c")
brokers = st.sampled_from(BROKERS)
seconds = st.sampled_from([0.0, 0.1, 1.0, 2.5, 7.0, 40.0])
#: Each event comes so many seconds after the one before.
histories = st.lists(st.tuples(seconds, st.sampled_from(["slow", "busy", "gone"]), brokers, st.floats(0, 20)))


@given(histories)
def test_only_time_and_answers_end_a_trouble(history: list[tuple[float, str, str, float]]) -> None:
    troubles, now = BrokerTroubles(), 0.0
    for wait, what, broker, number in history:
        now += wait
        before = {name: troubles.trouble(name, now) for name in BROKERS}
        match what:
            case "slow":
                troubles.measured(broker, number, now)
            case "busy":
                troubles.failed(broker, SystemBusy("busy", retry_after_s=number), 0.0, now)
            case _:
                troubles.failed(broker, Unavailable("gone"), number, now)
        for name, earlier in before.items():
            later = troubles.trouble(name, now)
            if earlier is not None:
                assert later is not None
                assert later.until >= earlier.until
                assert later.since == earlier.since
                assert later.is_silent >= earlier.is_silent
