"""The command `minimq`, as a process of its own, against real servers."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import termios
from collections import Counter
from functools import partial
from pathlib import Path
from typing import IO

import click
import pytest
from click.testing import CliRunner

from minimq.admin.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq.local.server_process import free_port
from minimq_cli.main import main
from support import fake_broker
from support.cases import for_each
from support.command import COMMAND, Minimq, all_commands, environment
from support.server_copies import CommandCopy
from support.waiting import wait_until

#: No test comes near it.
LONG_S = 300.0

pytestmark = pytest.mark.system


@pytest.fixture(scope="session")
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


# ---- Help and usage -----------------------------------------------------------------------------


@for_each(("path", "command"), all_commands(main))
def test_every_command_has_help_and_every_leaf_an_example(path: tuple[str, ...], command: click.Command) -> None:
    result = CliRunner().invoke(main, [*path, "-h"])
    assert result.exit_code == 0
    if not isinstance(command, click.Group):
        assert f"minimq {' '.join(path)}" in result.output
        assert re.search(r"Examples?:", result.output)
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help


# ---- Topics and brokers -------------------------------------------------------------------------


def test_ctrl_c_amid_the_imports_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n")
    variables = environment()
    variables["PYTHONPATH"] = os.pathsep.join((str(tmp_path), variables["PYTHONPATH"]))
    done = subprocess.run([*COMMAND, "--help"], env=variables, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_while_a_broker_hangs_does_not_wait_for_it() -> None:
    # A call that may take minutes, so that the signal alone ends it, however long a loaded machine needs for that.
    patient = (
        "from minimq import Admin; from minimq.__main__ import main; "
        f"Admin.__init__.__kwdefaults__['timeout_s'] = {LONG_S}; main()"
    )
    with LocalCluster(brokers=1) as own, socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            fake_broker.alone(own.nameserver, name="broker-z", address=address),
            Minimq(own.nameserver, sys.executable, "-c", patient).running("cluster", "status") as asking,
            silent.accept()[0] as connection,
        ):
            assert connection.recv(1)  # it asks, and nobody answers
            asking.send_signal(signal.SIGINT)
            assert asking.communicate(timeout=60) == (b"", b"")
            assert asking.returncode in (130, -signal.SIGINT)


# ---- Consume ------------------------------------------------------------------------------------


def test_max_ends_in_the_middle_and_the_next_run_goes_on(minimq: Minimq, topic: str, group: str) -> None:
    minimq("produce", topic, stdin="\n".join(map(str, range(1000))).encode())
    first = minimq("consume", topic, "--group", group, "--limit", "300").splitlines()
    assert len(first) == 300
    rest = minimq("consume", topic, "--group", group, "--exit-at-end").splitlines()
    assert sorted(map(int, first + rest)) == list(range(1000))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_commits_and_leaves(minimq: Minimq, topic: str, group: str, number: signal.Signals) -> None:
    minimq("produce", topic, stdin=b"one\n")
    with minimq.running("consume", topic, "--group", group) as consuming:
        assert consuming.stdout is not None
        assert consuming.stdout.readline() == b"one\n"
        consuming.send_signal(number)
        output, said = consuming.communicate(timeout=60)
    assert (output, said, consuming.returncode) == (b"", b"", 0)
    assert minimq("consume", topic, "--group", group, "--exit-at-end") == ""


@pytest.mark.parametrize("digits", [8, 400])
def test_a_reader_that_leaves_is_no_error_and_only_what_it_has_taken_is_committed(
    minimq: Minimq, topic: str, group: str, digits: int
) -> None:
    """Short lines lie in the pipe when the reader leaves, long ones do not fit in."""
    lines = [f"{number:0{digits}}" for number in range(5_000)]
    minimq("produce", topic, stdin="\n".join(lines).encode())
    with minimq.running("consume", topic, "--group", group) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        pipe = consuming.stdout.fileno()
        taken = b""
        while len(taken) < 3 * (digits + 1) + 5:  # three lines and a part of the next one
            taken += os.read(pipe, 3 * (digits + 1) + 5 - len(taken))
        wait_until(lambda: waiting_in(pipe) >= 30_000, 60, what="more in the pipe than was taken")
        consuming.stdout.close()
        assert consuming.wait(30) == 0
        assert consuming.stderr.read() == b""
    rest = minimq("consume", topic, "--group", group, "--exit-at-end").splitlines()
    assert Counter(taken.decode().split("\n")[:3] + rest) == Counter(lines)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that is always full")
def test_a_full_disk_is_an_error_in_one_line_and_loses_nothing(minimq: Minimq, topic: str, group: str) -> None:
    minimq("produce", topic, stdin=b"one\ntwo\n")
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*COMMAND, "consume", topic, "--group", group],
            env=environment(MINIMQ_NAMESERVER=minimq.nameserver),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, b"error: cannot write to stdout: No space left on device\n")
    assert sorted(minimq("consume", topic, "--group", group, "--exit-at-end").splitlines()) == ["one", "two"]


@pytest.mark.parametrize(
    ("unbuffered", "signals", "status"), [("1", (signal.SIGINT,), 0), ("", (signal.SIGINT, signal.SIGTERM), 130)]
)
def test_what_a_full_pipe_has_not_taken_comes_again(
    minimq: Minimq, topic: str, group: str, unbuffered: str, signals: tuple[signal.Signals, ...], status: int
) -> None:
    lines = [f"{number:0100}" for number in range(20_000)]
    minimq("produce", topic, stdin="\n".join(lines).encode())
    with minimq.running("consume", topic, "--group", group, PYTHONUNBUFFERED=unbuffered) as consuming:
        assert consuming.stdout is not None
        pipe = consuming.stdout.fileno()
        # A page at the end of a small write may stay half empty.
        full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 3 * 4096
        wait_until(lambda: waiting_in(pipe) >= full, 60, what="a full pipe")
        for number in signals:
            consuming.send_signal(number)
        first, _ = consuming.communicate(timeout=60)
    assert consuming.returncode == status
    whole = first.decode().split("\n")[:-1]
    rest = minimq("consume", topic, "--group", group, "--exit-at-end").splitlines()
    assert set(whole) | set(rest) == set(lines)
    if not status:  # the first signal lets it finish what is in flight
        assert Counter(whole + rest) == Counter(lines)


def test_a_signal_ends_it_also_when_the_reader_stands_still(minimq: Minimq, topic: str, group: str) -> None:
    lines = [f"{number:0100}" for number in range(3_000)]
    minimq("produce", topic, stdin="\n".join(lines).encode())
    with minimq.running("consume", topic, "--group", group) as consuming:
        assert consuming.stdout is not None
        pipe = consuming.stdout.fileno()
        full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 3 * 4096
        wait_until(lambda: waiting_in(pipe) >= full, 60, what="a full pipe")
        consuming.send_signal(signal.SIGTERM)
        assert consuming.wait(60) == 0
        whole = consuming.stdout.read().decode().split("\n")[:-1]
    rest = minimq("consume", topic, "--group", group, "--exit-at-end").splitlines()
    assert Counter(whole + rest) == Counter(lines)


def waiting_in(pipe: int) -> int:
    """Bytes in a pipe that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_bytes_that_are_no_text_are_shown_as_base64(minimq: Minimq, topic: str, group: str) -> None:
    minimq("produce", topic, stdin=b"\xff\x00\n")
    [line] = minimq("consume", topic, "--group", group, "--exit-at-end", "--output", "jsonl").splitlines()
    assert json.loads(line)["body_base64"] == "/wA="
    assert "body" not in json.loads(line)


# ---- Local and bench ----------------------------------------------------------------------------


def test_a_local_cluster_says_how_to_use_it_and_ends_cleanly(tmp_path: Path) -> None:
    run_local(tmp_path, "1", signal.SIGINT, "")
    run_local(tmp_path, "2", signal.SIGTERM, f"{tmp_path} holds data of broker-a; added without data: broker-b\n")
    said = Minimq("127.0.0.1:1")("local", "--brokers", "1", "--port", "0", "--data-dir", str(tmp_path), status=2)
    assert f"{tmp_path} holds data of broker-b, whose messages would be missing: give --brokers 2 --slaves 0 or" in said


def run_local(data_dir: Path, brokers: str, number: signal.Signals, told: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    minimq = Minimq(address)
    arguments = ("local", "--brokers", brokers, "--port", address.rpartition(":")[2], "--data-dir", str(data_dir))
    with minimq.running(*arguments) as running:
        assert running.stdout is not None
        said = b""
        while b"Ctrl-C" not in said:
            line = running.stdout.readline()
            assert line, said
            said += line
        assert f"export MINIMQ_NAMESERVER={address}" in said.decode()
        for broker in minimq.json("cluster", "status"):
            assert f"{broker['broker']}      {broker['address']}" in said.decode()
        assert "sent 1 message " in minimq("produce", "new", stdin=b"x\n")  # the topic is created
        assert minimq("local", "--secure", "--port", address.rpartition(":")[2], status=1) == (
            f"error: nameserver-1 cannot listen at {address}: the port is in use; stop the process that has it, or "
            "choose another port (--port, or port= of LocalCluster; 0 takes a free one)\n"
        )
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    assert (errors.decode(), running.returncode) == (told, 0)
    assert (data_dir / "broker-a").is_dir()


@pytest.mark.fault
def test_a_server_that_ends_by_itself_is_named_with_its_log_and_started_again(minimq: Minimq, tmp_path: Path) -> None:
    port = free_port()
    arguments = ("local", "--brokers", "1", "--port", str(port), "--data-dir", str(tmp_path))
    with minimq.running(*arguments) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = running.stdout.readline() + running.stdout.readline()
        os.kill(int(said.split()[-1]), signal.SIGKILL)
        assert running.stderr.readline().startswith(b"error: broker-a has ended unexpectedly with signal SIGKILL; ")
        while not (line := running.stderr.readline()).startswith(b"The whole log is in "):
            assert line
        assert f"{tmp_path}/broker-a.log" in line.decode()
        assert line.endswith(b"It will be restarted in 2 s.\n")
        again = re.fullmatch(r"broker-a runs again, pid (\d+)\n", running.stderr.readline().decode())
        assert again
        os.kill(int(again[1]), 0)
        cluster = Minimq(f"127.0.0.1:{port}")
        wait_until(lambda: [row["state"] for row in cluster.json("cluster", "status")] == ["up"], 30)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


@pytest.mark.fault
def test_a_server_whose_folder_is_gone_is_tried_again_and_the_others_go_on(minimq: Minimq, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    arguments = ("local", "--brokers", "1", "--port", str(free_port()), "--data-dir", str(data_dir))
    with minimq.running(*arguments) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = running.stdout.readline() + running.stdout.readline()
        data_dir.rename(tmp_path / "elsewhere")
        os.kill(int(said.split()[-1]), signal.SIGKILL)
        assert b"ended unexpectedly with signal SIGKILL; the end of its log:" in running.stderr.readline()
        assert running.stderr.readline().startswith(b"(it cannot be read: [Errno 2]")
        assert running.stderr.readline().endswith(b"It will be restarted in 2 s.\n")
        assert running.stderr.readline().startswith(b"error: broker-a cannot be started: [Errno 2]")
        assert running.stderr.readline() == b"broker-a does not run. It will be restarted in 2 s.\n"
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=60)[1] == b""
        assert running.returncode == 0


@pytest.mark.fault
def test_a_master_that_is_killed_comes_back_by_the_command_that_is_printed(tmp_path: Path) -> None:
    port = free_port()
    minimq = Minimq(f"127.0.0.1:{port}")
    assert "give --slaves 1 or more" in minimq("local", "--sync", status=2)
    arguments = shlex.split(f"local --no-restart --brokers 1 --slaves 1 --sync --port {port} --data-dir {tmp_path}")
    with minimq.running(*arguments) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        pid = (running.stdout.readline() + running.stdout.readline()).split()[-1]
        while b"Ctrl-C" not in running.stdout.readline():
            pass
        assert re.search(r"^broker-a +0 .*master +sync ", minimq("cluster", "status"), re.MULTILINE)
        os.kill(int(pid), signal.SIGKILL)
        while not running.stderr.readline().startswith(b"The whole log is in "):
            pass
        program, *flags = shlex.split(running.stderr.readline().decode())
        assert program == "minimq-broker"
        with subprocess.Popen([sys.executable, "-m", "minimq_broker", *flags], stdout=subprocess.DEVNULL) as again:
            try:
                wait_until(lambda: _roles(minimq) in ({0: "slave", 1: "master"}, {0: "master", 1: "slave"}), 30)
            finally:
                again.terminate()
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


def _roles(minimq: Minimq) -> dict[object, object]:
    return {row["replica"]: row["role"] for row in minimq.json("cluster", "status")}


def test_a_measurement_that_is_ended_removes_its_topic(minimq: Minimq, admin: Admin) -> None:
    def found() -> list[str]:
        return [name for name in admin.list_topics() if name.startswith("minimq-bench")]

    with minimq.running("bench", "latency", "--limit", "1000000000") as bench:
        [name] = wait_until(found)
        wait_until(lambda: admin.describe_topic(name).messages)
        bench.terminate()
        assert bench.wait(60) == 130
    assert found() == []


# ---- Tables on a terminal -----------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "arguments"), [(120, ("cluster", "status")), (80, ("topic", "list"))])
def test_a_table_on_a_terminal_has_whole_names(
    cluster: LocalCluster, topic: str, columns: int, arguments: tuple[str, ...]
) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    command = CommandCopy(
        [*COMMAND, *arguments], stdout=theirs, env=environment(MINIMQ_NAMESERVER=cluster.nameserver, TERM="xterm")
    )
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal, command:
        written = b"".join(iter(partial(next_of, terminal), b"")).decode()
    shown = {"topic": topic, "cluster": cluster.brokers[0].address}
    assert shown[arguments[0]] in re.split(r"\s+", written)
    assert "Disk" in written or arguments[0] != "cluster"


def next_of(terminal: IO[bytes]) -> bytes:
    """Return what a terminal shows next; nothing once its command has ended."""
    try:
        return terminal.read(4096)
    except OSError:  # as Linux tells that nobody writes to it any more
        return b""
