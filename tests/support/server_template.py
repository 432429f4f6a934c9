"""A process that has imported the servers, and of which each copy goes on as one server.

    python server_template.py DESCRIPTOR

The descriptor is that of a socket on which `support.server_copies` asks for copies. Most of the start of a server is to
import its modules; a copy has them. From there on it runs what the real command runs, with arguments, environment,
folder and standard streams of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import minimq_broker.__main__
import minimq_nameserver.__main__
from minimq.local import ends_with_parent

_MOST_BYTES = 1 << 20


def _next_copy(link: socket.socket) -> tuple[bytes, list[int]]:
    """Make copies. Returns only in these, each with what it was asked to be; the template ends here."""
    while True:
        request, streams, _, _ = socket.recv_fds(link, _MOST_BYTES, 2)
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


def main() -> None:
    """Become a server each time that one is asked for."""
    # They are to be run, not to be found.
    for package in (minimq_broker, minimq_nameserver):
        del sys.modules[package.__main__.__name__]
    with socket.socket(fileno=int(sys.argv[1])) as link:
        request, streams = _next_copy(link)
        asked = json.loads(request)
        os.setpgid(0, 0)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        for number, stream in enumerate(streams, sys.stdout.fileno()):
            os.dup2(stream, number)
            os.close(stream)
        link.send(b"%d" % os.getpid())
    sys.argv = asked["arguments"]
    ends_with_parent.main()


if __name__ == "__main__":
    main()
