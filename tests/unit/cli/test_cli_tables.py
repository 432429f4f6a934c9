"""Every table of the command `minimq` is readable on a terminal of any width."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

import minimq.admin
import minimq.features
import minimq_cli
from minimq.admin.views import Plan, PlanRow, Row, Rows, Table
from minimq_cli.base import lines_of, show_table
from support.cases import for_each


def long_name(beginning: str) -> str:
    return f"{beginning}-{'of-the-payments-department-in-the-east'.replace('-', '_')}".ljust(60, "x")


AT = datetime(2026, 1, 31, 8, tzinfo=UTC)
#: What the columns of all tables can hold at worst, by their keys; numbers for all the others.
LONG: dict[str, object] = {
    "address": f"{long_name('host')}.internal.example.com:10911",
    "after": 123_456_789,
    "before": None,
    "behind": "36.9 KB, 3d 4h",
    "broker": long_name("broker"),
    "brokers": [long_name(f"broker-{letter}") for letter in "abc"],
    "bytes": "123.4 MB",
    "cluster": long_name("cluster"),
    "created_at": AT,
    "disk": "123.4 GB",
    "expires_at": "6d 23h",
    "first_at": AT,
    "full": "96% (reject)",
    "group": long_name("group"),
    "holder": "192.168.100.102:10911",
    "in_sync": "0, 1, 2",
    "last_at": AT,
    "last_stored_at": AT,
    "master": "192.168.100.101:10911",
    "member": f"{long_name('host')}@12345@1a2b3c4d",
    "mode": "async",
    "nameserver": "192.168.100.100:9876",
    "note": "12,345 stored messages hidden from new groups and replays",
    "now": "8 queues, read-write, FIFO, kept for 7d 0h",
    "number": "#12",
    "permission": "read-write",
    "reader": "#12, held 13m 20s for #11, #10 waits",
    "reason": "no answer from the broker within 5 seconds, and that is all there is to say about it",
    "role": "undecided",
    "seen_by": ", ".join(long_name(f"broker-{letter}") for letter in "ab"),
    "slaves": ["1=192.168.100.101:10912", "2=192.168.100.101:10913"],
    "state": f"follows no master; replica {long_name('x')} does not follow",
    "then": None,
    "topic": long_name("%RETRY%group"),
    "topics": [long_name("orders"), long_name("payments")],
    "up_for": "31d 23h",
    "what": "acknowledged",
}
SHORT: dict[str, object] = {
    "address": "127.0.0.1:10911",
    "broker": "broker-a",
    "brokers": ["broker-a", "broker-b"],
    "cluster": "default",
    "full": "42%",
    "group": "billing",
    "member": "host@123@1a2b3c4d",
    "reason": "no answer",
    "seen_by": "broker-a",
    "slaves": ["1=127.0.0.1:10912"],
    "state": "up",
    "topic": "orders",
    "topics": ["orders"],
}


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


def row_of(table: Table, *samples: Mapping[str, object]) -> Row:
    found = {key: value for sample in samples for key, value in sample.items()}
    return {key: found.get(key, 1_234_567) for key in table.headings}


def words_of(row: Row) -> list[str]:
    """Return the words of the cells, as a terminal of unlimited width shows them."""
    _, _, line = lines_of(dict.fromkeys(row, "x"), [row], None)
    return line.split()


@for_each("width", [50, 80, 120, None])
@for_each("table", all_tables().values())
def test_every_table_shows_whole_words_of_all_columns(table: Table, width: int | None) -> None:
    rows = [row_of(table, LONG), row_of(table, LONG, SHORT)]
    lines = lines_of(table.headings, rows, width)
    text = "\n".join(lines)
    print(text)
    shown = Counter(text.split())
    assert not Counter(word for row in rows for word in words_of(row)) - shown
    headings = Counter(word for heading in table.headings.values() for word in heading.split())
    assert not headings - Counter(text.replace(":", "").split())
    assert all(line == line.rstrip() for line in lines)
    if width is None:
        assert len(lines) == 2 + len(rows)
    for line in lines:
        cell = line.partition(": ")[2] or line
        assert width is None or len(line) <= width or len(cell.split()) == 1, line


def test_a_plan_is_a_table_at_80_columns() -> None:
    rows = [
        PlanRow(
            "permission of orders on broker-a", "read-write", "none", "producers cannot send, consumers cannot read"
        ),
        PlanRow(
            "retention of orders on broker-a",
            "that of the broker",
            "12h 0m",
            "messages beyond it can no longer be read",
        ),
        PlanRow("read queues of orders on broker-a", 8, 4, "12,345 stored messages hidden from new groups and replays"),
        PlanRow("orders on broker-b", note="offline since 12:03:05 (stopped): not changed"),
    ]
    [table] = [line for line in Plan(rows=rows).view().lines if isinstance(line, Rows)]
    lines = lines_of(table.table.headings, table.rows, 80)
    assert lines[0].split() == ["What", "Now", "Then", "Note"]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 2 + 3 * len(rows)


def test_a_record_has_a_line_for_each_column() -> None:
    assert lines_of({"broker": "Broker", "n": "Read queues"}, [{"broker": "b" * 60, "n": 1000}] * 2, 50) == [
        f"Broker:      {'b' * 60}",
        "Read queues: 1,000",
        "",
        f"Broker:      {'b' * 60}",
        "Read queues: 1,000",
    ]


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in all_tables().items()])
def test_an_empty_table_says_so(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    show_table(table, [])
    assert capsys.readouterr() == ("", f"{table.empty}\n")
    assert table.empty.split()[0] in {"no", "nothing"}
