"""The calls of a name server, without a network between."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from minimq_common.errors import BrokerConflict
from minimq_common.model import Permission
from minimq_common.serving import metrics
from minimq_nameserver.controller.service import ControllerService
from minimq_nameserver.metrics import NameServerMetrics
from minimq_nameserver.route_table import BrokerState, RouteTable
from minimq_nameserver.service import NameServerService
from minimq_proto.v1 import nameserver_pb2
from support.loop_thread import LoopThread


def test_the_time_of_a_conflict_is_the_same_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    holder, rejected = (
        BrokerState("default", "broker-a", 0, f"{name}:1", 1, Permission.READ_WRITE, {}) for name in "ab"
    )
    now, day_s = 100.0, 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: day_s)
    service = NameServerService(RouteTable(10, 100, 10), lambda: now)

    def times() -> tuple[int, int]:
        answer = asyncio.run(service.GetCluster(nameserver_pb2.GetClusterRequest(), cast("Any", None)))
        [conflict] = nameserver_pb2.GetClusterResponse.FromString(answer).conflicts
        return conflict.first_ms, conflict.last_ms

    now += 1
    service.registrations.note_conflict(rejected, holder, BrokerConflict("two of them"))
    first = times()
    assert first == (1_800_000_001_000, 1_800_000_001_000)
    now, day_s = now + 5.0, day_s + 7.25  # the time of day is adjusted meanwhile
    assert times() == first


def test_a_loop_that_hangs_hides_only_the_metrics_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_TIMEOUT_S", 0.01)
    loop, hangs, goes_on = LoopThread(), threading.Event(), threading.Event()
    controller = loop.call(lambda: ControllerService(tmp_path, lease_s=60.0))
    service = loop.call(lambda: NameServerService(RouteTable(10, 100, 10), time.monotonic))
    shown = loop.call(lambda: NameServerMetrics(service, controller))

    def hang() -> None:
        hangs.set()
        goes_on.wait(20)

    loop._loop.call_soon_threadsafe(hang)
    assert hangs.wait(20)
    names = [metric.name for metric in shown.collect()]
    goes_on.set()
    assert names[-1] == "minimq_nameserver_lookups"
    loop.run(controller.close())
    loop.close()
