"""Declarations of operations: what faces learn from a signature and a docstring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import pytest

from minimq.admin.admin import Admin
from minimq.admin.operation import HIDDEN, Operation, Operations, Param, Parameter, flag, operations_of, read
from minimq.admin.views import Plan, PlanRow, View
from minimq_cli.commands import command_of
from minimq_common.errors import InvalidArgument
from support.cases import for_each


def view(_admin: Any, _given: Any, result: object, _plan: Plan | None) -> View:
    return View(json=result)


def opening(_admin: Any, _given: Any) -> Plan:
    return Plan(rows=[PlanRow("door", "shut", "open")])


class Doors(Operations):
    @Operation("door close", reads=True, view=view, fixed={"shut": True}, flags=[flag("loud", "Loudly.")])
    @Operation("door open", plan=opening, view=view)
    def move(
        self,
        name: str,
        times: Annotated[int, Param(low=1, high=3)] = 1,
        *,
        rooms: Annotated[Sequence[str], Param(flag="--room")] = (),
        shut: bool = False,
        wait: Annotated[bool, HIDDEN] = True,
    ) -> list[object]:
        """Move a door. It creaks.

        It may be done `times` times.

        Args:
            name: of the door.
            times: how often, with
                `rooms` for each.
            rooms: where.
            shut: shut it.
            wait: until it stands.

        Returns:
            What was done.
        """
        return [name, times, rooms, shut, wait]


OPEN, CLOSE = sorted(operations_of(Doors), key=lambda each: each.name, reverse=True)


def test_parameters_come_from_the_signature_and_their_help_from_the_docstring() -> None:
    assert [each.name for each in OPEN.shown] == ["name", "times", "rooms", "shut"]
    assert [each.name for each in CLOSE.shown] == ["name", "times", "rooms", "loud"]
    name, times, rooms, _ = OPEN.shown
    assert (name.is_argument, name.is_required, times.is_argument) == (True, True, False)
    assert (times.kind, rooms.is_many, rooms.key) == (int, True, "room")
    assert OPEN.with_flags(times.help) == "How often, with --room for each."
    assert OPEN.summary == "Move a door."
    assert OPEN.help == "Move a door. It creaks.\n\nIt may be done --times times."


@for_each("text", ["0", "4", "x", "1.5", ""])
def test_a_value_out_of_bounds_is_rejected_by_the_name_of_its_option(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--times is "):
        OPEN.shown[1].read("--times", text)


@for_each(
    ("source", "values"),
    [
        ({"name": "a", "times": "2", "rooms": ["hall"]}, {"name": "a", "times": 2, "rooms": ("hall",)}),
        ({"name": None, "times": 2, "shut": False}, {"times": 2, "shut": False}),
    ],
)
def test_all_faces_read_what_they_were_given_in_one_way(source: dict[str, Any], values: dict[str, Any]) -> None:
    assert read(OPEN.shown, source, lambda each: each.name) == values


def test_a_time_may_be_without_an_end_and_a_count_may_not() -> None:
    time, count = (Parameter("x", kind, False, False, None, "", Param(low=0)) for kind in (float, int))
    assert time.read("--x", "inf") == float("inf")
    for parameter, text in ((time, "nan"), (time, "-inf"), (count, "-1"), (count, "inf"), (count, "9" * 400)):
        with pytest.raises(InvalidArgument):
            parameter.read("--x", text)
    with pytest.raises(InvalidArgument, match="--x is 5000000: it must be 1 to 1048576"):
        replace(count, about=Param(low=1, high=1 << 20)).read("--x", "5000000")


def test_a_command_has_an_option_for_each_parameter() -> None:
    opened, closed = command_of(OPEN), command_of(CLOSE)
    assert [each.opts[0] for each in opened.params] == [*("name", "--times", "--room", "--shut", "--dry-run", "-o")]
    assert "--dry-run" not in [each.opts[0] for each in closed.params]


@for_each("more", [{}, {"reads": True, "plan": opening}, {"reads": True, "asks": "Really?"}])
def test_a_change_has_a_plan_and_a_read_has_none(more: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="door see: give a plan; or reads=True"):
        Operation("door see", view=view, **more)(lambda _self: None)


def test_each_operation_of_admin_is_documented() -> None:
    found = operations_of(Admin)
    assert len({each.name for each in found}) == len(found)
    for each in found:
        assert each.summary.endswith("."), each.name
        assert [parameter.name for parameter in each.shown if not parameter.help] == [], each.name
        assert (each.example or each.name).startswith(each.name), each.name


def test_what_may_lose_or_expose_something_asks() -> None:
    asking = {each.name for each in operations_of(Admin) if each.asks}
    assert asking >= {
        *("cluster promote", "delayed recall", "dlq delete"),
        *("group delete", "group reset-offset", "topic delete", "topic update"),
        *("transaction commit", "transaction rollback"),
    }
