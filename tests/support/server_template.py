"""A process that has imported servers and commands, and of which each copy goes on as one of them.

    python server_template.py DESCRIPTOR

The descriptor is that of a socket on which `support.server_copies` asks for copies. Most of a start is to import
modules; a copy has them. From there on it runs what the real command runs, with arguments, environment,
folder and standard streams of its own.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import time

import minimq.admin.admin
import minimq.consumer
import minimq.consuming.range_reader
import minimq.producer  # noqa: F401
import minimq_broker.__main__
import minimq_nameserver.__main__
from minimq.local import ends_with_parent, server_process
from support.server_copies import ServerCopies

_MAX_BYTES = 1 << 20


def _next_copy(link: socket.socket) -> tuple[bytes, list[int]]:
    """Make copies. Returns only in these, each with what it was asked to be; the template ends here."""
    while True:
        request, streams, _, _ = socket.recv_fds(link, _MAX_BYTES, 3)
        if not request:
            sys.exit()
        between = os.fork()
        if not between:
            _become_orphan()
            return request, streams
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)


def _become_orphan() -> None:
    """Be a child of whoever asked for the copy, as it adopts orphans meanwhile; returns in the child."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)


def become(link: socket.socket) -> None:
    """Make copies, each of which runs what it was asked for."""
    with link:
        request, streams = _next_copy(link)
        asked = json.loads(request)
        os.setpgid(0, 0)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        for number, stream in zip(asked["streams"], streams, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        link.send(b"%d" % os.getpid())
    run(asked["arguments"])


def run(arguments: list[str]) -> None:
    """Run what `python` runs with these arguments; a program from a file gets a template of its own."""
    how, what, *others = arguments
    if what == ends_with_parent.__name__:
        sys.argv = arguments[1:]
        ends_with_parent.main()
        return
    # These are made for what the streams of the template were, which could be sought in.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [what, *others]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        become(theirs)
        return
    theirs.close()
    server_process.start_command = ServerCopies(ours).start
    runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    # They are to be run, not to be found.
    for package in (minimq_broker, minimq_nameserver):
        del sys.modules[package.__main__.__name__]
    gc.freeze()  # copies need not look at what they share
    become(socket.socket(fileno=int(sys.argv[1])))
