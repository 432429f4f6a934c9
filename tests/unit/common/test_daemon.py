from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

PROGRAM = """
import asyncio, resource, sys

if "limits" in sys.argv: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))

from minimq_common.serving import daemon
from minimq_common.errors import CannotListen
from minimq_common.serving.daemon import ServerLoop

class Server:
    address = "127.0.0.1:1"
    metrics_address = ""
    async def start(self):
        assert isinstance(asyncio.get_running_loop(), ServerLoop)
        if "limits" in sys.argv: print(*resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
        if "reject" in sys.argv: raise CannotListen("no place")
        if "hang-at-start" in sys.argv:
            print("starting", flush=True)
            await asyncio.Event().wait()
    async def failure(self):
        if "fail" in sys.argv: raise CannotListen("no place any more")
        await asyncio.Event().wait()
    async def stop(self):
        print("stop", flush=True)
        if "hang-at-stop" in sys.argv: await asyncio.Event().wait()

daemon.run("server", Server(), log_level="warning", log_format="json" if "json" in sys.argv else "text")
"""

pytestmark = pytest.mark.system


class Daemon:
    def __init__(self, fault: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *fault.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def next_line(self) -> str:
        stdout: IO[str] | None = self.process.stdout
        assert stdout is not None
        return stdout.readline()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def daemon(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    started = Daemon(request.param)
    with started.process:
        yield started
        if started.process.poll() is None:
            started.process.kill()


@pytest.mark.parametrize("daemon", ["none"], indirect=True)
def test_it_says_when_it_is_ready_and_stops_when_told(daemon: Daemon) -> None:
    assert daemon.next_line() == "ready server 127.0.0.1:1\n"
    daemon.process.terminate()
    assert daemon.next_line() == "stop\n"
    assert daemon.end() == (0, "")


@pytest.mark.parametrize("daemon", ["hang-at-stop"], indirect=True)
def test_a_second_signal_of_the_same_kind_ends_a_stop_that_hangs(daemon: Daemon) -> None:
    assert daemon.next_line() == "ready server 127.0.0.1:1\n"
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.next_line() == "stop\n"
    daemon.process.terminate()  # of the other kind: as if from a parent that saw the same Ctrl-C
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.2)
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.end()[0] == -signal.SIGINT


@pytest.mark.parametrize("daemon", ["reject"], indirect=True)
def test_what_cannot_start_is_one_sentence_and_status_1(daemon: Daemon) -> None:
    assert daemon.next_line() == "stop\n"
    assert daemon.end() == (1, "error: no place\n")


@pytest.mark.parametrize("daemon", ["fail"], indirect=True)
def test_a_later_failure_stops_it_with_status_1(daemon: Daemon) -> None:
    assert daemon.next_line() == "ready server 127.0.0.1:1\n"
    assert daemon.next_line() == "stop\n"
    assert daemon.end() == (1, "error: no place any more\n")
