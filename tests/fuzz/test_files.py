"""Some damaged files; `make fuzz` damages thousands."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from fuzz import files
from fuzz.specimens import make
from support.chance import SEED

AMOUNT = 60


def end() -> list[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def hang() -> list[str]:
    time.sleep(100)
    return []


@pytest.mark.timeout(300)
def test_a_damaged_file_is_found_and_named_or_harmless() -> None:
    assert files.play(SEED, AMOUNT) == []


def test_what_must_not_be_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truths = make(tmp_path / "sound")
    master = tmp_path / "sound" / "master"
    assert files.in_child(lambda: files.examine(master, "master", truths)) == [files.HARMLESS]

    truths["master"].queues[0][2][1].bodies[0] = b"something else"
    truths["master"].offsets[3] = ("group-1", 1, 77)
    found = files.in_child(lambda: files.examine(master, "master", truths))
    assert [problem.partition(" (")[0] for problem in found] == [
        f"t/0 at {truths['master'].queues[0][2][1].base_offset} has other messages",
        "group-1 goes on at 14 of queue 1, and had committed 77",
    ]
    assert files.in_child(end) == ["the process ended by SIGKILL"]
    assert files.in_child(lambda: [str(1 / 0)])[0].startswith("ZeroDivisionError at test_files.py:")
    monkeypatch.setattr(files, "HANGS_S", 1)
    assert files.in_child(hang) == ["the process ended by SIGALRM"]
