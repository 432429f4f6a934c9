"""A network of this process's own, in which stretches can be cut: network namespaces of Linux, which take root.

This process moves into a namespace in which there is a bridge, the hub; each node is another namespace with a cable to
the hub. They are without names and end with this process, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET
#: The namespace of the calling thread.
_OWN = Path("/proc/thread-self/ns/net")
_PREFIX = "10.77.0."
_HUB = "hub"
#: Where the first node is; the hub itself is at 1.
_FIRST = 11


class NoNamespaces(Exception):
    """This process may not make network namespaces, or the machine has none."""


class Network:
    """Nodes at a hub. What the process itself and its further children do happens at the hub.

    To be made before the process has threads: those that exist stay outside.

    Args:
        names: of the nodes.

    Raises:
        NoNamespaces: the text says why.
    """

    def __init__(self, *names: str) -> None:
        if not _OWN.exists():
            raise NoNamespaces("there are none on this system")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.addresses: Mapping[str, str] = {name: f"{_PREFIX}{_FIRST + at}" for at, name in enumerate(names)}
        self._nodes: dict[str, int] = {}
        before, there = os.open(_OWN, os.O_RDONLY), _OWN.readlink()
        try:
            self._home = self._new_namespace()
            _ip("link", "add", _HUB, "type", "bridge")
            _ip("link", "set", _HUB, "up")
            _ip("address", "add", f"{_PREFIX}1/24", "dev", _HUB)
            for name in names:
                self._nodes[name] = self._new_namespace()
                self._connect(name)
        except (OSError, subprocess.CalledProcessError) as error:
            if _OWN.readlink() != there:  # otherwise it may not even come back
                self._enter(before)
            raise NoNamespaces(str(error)) from error

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Let the calling thread, and the processes that it starts, be at a node while the block runs."""
        self._enter(self._nodes[name])
        try:
            yield
        finally:
            self._enter(self._home)

    def unplug(self, name: str) -> None:
        """Cut a node off from all others. What is sent is lost without a word."""
        _ip("link", "set", _port(name), "down")

    def part(self, one: str, other: str) -> None:
        """Let two nodes hear nothing of each other; the others hear both. One such pair at a time."""
        for name in (one, other):
            _ip("link", "set", "dev", _port(name), "type", "bridge_slave", "isolated", "on")

    def mend(self) -> None:
        """Let everybody reach everybody."""
        for name in self._nodes:
            _ip("link", "set", "dev", _port(name), "type", "bridge_slave", "isolated", "off")
            _ip("link", "set", _port(name), "up")

    def _new_namespace(self) -> int:
        """Move the calling thread into a new namespace, and return a file that keeps it alive."""
        self._check(self._libc.unshare(_NEW_NETWORK))
        _ip("link", "set", "lo", "up")
        return os.open(_OWN, os.O_RDONLY)

    def _connect(self, name: str) -> None:
        """Lay a cable from the hub to the node in which the calling thread is; it is at the hub afterwards."""
        node = f"/proc/{os.getpid()}/fd/{self._nodes[name]}"
        self._enter(self._home)
        _ip("link", "add", _port(name), "type", "veth", "peer", "name", "eth0", "netns", node)
        _ip("link", "set", _port(name), "master", _HUB, "up")
        with self.inside(name):
            _ip("address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            _ip("link", "set", "eth0", "up")

    def _enter(self, namespace: int) -> None:
        self._check(self._libc.setns(namespace, _NEW_NETWORK))

    def _check(self, result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _port(name: str) -> str:
    return f"to-{name}"[:15]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
