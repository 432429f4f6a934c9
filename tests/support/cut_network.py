"""Hosts of their own on this machine, between any two of which the network can be cut: needs root and `ip netns`."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self


def can_cut() -> bool:
    """Return whether this machine can have such hosts."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"mq{os.getpid() % 100_000}"
    if subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode:
        return False
    return subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True).returncode == 0


class CutNetwork:
    """Hosts that reach each other, and that the process which made them reaches always. A context manager.

    Args:
        hosts: how many.

    Attributes:
        addresses: the IP address of each host.
    """

    def __init__(self, hosts: int) -> None:
        prefix, net = f"mq{os.getpid() % 100_000}", f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        #: The bridge is in a namespace of its own, where no firewall of this machine, such as Docker's, filters it.
        self._hub, self._own_port = f"{prefix}hub", f"{prefix}own"
        self._names = [f"{prefix}h{number}" for number in range(hosts)]
        self._gateway = f"{net}.254"
        self.addresses = [f"{net}.{number + 1}" for number in range(hosts)]
        self._cut: set[tuple[int, int]] = set()

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self._hub)
            _ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
            _ip("-n", self._hub, "link", "set", "hub", "up")
            _ip("link", "add", self._own_port, "type", "veth", "peer", "name", "own", "netns", self._hub)
            _ip("addr", "add", f"{self._gateway}/24", "dev", self._own_port)
            _ip("link", "set", self._own_port, "up")
            _ip("-n", self._hub, "link", "set", "own", "master", "hub", "up")
            for name, address in zip(self._names, self.addresses, strict=True):
                _ip("netns", "add", name)
                _ip("-n", self._hub, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("-n", self._hub, "link", "set", name, "master", "hub", "up")
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for name in (*self._names, self._hub):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._own_port], check=False, capture_output=True)

    def command(self, host: int, *command: str) -> Sequence[str]:
        """Return a command that runs another one on a host."""
        return "ip", "netns", "exec", self._names[host], *command

    def cut(self, one: int, other: int) -> None:
        """Let nothing through between two hosts, in either direction. Idempotent."""
        for start, end in ((one, other), (other, one)):
            if (start, end) not in self._cut:
                self._cut.add((start, end))
                _ip("-n", self._names[start], "route", "add", "blackhole", f"{self.addresses[end]}/32")

    def heal(self) -> None:
        """Let everything through again."""
        for start, end in self._cut:
            _ip("-n", self._names[start], "route", "del", "blackhole", f"{self.addresses[end]}/32")
        self._cut.clear()

    def isolate(self, host: int) -> None:
        """Cut a host off from all others."""
        for other in itertools.chain(range(host), range(host + 1, len(self._names))):
            self.cut(host, other)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
