"""The metrics of a name server; docs/monitoring.md has the table."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from minimq_common.serving import daemon
from minimq_common.serving.metrics import counter, gauge, gauges, info, on_loop
from minimq_common.serving.metrics import counters as metric_counters
from minimq_nameserver.controller.service import ControllerService
from minimq_nameserver.controller.table import ReplicaSetStatus
from minimq_nameserver.service import NameServerService

PREFIX = "minimq_nameserver"


class NameServerMetrics:
    """The metrics of one name server. Must be constructed on its event loop; `collect` runs on another thread."""

    def __init__(self, service: NameServerService, controller: ControllerService | None) -> None:
        self._service = service
        self._controller, self._loop = controller, asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        yield info(PREFIX, "Release of this server.", {"version": daemon.version()})
        yield from self._of_the_table()
        yield from self._of_clients()
        if self._controller is not None:
            with contextlib.suppress(TimeoutError):
                yield from _of_replica_sets(self._controller, self._loop)

    def _of_the_table(self) -> Iterator[Metric]:
        table = self._service.table
        clusters = Counter(broker.cluster for broker in table.registered())
        offline = Counter(offline.broker.cluster for offline in table.offline.all())
        yield gauges(
            f"{PREFIX}_brokers",
            "Registered brokers.",
            ("cluster",),
            (((cluster,), number) for cluster, number in sorted(clusters.items())),
        )
        yield gauges(
            f"{PREFIX}_brokers_offline",
            "Remembered brokers that have left, or came back without some of their topics.",
            ("cluster",),
            (((cluster,), number) for cluster, number in sorted(offline.items())),
        )
        yield gauge(f"{PREFIX}_topics", "Topics that have a route.", len(table.topics()))
        yield gauge(
            f"{PREFIX}_conflicts",
            "Brokers that were rejected because another one has their place.",
            len(table.conflicts.recent(time.monotonic())),
        )

    def _of_clients(self) -> Iterator[Metric]:
        service = self._service
        yield gauge(f"{PREFIX}_watchers", "Clients that watch routes.", len(service.watchers))
        yield gauge(
            f"{PREFIX}_unsent_bytes",
            "Bytes of large routes and lists that clients have not read yet.",
            service.unsent.bytes,
        )
        yield counter(f"{PREFIX}_lookups_total", "Look-ups of the route of a topic.", service.look_ups)


def _of_replica_sets(controller: ControllerService, loop: asyncio.AbstractEventLoop) -> Iterator[Metric]:
    statuses = on_loop(loop, controller.statuses)

    def of_each(name: str, sentence: str, value: Callable[[ReplicaSetStatus], float]) -> Metric:
        make = metric_counters if name.endswith("_total") else gauges
        values = [(each.record.key, value(each)) for each in statuses]
        return make(f"{PREFIX}_controller_{name}", sentence, ("cluster", "broker"), values)

    sentence = "Time since the master renewed its lease; above the length of a lease there is no master."
    yield of_each("lease_age_seconds", sentence, lambda each: each.lease_age_s)
    sentence = "Masters elected since the start of this server."
    yield of_each("elections_total", sentence, lambda each: each.elections)
