"""A small run of `bench/console_pages.py`, which says what is measured. How long pages take is not looked at here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.process import process

BENCH = Path(__file__).parents[2] / "bench" / "console_pages.py"
SMALL = ("--brokers", "3", "--topics", "60", "--groups", "12", "--rounds", "3", "--idle", "0")


@pytest.mark.slow
@pytest.mark.system
def test_each_page_of_a_cluster_with_many_topics_is_whole() -> None:
    with process(sys.executable, str(BENCH), *SMALL) as running:
        printed, said = running.communicate(timeout=110)
        assert running.returncode == 0, said
    rows = [line.split() for line in printed.splitlines() if line.startswith("/")]
    assert len(rows) == 13
    assert [row for row in rows if int(row[-1]) == 3] == [], "a busy machine may miss one, but not all"
