"""Described actions are remembered for a while, for one browser, and done once; fields have bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import pytest

from minimq.admin.operation import Arguments, Form, Operation, Param, operations_of
from minimq.admin.views import Plan, View
from minimq_common.errors import InvalidArgument
from minimq_console.action_runs import (
    CONFIRM_S,
    MAX_PER_BROWSER,
    MAX_RUNS,
    REMEMBERED_S,
    ActionRun,
    ActionRuns,
    MistypedName,
)
from minimq_console.actions import Action
from minimq_console.parameters import Parameters
from support.cases import for_each

FORM, PLAN = "/a", Plan()


def run(
    number: str,
    browser: str = "b",
    now_s: float = 0.0,
    *,
    user: str = "",
    typed: str = "",
    filled_in: str = "4",
    plan: Plan = PLAN,
) -> ActionRun:
    parameters = Parameters([("queues", filled_in)])
    return ActionRun(number, browser, user, Arguments(queues=4), plan, parameters, typed, "Resize", FORM, now_s)


def test_it_is_begun_once_and_its_end_is_remembered() -> None:
    runs, described = ActionRuns(), run("1")
    runs.describe(described, 0.0)
    assert runs.confirm("1", "b", "", FORM, "", CONFIRM_S - 1) == (described, True)
    assert runs.confirm("1", "b", "", FORM, "", CONFIRM_S + REMEMBERED_S) == (described, False)  # it takes that long
    described.end(5_000.0, "done")
    assert runs.confirm("1", "b", "", FORM, "", 5_000.0 + REMEMBERED_S - 1) == (described, False)
    with pytest.raises(InvalidArgument, match="nothing was done"):
        runs.confirm("1", "b", "", FORM, "", 5_000.0 + REMEMBERED_S)


@for_each(
    ("number", "browser", "user", "form", "now_s"),
    [
        ("2", "b", "", FORM, 0.0),
        ("1", "other", "", FORM, 0.0),
        ("1", "\N{SNOWMAN}", "", FORM, 0.0),
        ("1", "b", "alice", FORM, 0.0),
        ("1", "b", "", "/b", 0.0),
        ("1", "b", "", FORM, CONFIRM_S),
    ],
)
def test_only_what_was_described_is_begun(number: str, browser: str, user: str, form: str, now_s: float) -> None:
    runs = ActionRuns()
    runs.describe(run("1"), 0.0)
    with pytest.raises(InvalidArgument):
        runs.confirm(number, browser, user, form, "", now_s)


def test_a_mistyped_name_begins_nothing_and_may_be_typed_again() -> None:
    runs, described = ActionRuns(), run("1", typed="orders")
    runs.describe(described, 0.0)
    for typed in ("", "order", "orders "):
        with pytest.raises(MistypedName, match="to confirm it, type orders"):
            runs.confirm("1", "b", "", FORM, typed, 1.0)
    assert runs.confirm("1", "b", "", FORM, "orders", 1.0) == (described, True)
    assert runs.confirm("1", "b", "", FORM, "", 1.0) == (described, False)  # the same form sent twice


def test_they_are_bounded_of_one_browser_and_of_all() -> None:
    runs = ActionRuns()
    first = run("under way", "a")
    runs.describe(first, 0.0)
    runs.confirm("under way", "a", "", FORM, "", 0.0)
    for number in range(MAX_PER_BROWSER + 5):
        runs.describe(run(f"a{number}", "a", number), number)
    assert len(runs) == MAX_PER_BROWSER
    assert runs.find("under way", "a", "", 40.0) is first
    assert runs.find("a0", "a", "", 40.0) is None
    for number in range(MAX_RUNS):
        runs.describe(run(f"b{number}", f"browser {number}", 50.0), 50.0)
    assert len(runs) == MAX_RUNS
    assert runs.find("under way", "a", "", 50.0) is first


class Owner:
    """Declares an operation with each kind of field."""

    @Operation(
        "thing change",
        plan=lambda *_: PLAN,
        view=lambda *_: View(json={}),
        forms=[
            Form(
                action="change",
                path="/things",
                page="/",
                title="",
                label="",
                fields={each: each for each in ("number", "maybe", "text", "choice", "switch", "body", "many")},
                long=frozenset({"body"}),
            )
        ],
    )
    def change(
        self,
        number: Annotated[int, Param(low=1, high=9, default="3")],
        *,
        maybe: Annotated[int | None, Param(low=1, high=9)] = None,
        text: str = "",
        choice: Annotated[str, Param(choices={"a": "A"})] = "a",
        switch: bool = False,
        body: str = "",
        many: Sequence[str] = (),
    ) -> None:
        """Change it."""


[OPERATION] = operations_of(Owner)
ACTION = Action(OPERATION, OPERATION.forms[0])


@for_each(
    ("name", "value"),
    [
        *(("number", value) for value in ("", "0", "10", "x", "1.0", "9" * 400)),
        *(("maybe", value) for value in ("0", "10", "-")),
        *(("text", value) for value in ("x" * 1_001, "a\0")),
        *(("choice", value) for value in ("b", "A")),
        *(("switch", value) for value in ("2", "on")),
        ("body", "x" * 200_001),
        ("many", "x" * 20_001),
    ],
)
def test_a_field_rejects_what_it_may_not_hold(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument):
        ACTION.given(Parameters([*{"number": "7", name: value}.items()]))


def test_fields_become_the_arguments_of_the_operation() -> None:
    filled_in = {"number": " 7 ", "text": " ab ", "body": " a\r\n b", "switch": "1", "many": "x, y"}
    given = ACTION.given(Parameters([*filled_in.items()]))
    assert (given.number, given.maybe, given.text, given.choice, given.switch) == (7, None, "ab", "a", True)
    assert (given.body, given.many) == (" a\n b", ("x", "y"))
