"""The metrics of a name server; docs/monitoring.md has the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from minimq_common import daemon
from minimq_common.intake import Intake
from minimq_common.metrics import counter, gauge, gauges, info
from minimq_common.metrics import counters as metric_counters
from minimq_nameserver.service import NameServerService

PREFIX = "minimq_nameserver"


class NameServerMetrics:
    """Reads what there is from a thread that only looks."""

    def __init__(self, service: NameServerService, intake: Intake) -> None:
        self._service = service
        self._intake = intake

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        service = self._service
        counters, clusters = service.counters, Counter(broker.cluster for broker in service.registered())
        yield info(PREFIX, "Which release this is.", {"version": daemon.version()})
        yield gauge(
            f"{PREFIX}_settled",
            "1 once running brokers have had the time to register after the start of this server.",
            service.settled,
        )
        yield gauges(
            f"{PREFIX}_brokers",
            "Brokers that are registered.",
            ("cluster",),
            (((cluster,), number) for cluster, number in sorted(clusters.items())),
        )
        yield gauges(
            f"{PREFIX}_brokers_away",
            "Brokers that have gone, or came back without some of their topics, and are remembered.",
            ("cluster",),
            (
                ((cluster,), number)
                for cluster, number in sorted(Counter(away.broker.cluster for away in service.away()).items())
            ),
        )
        yield gauge(f"{PREFIX}_topics", "Topics that have a route.", service.topics)
        yield gauge(f"{PREFIX}_conflicts", "Brokers whose place another one has.", service.conflicts)
        yield gauge(f"{PREFIX}_watchers", "Clients that watch routes.", service.watchers)
        yield gauge(
            f"{PREFIX}_watched_topics",
            "Topics that clients watch; one that ten of them watch counts ten times.",
            service.watched_topics,
        )
        yield gauge(
            f"{PREFIX}_unsent_bytes",
            "Bytes of large routes and lists that clients have not taken yet.",
            service.unsent.bytes,
        )
        yield gauge(
            f"{PREFIX}_incoming_bytes",
            "Bytes of requests that have come and are not taken in.",
            self._intake.bytes,
        )
        yield metric_counters(
            f"{PREFIX}_connections_ended_total",
            "Connections of clients that did not read, or did not send their requests to the end.",
            ("reason",),
            ((("unread",), service.unsent.ended), (("incoming",), self._intake.ended)),
        )
        yield counter(
            f"{PREFIX}_registrations_total", "Tables of topics that brokers registered.", counters.registrations
        )
        yield counter(f"{PREFIX}_registrations_refused_total", "Registrations that were refused.", counters.refusals)
        yield counter(
            f"{PREFIX}_brokers_removed_total",
            "Brokers that lost their place by silence or to another one.",
            counters.removals,
        )
        yield counter(f"{PREFIX}_lookups_total", "Questions for the route of a topic.", counters.look_ups)
        yield counter(
            f"{PREFIX}_lookups_unknown_total",
            "Questions for the route of a topic that has none.",
            counters.unknown_look_ups,
        )
