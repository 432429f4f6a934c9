"""The first hour, played as by a reader: programs are saved, commands run in a shell, what they print is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import text_of
from support.waiting import wait_until


@pytest.fixture
def first_terminal(tmp_path: Path) -> Iterator[str]:
    """The cluster of the first terminal, at a port of its own; its address."""
    log = tmp_path / "first-terminal.txt"
    command = [sys.executable, "-m", "minimq", "local", "--brokers", "1", "--data-dir", "./data", "--port", "0"]
    with log.open("w") as output:
        cluster = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Ctrl-C ends" in log.read_text(), timeout=60)
        found = re.search(r"MINIMQ_NAMESERVER=(\S+)", log.read_text())
        assert found is not None
        yield found[1]
    finally:
        cluster.terminate()
        cluster.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_hour(first_terminal: str, tmp_path: Path) -> None:
    printed = ""
    compared = 0
    environment = os.environ | {
        "MINIMQ_NAMESERVER": first_terminal,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text_of("docs/tutorial.md"), re.DOTALL):
        if language == "python":
            name = block.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(block.replace("127.0.0.1:9876", first_terminal))
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-c", f"set -e\n{block}"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            printed = done.stdout
        elif printed:  # what the commands before it have printed
            for line in block.splitlines():
                if line in ("anna served 200", "bert served 200"):
                    assert sum(map(int, re.findall(r"served (\d+)", printed))) == 400
                else:
                    assert line in printed.splitlines(), printed
                compared += 1
    assert compared == 13
