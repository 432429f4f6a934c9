"""All metrics of a broker; docs/monitoring.md has the table."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from prometheus_client.core import Metric

from minimq_broker.calls.engine import Engine
from minimq_broker.calls.status import Identity
from minimq_broker.commit.store import Store
from minimq_broker.features.feature import Serving
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.metrics.backlog import MAX_SERIES, Backlog
from minimq_broker.replication.service import ReplicationView
from minimq_common.errors import SystemBusy
from minimq_common.serving.metrics import counter, counters, gauge, gauges, histogram, info, on_loop
from minimq_proto.v1 import broker_pb2

PREFIX = "minimq_broker"

_ROLES = {value: name.removeprefix("BROKER_ROLE_").lower() for name, value in broker_pb2.BrokerRole.items()}

#: Fields of `Counters`, with the name and the description of their metric.
_COUNTERS = (
    ("messages_in", "messages_in", "Stored messages."),
    ("messages_out", "messages_out", "Messages sent to readers."),
    ("bytes_in", "bytes_in", "Bytes of stored batches."),
    ("bytes_out", "bytes_out", "Bytes of batches sent to readers."),
    ("segments_deleted", "segments_deleted", "Files that retention deleted."),
    ("segments_rewritten", "segments_rewritten", "Files that were replaced by what is still needed of them."),
    ("segments_verified", "segments_verified", "Files that were verified."),
)


class BrokerMetrics:
    """The metrics of one broker. Must be constructed on its event loop; `collect` runs on another thread."""

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        replication_view: ReplicationView,
        streams: Callable[[], Mapping[str, int]],
        servings: Sequence[Serving],
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._servings = servings
        self._identity = identity
        self._replication_view = replication_view
        self._loop = asyncio.get_running_loop()
        self._backlog = Backlog(engine.store, MAX_SERIES, servings)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Omits those that cannot be read now, such as while the store is replaced."""
        identity = self._identity
        values = {
            "broker": identity.broker_name,
            "id": str(identity.broker_id),
            "cluster": identity.cluster,
            "version": identity.version,
        }
        yield info(PREFIX, "Name, id and release of this broker.", values)
        yield gauge(
            f"{PREFIX}_clock_ahead_seconds",
            "Seconds by which the system clock has jumped ahead. While it is not 0, nothing is deleted by age; "
            "a day later the broker follows the clock.",
            self._engine.clock.ahead_s,
        )
        yield gauge(
            f"{PREFIX}_stamps_ahead_seconds",
            "Distance by which the newest message is ahead of the clock, which was wrong; 0 when all is well.",
            self._engine.store.stamps_ahead_ms / 1000,
        )
        yield from self._traffic()
        yield from self._clients()
        with contextlib.suppress(TimeoutError):
            status = on_loop(self._loop, self._replication_view.tell)
            yield from _replication(status, self._engine.store.status.end)
        for serving in self._servings:
            yield from serving.metrics(PREFIX)
        yield from self._of_store()

    def _of_store(self) -> list[Metric]:
        found: list[Metric] = []
        # The store may be unreadable, such as while it is truncated or replaced.
        store = self._engine.store
        with contextlib.suppress(SystemBusy), store.reading():
            found += [*self._commits(store), *self._disk(store)]
            with contextlib.suppress(SystemBusy, *DAMAGE):  # omits what a damaged segment hides
                found.extend(self._depths(store))
        return found

    def _traffic(self) -> Iterator[Metric]:
        done = self._engine.counters
        for field, name, text in _COUNTERS:
            yield counter(f"{PREFIX}_{name}_total", text, getattr(done, field))
        yield histogram(f"{PREFIX}_append_seconds", "Time from the arrival of a batch to its answer.", done.append_s)
        yield counters(
            f"{PREFIX}_appends_rejected_total",
            "Rejected batches, by the code of the error.",
            ("reason",),
            (((reason,), number) for reason, number in sorted(done.rejected.copy().items())),
        )

    def _commits(self, store: Store) -> Iterator[Metric]:
        yield gauge(f"{PREFIX}_term", "Latest term in the log.", store.state.term)
        yield histogram(f"{PREFIX}_commit_seconds", "Time to write and sync a commit.", store.writer.figures.seconds)
        yield histogram(f"{PREFIX}_commit_messages", "Messages in one commit.", store.writer.figures.messages)
        yield gauge(
            f"{PREFIX}_pending_bytes", "Bytes of batches that wait for the disk.", self._engine.writes.pending_bytes
        )
        yield gauge(
            f"{PREFIX}_store_failed", "1 when the broker stores nothing until it is restarted.", store.writer.has_failed
        )

    def _disk(self, store: Store) -> Iterator[Metric]:
        yield gauge(
            f"{PREFIX}_sync_running_seconds",
            "Time for which the disk has not finished the running sync, 0 if none is running.",
            store.writer.figures.syncs.running_s,
        )
        yield gauge(f"{PREFIX}_segments", "Files of the CommitLog.", len(store.log.segments))
        yield gauge(f"{PREFIX}_log_bytes", "Disk space that the CommitLog uses.", store.log.disk_bytes)
        damaged = len(store.log.damage.keys() | store.log.suspects)
        yield gauge(f"{PREFIX}_damaged_segments", "Files of the CommitLog with known damage.", damaged)
        yield gauge(
            f"{PREFIX}_checkpoint_age_seconds",
            "Time since the last checkpoint; a start after a crash reads the log again from there.",
            time.monotonic() - store.writer.figures.saved_at,
        )
        try:
            use, _ = store.disk.look()
        except OSError:  # omit unknown values
            return
        yield gauge(f"{PREFIX}_disk_free_bytes", "Free disk space.", use.free_bytes)
        yield gauge(f"{PREFIX}_disk_used_ratio", "Used share of the disk, by all programs, from 0 to 1.", use.ratio)

    def _clients(self) -> Iterator[Metric]:
        engine = self._engine
        streams = {name.lower(): number for name, number in self._streams().items()}
        yield gauges(
            f"{PREFIX}_streams",
            "Open streams of clients, by the call in small letters: append, appendatomic and events of "
            "producers, pull and pop of consumers, session of group members.",
            ("call",),
            (((call,), number) for call, number in streams.items()),
        )
        rejected = engine.counters.streams_rejected
        yield counters(
            f"{PREFIX}_streams_rejected_total",
            "Streams rejected because too many were open.",
            ("call",),
            (((call,), rejected[call]) for call in (*streams, "replicate")),
        )
        yield counters(
            f"{PREFIX}_limit_rejections_total",
            "Requests and streams that a limit of this broker rejected, by the limit.",
            ("limit",),
            (((limit,), number) for limit, number in sorted(engine.rejections.counts.copy().items())),
        )
        yield gauge(f"{PREFIX}_unsent_bytes", "Bytes that clients have not read yet.", engine.unsent.bytes)
        yield gauge(f"{PREFIX}_long_polls", "Pulls that wait for messages.", len(engine.arrivals))
        groups = islice(engine.tables.groups.names(), MAX_SERIES)
        yield gauges(
            f"{PREFIX}_group_members",
            "Members of a consumer group.",
            ("group",),
            (((group,), len(engine.tables.groups.members(group).client_ids)) for group in groups),
        )

    def _depths(self, store: Store) -> Iterator[Metric]:
        yield gauge(f"{PREFIX}_topics", "Topics on this broker.", len(store.state.topics))
        depths = self._backlog.topics()
        yield gauges(
            f"{PREFIX}_topic_messages",
            "Stored messages of a topic.",
            ("topic",),
            (((topic,), depth.stored) for topic, depth in depths.items()),
        )
        yield counters(
            f"{PREFIX}_topic_messages_in_total",
            "Messages ever stored in a topic.",
            ("topic",),
            (((topic,), depth.appended) for topic, depth in depths.items()),
        )
        yield gauges(
            f"{PREFIX}_group_lag_messages",
            "Messages of a topic that a group has not committed.",
            ("group", "topic"),
            (((group, topic), lag) for (group, topic), lag in self._backlog.lags().items()),
        )


def _replication(status: broker_pb2.ReplicationStatus, log_end: int) -> Iterator[Metric]:
    yield gauges(
        f"{PREFIX}_role",
        "1 for the role of the broker, 0 for the other roles.",
        ("role",),
        (((name,), value == status.role) for value, name in _ROLES.items()),
    )
    if status.role == broker_pb2.BROKER_ROLE_ALONE:
        return
    yield gauge(
        f"{PREFIX}_unconfirmed_bytes",
        "Bytes at the end of the log that are not confirmed by all replicas in sync.",
        max(0, log_end - status.confirmed),
    )
    yield gauge(
        f"{PREFIX}_controller_silent_seconds",
        "Time for which the controller has not answered; 0 while it does.",
        status.controller_silent_ms / 1000,
    )
    if status.role == broker_pb2.BROKER_ROLE_MASTER:
        yield from _of_master(status)
    if status.role == broker_pb2.BROKER_ROLE_SLAVE and status.HasField("behind_bytes"):
        yield gauge(
            f"{PREFIX}_master_lag_bytes", "Of a slave: bytes of its master's log that it lacks.", status.behind_bytes
        )


def _of_master(status: broker_pb2.ReplicationStatus) -> Iterator[Metric]:
    yield gauge(f"{PREFIX}_in_sync_replicas", "Of a master: replicas in sync, including itself.", len(status.in_sync))
    yield gauge(
        f"{PREFIX}_min_in_sync_replicas",
        "Of a master: replicas that must be in sync before it accepts a message.",
        status.min_in_sync if status.sync else 1,
    )
    yield gauge(
        f"{PREFIX}_lease_seconds", "Of a master: time for which it may serve without an answer.", status.lease_ms / 1000
    )
    replicas = [(str(replica.replica_id), replica) for replica in status.replicas]
    yield gauges(
        f"{PREFIX}_replica_lag_bytes",
        "Of a master: bytes of its log that a slave lacks.",
        ("replica",),
        (((name,), replica.behind_bytes) for name, replica in replicas),
    )
    yield gauges(
        f"{PREFIX}_replica_lag_seconds",
        "Of a master: time since a slave had the whole log.",
        ("replica",),
        (((name,), replica.behind_ms / 1000) for name, replica in replicas if replica.HasField("behind_ms")),
    )
