"""Tables of the command `minimq`: whole words on a terminal, one line for each row in a pipe."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import pytest

import minimq.admin
import minimq.features
import minimq_cli
from minimq.admin.views import Plan, PlanRow, Rows, Table
from minimq_cli.base import show_table

NAME = "orders_of_the_payments"
NOTE = "12,345 stored messages hidden from new groups and replays"
ROWS = [PlanRow(f"read queues of {NAME}", 8, 4, NOTE), PlanRow("one\ntwo", note="offline since 12:03:05 (stopped)")]


def all_tables() -> dict[str, Table]:
    modules = [
        importlib.import_module(item.name)
        for package in (minimq_cli, minimq.admin, minimq.features)
        for item in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Table)
    }


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in all_tables().items()])
def test_an_empty_table_is_reported(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    show_table(table, [])
    assert capsys.readouterr() == ("", f"{table.empty}\n")
    assert table.empty.split()[0] in {"no", "nothing"}


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    [rows] = [line for line in Plan(rows=ROWS).view().lines if isinstance(line, Rows)]
    show_table(rows.table, rows.rows)
    return capsys.readouterr().out.splitlines()


def test_a_row_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = shown(capsys)
    assert lines[0].split() == ["What", "Now", "Then", "Note"]
    assert NOTE in lines[2]
    assert lines[3].startswith("one two ")
    assert len(lines) == 2 + len(ROWS)


@pytest.mark.parametrize("width", ["30", "80", "120"])
def test_a_terminal_gets_whole_words(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    lines = shown(capsys)
    words = " ".join(lines).split()
    assert {NAME, *NOTE.split(), "offline", "(stopped)"} <= set(words)
    assert max(map(len, lines)) <= max(int(width), 70)
    assert all(line == line.rstrip() for line in lines)
