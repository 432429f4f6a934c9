"""The activity of a cluster: counters, their rates, and problems for an operator."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from minimq.admin.descriptions import BrokerStatus, TopicDescription
from minimq.admin.group_descriptions import GroupDescription
from minimq.admin.texts import duration_of, size_of
from minimq.admin.views import Row, name_in_rows, row_of
from minimq_common.errors import AccessDenied
from minimq_common.model import MASTER_ID
from minimq_common.text_units import count_of

if TYPE_CHECKING:
    from minimq.admin.admin import Admin
    from minimq.admin.descriptions import BrokerReport, BrokerStatus, ReplicationReport, SlaveStatus

Item = TypeVar("Item")

#: Topics described in each read: the busiest ones, and others in turn. Together they are as many as concurrent calls to
#: a broker, so that a silent broker costs one timeout.
_BUSIEST = 16
_IN_TURN = 16


@dataclass(frozen=True, slots=True)
class BrokerActivity:
    """A replica of a broker, and its rates."""

    status: BrokerStatus
    #: Messages stored per second; None until the second read, and after a restart.
    in_per_s: float | None
    #: Messages sent to consumers per second; None likewise.
    out_per_s: float | None


@dataclass(frozen=True, slots=True)
class TopicActivity:
    """A topic, and its rate."""

    topic: str
    messages: int
    #: Messages stored per second; None until the second read.
    in_per_s: float | None


@dataclass(frozen=True, slots=True)
class GroupActivity:
    """A consumer group, and its rate."""

    group: GroupDescription
    #: Messages committed per second; None until the second read, and after a reset to earlier offsets.
    out_per_s: float | None


@dataclass(frozen=True, slots=True)
class ActivityProblem:
    text: str
    #: The group that it is about; None if it is about a broker.
    group: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterActivity:
    brokers: tuple[BrokerActivity, ...]
    topics: tuple[TopicActivity, ...]
    topic_count: int
    groups: tuple[GroupActivity, ...]
    problems: tuple[ActivityProblem, ...]


class CounterRates:
    """Computes the rates of counters, by key. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[Hashable, dict[str, tuple[float, int]]] = {}

    def rate(self, key: Hashable, values: Mapping[str, int], at: float) -> float | None:
        """Return the growth per second since the last call, summed over brokers; None if it is not known."""
        known = self._last.setdefault(key, {})
        rates = []
        for broker, value in values.items():
            last, known[broker] = known.get(broker), (at, value)
            if last is not None and at > last[0] and value >= last[1]:
                rates.append((value - last[1]) / (at - last[0]))
        return sum(rates) if rates else None

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all counters but these."""
        self._last = {key: last for key, last in self._last.items() if key in keys}


def problems_of(brokers: Collection[BrokerStatus], groups: Collection[GroupDescription]) -> list[ActivityProblem]:
    """Return the problems, brokers first. A broker that does not answer is reported once."""
    sentences = [sentence for status in brokers for sentence in _of_broker(status)]
    unanswered: dict[str, str] = {}
    for group in groups:
        unanswered.update({name: why for name, why in group.unanswered.items() if name not in unanswered})
    told = _reported_brokers(brokers)
    sentences += [
        f"broker {name} does not answer: {why}" for name, why in sorted(unanswered.items()) if name not in told
    ]
    unread = [
        ActivityProblem(
            f"group {each.group} has no members, and a lag of {count_of(each.lag, each.lag_unit)}", each.group
        )
        for each in groups
        if each.lag and not each.members and not each.is_published  # a Spark query publishes without being a member
    ]
    return [*map(ActivityProblem, sentences), *unread]


def stored_in(topic: TopicDescription) -> Mapping[str, int]:
    """Return how many messages were ever stored in a topic, by broker. Retention does not lower the numbers."""
    found = Counter[str]()
    for queue in topic.queues:
        found[queue.queue.broker_name] += queue.max_offset
    return found


def committed_by(group: GroupDescription) -> Mapping[str, int]:
    """Return how far a group has committed, in messages by broker. The numbers grow with each commit."""
    found = Counter[str]()
    for queue in group.queues:
        found[queue.queue.broker_name] += queue.max_offset - queue.lag
    return found


def _reported_brokers(brokers: Collection[BrokerStatus]) -> set[str]:
    answering = {status.broker_name for status in brokers if status.error is None}
    return {
        status.broker_name
        for status in brokers
        if status.error is not None and (status.broker_id == MASTER_ID or status.broker_name not in answering)
    }


def say_about_disk(status: BrokerStatus) -> list[str]:
    """Return sentences about early deletion on a nearly full disk."""
    found, report = list[str](), status.report
    if report is not None and report.disk_filled_by_others:
        found.append(f"broker {status.broker_name}: other files fill its disk, so it no longer deletes messages early")
    if report is not None and report.bytes_deleted_early:
        found.append(f"broker {status.broker_name}: {say_deleted_early(report.bytes_deleted_early)}")
    return found


def say_deleted_early(size: int) -> str:
    """Return a sentence about messages that a broker has deleted early since its start."""
    return f"its disk was nearly full, and it deleted {size / (1 << 20):,.1f} MiB of messages before their time"


def _of_broker(status: BrokerStatus) -> list[str]:
    name = f"broker {status.broker_name}" + (f", replica {status.broker_id}," if status.broker_id else "")
    if status.error is not None:
        return [f"{name} {'is offline' if status.offline_since else 'does not answer'}: {status.error}"]
    if status.report is None:
        return []
    found = [f"{name}: {problem}" for problem in broker_problems(status.report)]
    if status.report.disk_level != "normal":
        found.append(f"{name}: the disk is {status.report.disk_used:.0%} full ({status.report.disk_level})")
    return found + say_about_disk(status)


class ActivityReader:
    """Reads the activity of one cluster. Used by one thread at a time."""

    def __init__(self, source: Admin, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._rates = CounterRates()
        self._topics: dict[str, TopicActivity] = {}
        #: Name of the last topic that was described in turn.
        self._last = ""

    def read(self) -> ClusterActivity:
        """Take a snapshot. Objects that the user may not describe are missing."""
        statuses = _allowed(self._source.broker_status)
        names = [name for name in self._source.list_topics() if not name.startswith("%")]
        self._topics = {name: self._topics[name] for name in names if name in self._topics}
        self._look_at_topics(names)
        groups = _allowed(self._source.describe_groups)
        now = self._clock()
        brokers = tuple(self._broker(status, now) for status in statuses)
        active = [
            GroupActivity(each, self._rates.rate(("group", each.group), committed_by(each), now)) for each in groups
        ]
        kept: set[Hashable] = {("topic", name) for name in names} | {("group", each.group) for each in groups}
        kept |= {(way, *_replica(status)) for status in statuses for way in ("in", "out")}
        self._rates.keep(kept)
        return ClusterActivity(
            brokers=brokers,
            topics=tuple(self._by_rate()),
            topic_count=len(names),
            groups=tuple(sorted(active, key=lambda each: (-each.group.lag, each.group.group))),
            problems=tuple(problems_of(statuses, groups)),
        )

    def _broker(self, status: BrokerStatus, now: float) -> BrokerActivity:
        report = status.report
        if report is None:
            return BrokerActivity(status, None, None)
        return BrokerActivity(
            status,
            self._rates.rate(("in", *_replica(status)), {status.broker_name: report.messages_in}, now),
            self._rates.rate(("out", *_replica(status)), {status.broker_name: report.messages_out}, now),
        )

    def _look_at_topics(self, names: Sequence[str]) -> None:
        busiest = [each.topic for each in islice(self._by_rate(), _BUSIEST)]
        others = sorted(set(names) - set(busiest))
        begin = bisect_right(others, self._last)
        in_turn = (others[begin:] + others[:begin])[:_IN_TURN]
        self._last = in_turn[-1] if in_turn else ""
        now = self._clock()
        for topic in self._source.describe_topics([*in_turn, *busiest]):
            if topic.settings:  # else its brokers are offline or silent, which is reported for them, or reject
                rate = self._rates.rate(("topic", topic.topic), stored_in(topic), now)
                self._topics[topic.topic] = TopicActivity(topic.topic, topic.messages, rate)

    def _by_rate(self) -> list[TopicActivity]:
        return sorted(self._topics.values(), key=lambda each: (-(each.in_per_s or 0.0), -each.messages, each.topic))


def _replica(status: BrokerStatus) -> tuple[str, str, str]:
    return status.cluster, status.broker_name, status.address


def _allowed(ask: Callable[[], list[Item]]) -> list[Item]:
    try:
        return ask()
    except AccessDenied:
        return []


# ---- Replication --------------------------------------------------------------------------------------

_KEYS = (
    *("role", "replica_id", "term", "sync", "min_in_sync", "in_sync", "confirmed"),
    *("lease_s", "controller_silent_s", "by_replicas_s", "behind_bytes"),
)

#: A controller that is silent for more seconds is reported.
_SILENT_S = 3.0


def replication_of(status: BrokerStatus, masters: Sequence[BrokerStatus]) -> Row:
    """Return the replication status of a broker by JSON key. The lag of a slave comes from its master."""
    problem = "; ".join(broker_problems(status.report)) or None if status.report is not None else None
    if status.report is None or status.report.replication.role == "alone":
        return {**dict.fromkeys(map(name_in_rows, (*_KEYS, "behind_s", "replicas"))), "problem": problem}
    about = status.report.replication
    seen = _as_its_master_sees_it(status.broker_name, about, masters)
    replicas = [row_of(each, in_sync=each.replica_id in about.in_sync) for each in about.replicas]
    row = row_of(about, keep=_KEYS, behind_s=seen.behind_s if seen else None, replicas=replicas, problem=problem)
    return {**row, "behind_bytes": seen.behind_bytes} if seen else row


def masters_of(statuses: Sequence[BrokerStatus]) -> list[BrokerStatus]:
    return [item for item in statuses if item.report is not None and item.report.replication.role == "master"]


def say_without_master(statuses: Sequence[BrokerStatus]) -> list[str]:
    statuses = [item for item in statuses if item.offline_since is None]
    with_master = {item.broker_name for item in statuses if item.broker_id == MASTER_ID}
    return [
        f"broker {name} has no master: it accepts no messages, but its slaves can be read. An in-sync replica is "
        f"elected automatically; `minimq cluster promote {name} --replica ID --unclean` elects another"
        for name in sorted({item.broker_name for item in statuses} - with_master)
    ]


def in_short(row: Row) -> Row:
    """Return the columns of a table about replication, as text."""
    in_sync, behind_bytes, behind_s = row["in_sync"], row["behind_bytes"], row["behind_s"]
    behind = size_of(behind_bytes) if isinstance(behind_bytes, int) else None
    if behind is not None and isinstance(behind_s, float) and behind_bytes:
        behind += f", {duration_of(behind_s)}"
    return {
        "mode": ("sync" if row["sync"] else "async") if row["role"] == "master" else None,
        "in_sync": ", ".join(map(str, in_sync)) if isinstance(in_sync, list) else None,
        "behind": behind,
        "state": row["problem"] or row["state"],
    }


def _as_its_master_sees_it(
    broker_name: str, about: ReplicationReport, masters: Sequence[BrokerStatus]
) -> SlaveStatus | None:
    if about.role != "slave":
        return None
    others = (
        each
        for master in masters
        if master.broker_name == broker_name and master.report is not None
        for each in master.report.replication.replicas
    )
    return next((each for each in others if each.replica_id == about.replica_id), None)


def _machine_problems(report: BrokerReport) -> list[str]:
    problems = ["stores nothing after a disk error: restart it"] if report.store_failed else []
    if report.slow_sync_s:
        problems.append(f"its disk is slow: a sync has taken {report.slow_sync_s:.1f} s in the last minute")
    if report.clock_ahead_s:
        ahead = duration_of(report.clock_ahead_s)
        problems.append(f"deletes nothing by age, since its clock has jumped ahead by {ahead}: correct it")
    if report.stamps_ahead_s:
        ahead = duration_of(report.stamps_ahead_s)
        problems.append(f"new messages are stamped up to {ahead} ahead, since a clock was wrong: use new queues")
    return problems


def broker_problems(report: BrokerReport) -> list[str]:
    """Return the problems of a broker, as sentences without a subject."""
    about = report.replication
    problems = _machine_problems(report)
    if about.role == "undecided":
        problems.append("waits for its controller")
    if about.role == "slave" and not about.connected:
        problems.append("follows no master")
    if about.role == "master" and about.lease_s == 0:
        problems.append("accepts no messages: its controller does not answer, and not all in-sync replicas confirm it")
    elif about.by_replicas_s:
        since = duration_of(about.by_replicas_s)
        problems.append(
            f"has served without its controller for {since}: all in-sync replicas confirm it, but no other "
            "master can be elected"
        )
    elif about.role != "undecided" and about.controller_silent_s > _SILENT_S:
        problems.append(f"its controller has not answered for {duration_of(about.controller_silent_s)}")
    if about.role == "master" and about.sync and len(about.in_sync) < about.min_in_sync:
        problems.append(f"accepts no messages: {len(about.in_sync)} in sync, {about.min_in_sync} needed")
    gone = [str(replica.replica_id) for replica in about.replicas if not replica.connected]
    if gone:
        problems.append(f"replica {', '.join(gone)} does not follow")
    return problems
