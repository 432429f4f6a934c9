"""The short examples with Spark as commands: what they compute is what test_flights_examples.py compares."""

from __future__ import annotations

import contextlib
import runpy
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from support.command import environment
from support.pictures import check_picture
from support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [
    "flights_alerts",
    "flights_json",
    "flights_pipeline",
    "flights_plot",
    "flights_sql",
    "flights_windows",
    "flights_workers",
]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_says_what_it_shows(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = EXAMPLES / f"{script}.py"
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:  # in this process, which has imported Spark and pandas already
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    first_line = path.read_text().splitlines()[0].removeprefix('"""')
    assert first_line in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.system
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_and_leaves_nothing_running(script: str, tmp_path: Path) -> None:
    picture = tmp_path / "plot.png"
    done = run(script, *(["--output", str(picture)] if script == "flights_plot" else []))
    assert len(done.stdout.splitlines()) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ([picture.name] if script == "flights_plot" else [])
    if script == "flights_plot":
        assert "328,521 flights in 19 points" in done.stdout
        check_picture(picture.read_bytes())


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script, and check that none of its processes is left."""
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), *arguments]
    mark = f"MARK_OF_A_RUN={uuid.uuid4()}"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**dict([mark.split("=")]))
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=300)
        except BaseException:
            process.send_signal(signal.SIGINT)  # it ends its servers
            raise
    assert process.returncode == 0, stderr
    # Spark's workers notice a moment later that they are not wanted any more.
    wait_until(lambda: not running(mark), 60, what=f"the processes of {script} have ended")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def running(mark: str) -> list[str]:
    """Return the command lines of all processes with an entry in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found
