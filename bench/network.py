"""A private network whose links can be cut, made of Linux network namespaces. Needs root.

This process moves into a namespace with a bridge, the hub; each node is another namespace with a veth pair to the hub.
The namespaces have no names and end with this process, however it ends.
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
#: Last byte of the first node's address; that of the hub is 1.
_FIRST = 11


class NoNamespaces(Exception):
    """This process may not create network namespaces, or the system has none."""


class Network:
    """Nodes connected to a hub. The process itself and its other children are at the hub.

    Create it before the process has threads: existing threads stay outside.

    Args:
        names: names of the nodes.

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
            if _OWN.readlink() != there:  # if unshare was not permitted, setns would not be either
                self._enter(before)
            raise NoNamespaces(str(error)) from error

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Move the calling thread, and the processes that it starts, to a node during the block."""
        self._enter(self._nodes[name])
        try:
            yield
        finally:
            self._enter(self._home)

    def unplug(self, name: str) -> None:
        """Cut a node off from all others. Its packets are dropped silently."""
        _ip("link", "set", _port(name), "down")

    def part(self, one: str, other: str) -> None:
        """Cut the link between two nodes; both still reach all others. Only one pair at a time."""
        for name in (one, other):
            _ip("link", "set", "dev", _port(name), "type", "bridge_slave", "isolated", "on")

    def mend(self) -> None:
        """Restore all links."""
        for name in self._nodes:
            _ip("link", "set", "dev", _port(name), "type", "bridge_slave", "isolated", "off")
            _ip("link", "set", _port(name), "up")

    def _new_namespace(self) -> int:
        """Move the calling thread into a new namespace, and return a file that keeps it alive."""
        self._check(self._libc.unshare(_NEW_NETWORK))
        _ip("link", "set", "lo", "up")
        return os.open(_OWN, os.O_RDONLY)

    def _connect(self, name: str) -> None:
        """Connect the node of the calling thread to the hub, and move the thread to the hub."""
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
