"""The metrics of the controller in a name server; docs/monitoring.md has the table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.core import Metric

from minimq_common.serving.metrics import counters, gauges, on_loop
from minimq_nameserver.controller.service import ControllerService

PREFIX = "minimq_nameserver_controller"
_LABELS = ("cluster", "broker")


class ControllerMetrics:
    """Reads what there is; to be made on the loop of the controller, and asked from another thread."""

    def __init__(self, service: ControllerService) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, of each replica set."""
        statuses = on_loop(self._loop, self._service.statuses)
        yield gauges(
            f"{PREFIX}_term",
            "Latest term of a broker with replicas.",
            _LABELS,
            ((each.record.key, each.record.term) for each in statuses),
        )
        yield gauges(
            f"{PREFIX}_master",
            "The --id of the master.",
            _LABELS,
            ((each.record.key, each.record.master_id) for each in statuses),
        )
        yield gauges(
            f"{PREFIX}_in_sync_replicas",
            "Replicas in sync, including the master.",
            _LABELS,
            ((each.record.key, len(each.record.in_sync)) for each in statuses),
        )
        yield gauges(
            f"{PREFIX}_lease_age_seconds",
            "Time since the master renewed its lease; above the length of a lease there is no master.",
            _LABELS,
            ((each.record.key, each.lease_age_s) for each in statuses),
        )
        yield counters(
            f"{PREFIX}_elections_total",
            "Masters elected since the start of this server.",
            _LABELS,
            ((each.record.key, each.elections) for each in statuses),
        )
