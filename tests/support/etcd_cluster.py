"""A real etcd of three members on this machine."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minimq.local.server_process import free_port
from support.waiting import wait_until

MEMBERS = 3


class EtcdCluster:
    """Starts members, and kills them. They elect a leader within a second."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("etcd")
        assert program, "the tests need etcd: `make setup` installs it"
        self._program = program
        self._directory = directory
        ports = [free_port() for _ in range(2 * MEMBERS)]
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:MEMBERS]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[MEMBERS:]]
        self._members: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def option(self) -> str:
        """The value of a broker's `--controller`."""
        return "etcd://" + ",".join(self.endpoints)

    def start(self, *numbers: int) -> None:
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(self._peers))
        for number in numbers or range(MEMBERS):
            client, peer = f"http://{self.endpoints[number]}", self._peers[number]
            with (self._directory / f"m{number}.log").open("ab") as log:
                self._members[number] = subprocess.Popen(
                    [
                        *(self._program, f"--name=m{number}", f"--data-dir={self._directory / f'm{number}'}"),
                        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
                        *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                        *(f"--initial-cluster={cluster}", "--heartbeat-interval=50", "--election-timeout=250"),
                    ],
                    stdout=log,
                    stderr=log,
                )
        wait_until(lambda: self.leader() is not None, 30, what="etcd has a leader")

    def leader(self) -> int | None:
        """Return the number of the member that the others call their leader."""
        answers = {number: status for number in self._members if (status := self._status(number))}
        by_id = {status["header"]["member_id"]: number for number, status in answers.items()}
        leaders = {status.get("leader") for status in answers.values()}
        return by_id.get(leaders.pop()) if len(leaders) == 1 else None

    def kill(self, number: int) -> None:
        member = self._members.pop(number)
        member.kill()
        member.wait()

    def pause(self, number: int) -> None:
        """Let a member hang: it keeps its connections and answers nothing."""
        self._members[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._members[number].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for number in list(self._members):
            self.kill(number)

    def _status(self, number: int) -> dict[str, Any] | None:
        request = urllib.request.Request(f"http://{self.endpoints[number]}/v3/maintenance/status", b"{}")
        try:
            with urllib.request.urlopen(request, timeout=1) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except OSError:
            return None


@contextlib.contextmanager
def etcd_cluster(directory: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
