"""The name server as a process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import grpc
import pytest

from minimq_common.wire import rpc
from support.fake_broker import registered
from support.process import process
from support.starting import OpenCache, StartBroker, StartNameServer


def nameserver_process(*args: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return process(sys.executable, "-m", "minimq_nameserver", *args)


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_says_when_it_serves_and_ends_cleanly(number: signal.Signals) -> None:
    with nameserver_process("--listen", "127.0.0.1:0", "--log-level", "warning") as nameserver:
        assert nameserver.stdout is not None
        match = re.fullmatch(r"ready nameserver (127\.0\.0\.1:\d+)\n", nameserver.stdout.readline())
        assert match
        assert registered(match[1]) == []
        nameserver.send_signal(number)
        rest, errors = nameserver.communicate(timeout=60)
        assert (nameserver.returncode, rest, errors) == (0, "", "")


@pytest.mark.system
@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["--listen", "nowhere"], 2, "'nowhere' is not an address"),
        (["--listen", "192.0.2.1:0"], 1, "error: cannot listen at 192.0.2.1:0: Cannot assign requested address\n"),
        (["--listen", "no.such.host.invalid:1"], 1, "error: cannot listen at no.such.host.invalid:1: "),
    ],
)
def test_what_cannot_start_says_why(args: list[str], status: int, said: str) -> None:
    with nameserver_process(*args) as nameserver:
        output, errors = nameserver.communicate(timeout=60)
        assert (nameserver.returncode, output) == (status, "")
        assert said in errors


@pytest.mark.system
def test_a_port_in_use_is_one_clear_sentence(start_nameserver: StartNameServer) -> None:
    address = start_nameserver().address
    with nameserver_process("--listen", address) as nameserver:
        output, errors = nameserver.communicate(timeout=60)
        assert (nameserver.returncode, output) == (1, "")
        reason = "the port is in use; stop the process that has it, or choose another port"
        assert errors == f"error: cannot listen at {address}: {reason}\n"


@pytest.mark.fault
def test_garbage_does_no_harm(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    host, _, port = nameserver.address.rpartition(":")
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(65536),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(999),
        b"",
    ):
        with socket.create_connection((host, int(port))) as connection, contextlib.suppress(OSError):
            connection.sendall(garbage)
    with rpc.open_channel(nameserver.address) as channel:
        for method in ("Register", "GetRoutes", "WatchRoutes", "NoSuchMethod"):
            call: Any = channel.stream_stream(f"/minimq.v1.NameServer/{method}")
            with pytest.raises(grpc.RpcError):
                list(call(iter([b"\xff" * 99]), timeout=60))
    assert open_cache(nameserver.address).route("orders").queues
    assert broker.connected_to(nameserver.address)
