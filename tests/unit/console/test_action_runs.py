"""Described actions are remembered for a while, for one browser, and done once; fields have bounds."""

from __future__ import annotations

import pytest

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_console.action_runs import (
    CONFIRM_S,
    MOST_OF_A_BROWSER,
    MOST_RUNS,
    MOST_UNDER_WAY,
    REMEMBERED_S,
    ActionRun,
    ActionRuns,
    MistypedName,
    digest_of,
)
from minimq_console.form_field import FormField, check_all
from minimq_console.parameters import Parameters

DIGEST = digest_of("/a", {"queues": "4"})


def run(number: str, browser: str = "b", now_s: float = 0.0) -> ActionRun:
    return ActionRun(number, browser, DIGEST, "", "Resize", "/a", now_s)


def test_it_is_begun_once_and_its_end_is_remembered() -> None:
    runs, described = ActionRuns(), run("1")
    runs.describe(described, 0.0)
    assert runs.confirm("1", "b", DIGEST, "", CONFIRM_S - 1) == (described, True)
    assert runs.confirm("1", "b", DIGEST, "", CONFIRM_S + REMEMBERED_S) == (described, False)  # it takes that long
    described.end(5_000.0, "done")
    assert runs.confirm("1", "b", DIGEST, "", 5_000.0 + REMEMBERED_S - 1) == (described, False)
    with pytest.raises(InvalidArgument, match="nothing was done"):
        runs.confirm("1", "b", DIGEST, "", 5_000.0 + REMEMBERED_S)


@pytest.mark.parametrize(
    ("number", "browser", "digest", "now_s"),
    [
        ("2", "b", DIGEST, 0.0),
        ("1", "other", DIGEST, 0.0),
        ("1", "\N{SNOWMAN}", DIGEST, 0.0),
        ("1", "b", digest_of("/a", {"queues": "5"}), 0.0),
        ("1", "b", digest_of("/b", {"queues": "4"}), 0.0),
        ("1", "b", DIGEST, CONFIRM_S),
    ],
)
def test_only_what_was_described_is_begun(number: str, browser: str, digest: bytes, now_s: float) -> None:
    runs = ActionRuns()
    runs.describe(run("1"), 0.0)
    with pytest.raises(InvalidArgument):
        runs.confirm(number, browser, digest, "", now_s)


def test_a_mistyped_name_begins_nothing_and_may_be_typed_again() -> None:
    runs, described = ActionRuns(), ActionRun("1", "b", DIGEST, "orders", "Delete", "/a", 0.0)
    runs.describe(described, 0.0)
    for typed in ("", "order", "orders "):
        with pytest.raises(MistypedName, match="to confirm it, type orders"):
            runs.confirm("1", "b", DIGEST, typed, 1.0)
    assert runs.confirm("1", "b", DIGEST, "orders", 1.0) == (described, True)
    assert runs.confirm("1", "b", DIGEST, "", 1.0) == (described, False)  # the same form sent twice


def test_they_are_bounded_of_one_browser_and_of_all() -> None:
    runs = ActionRuns()
    first = run("under way", "a")
    runs.describe(first, 0.0)
    runs.confirm("under way", "a", DIGEST, "", 0.0)
    for number in range(MOST_OF_A_BROWSER + 5):
        runs.describe(run(f"a{number}", "a", number), number)
    assert len(runs) == MOST_OF_A_BROWSER
    assert runs.find("under way", "a", 40.0) is first
    assert runs.find("a0", "a", 40.0) is None
    for number in range(MOST_RUNS):
        runs.describe(run(f"b{number}", f"browser {number}", 50.0), 50.0)
    assert len(runs) == MOST_RUNS
    assert runs.find("under way", "a", 50.0) is first


def test_so_many_are_under_way_at_once() -> None:
    runs = ActionRuns()
    for number in range(MOST_UNDER_WAY + 1):
        runs.describe(run(str(number)), 0.0)
    begun = [runs.confirm(str(number), "b", DIGEST, "", 0.0)[0] for number in range(MOST_UNDER_WAY)]
    with pytest.raises(SystemBusy):
        runs.confirm(str(MOST_UNDER_WAY), "b", DIGEST, "", 0.0)
    begun[0].end(1.0, "done")
    assert runs.confirm(str(MOST_UNDER_WAY), "b", DIGEST, "", 1.0)[1]


FIELDS = {
    "number": FormField(name="number", label="Number", kind="number", low=1, high=9, is_required=True, default="3"),
    "maybe": FormField(name="maybe", label="Maybe", kind="number", low=1, high=9),
    "text": FormField(name="text", label="Text", most=5),
    "choice": FormField(name="choice", label="Choice", kind="choice", choices=(("a", "A"),), default="a"),
    "switch": FormField(name="switch", label="Switch", kind="switch", default="0"),
    "lines": FormField(name="lines", label="Lines", kind="lines", most=5),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("number", value) for value in ("", "0", "10", "x", "1.0", "9" * 20)),
        *(("maybe", value) for value in ("0", "10", "-")),
        *(("text", value) for value in ("123456", "a\0")),
        *(("choice", value) for value in ("", "b", "A")),
        *(("switch", value) for value in ("2", "on")),
        ("lines", "a\n\n\n\n\n"),
    ],
)
def test_a_field_refuses_what_it_may_not_hold(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument):
        check_all([FIELDS[name]], Parameters([(name, value)]))


def test_a_field_returns_what_it_holds() -> None:
    given = Parameters([("number", " 7 "), ("text", " ab "), ("lines", " a\r\n b"), ("switch", "1")])
    check_all([*FIELDS.values()], given)
    assert FIELDS["number"].number(given) == 7
    assert FIELDS["number"].number(Parameters([])) == 3
    assert FIELDS["maybe"].optional_number(given) is None
    assert FIELDS["text"].text(given) == "ab"
    assert FIELDS["lines"].text(given) == " a\n b"
    assert FIELDS["choice"].text(given) == "a"
    assert FIELDS["switch"].flag(given)
