"""Servers of the tests that are copies of a template are processes as those that users start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq.local.server_process import ServerProcess
from support.command import environment
from support.server_copies import fixed


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(
        "nameserver",
        "nameserver-1",
        tmp_path,
        flags=lambda address, _first: [f"--listen={address}", "--start-grace=0"],
        settled=lambda: None,
    )
    server.start()
    yield server
    server.kill()


def command_of(server: ServerProcess) -> str:
    return Path(f"/proc/{server.pid}/cmdline").read_text().replace("\0", " ")


@pytest.mark.fault
def test_a_copy_is_a_child_in_a_group_of_its_own(nameserver: ServerProcess) -> None:
    _state, parent, group, *_ = Path(f"/proc/{nameserver.pid}/stat").read_text().rpartition(")")[2].split()

    assert "server_template" in command_of(nameserver)
    assert int(parent) == os.getpid()
    assert int(group) == nameserver.pid


@pytest.mark.fault
def test_the_end_of_a_copy_is_told(nameserver: ServerProcess) -> None:
    nameserver.pause()
    assert nameserver.paused
    nameserver.stop()
    assert nameserver.end == "status 0"

    nameserver.start()
    nameserver.kill()
    assert nameserver.end == "signal SIGKILL"


@pytest.mark.fault
def test_our_variables_reach_a_copy_and_others_start_a_command(
    nameserver: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIMQ_NAMESERVER_LOG_FORMAT", "json")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    nameserver.restart()
    assert "server_template" in command_of(nameserver)
    assert nameserver.log_tail().startswith("{")

    monkeypatch.setenv("LD_PRELOAD", "")
    nameserver.restart()
    assert "minimq_nameserver" in command_of(nameserver)


def test_a_command_is_a_copy_whatever_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINES", "COLUMNS", "TERM"):
        monkeypatch.setenv(name, "100")
    assert fixed(environment(MINIMQ_NAMESERVER="127.0.0.1:1")) == fixed(os.environ)
