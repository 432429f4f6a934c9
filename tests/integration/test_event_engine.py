"""Servers and clients use gRPC without its event engine, which costs wake-ups of threads for each message."""

from __future__ import annotations

import os
import subprocess
import sys

from support import thread_switches

MESSAGES = 500


def switches(experiments: str | None) -> int:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    if experiments is not None:
        environment["GRPC_EXPERIMENTS"] = experiments
    command = [sys.executable, thread_switches.__file__, str(MESSAGES)]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def test_threads_sleep_less_often_without_the_event_engine() -> None:
    assert 3 * switches(None) < 2 * switches("")  # gRPC takes no setting as its defaults
