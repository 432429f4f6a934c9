"""Topics: list, describe and delete them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from minimq.admin import values
from minimq.admin.descriptions import TopicDescription, topic_from_wire
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import Arguments, Operation, Operations, flag, method
from minimq.admin.texts import missing
from minimq.admin.views import Plan, Rows, Table, View, columns, filled, offline_rows, plain, row_of
from minimq.connection.offline_brokers import by_broker, check_route
from minimq_common.errors import TopicNotFound
from minimq_common.model import MessageQueue, TopicRoute, permission_name
from minimq_common.names import check_topic
from minimq_common.text_units import count_of
from minimq_common.timestamps import Time, timestamp_ms
from minimq_proto.v1 import broker_pb2

_TOPICS = Table("no topics", columns("topic brokers read_queues write_queues permission"))

_SETTINGS = Table(
    "no broker carries the topic",
    columns(
        "broker read_queues write_queues permission fifo compacted retention_s retention_bytes created_at",
        fifo="FIFO",
        created_at="Created",
    ),
)

_QUEUES = Table(
    "no queues", columns("broker queue min_offset max_offset messages last_stored_at", last_stored_at="Last stored")
)

_ROUTE = Table(
    "no broker carries the topic", columns("broker cluster master slaves read_queues write_queues permission")
)

#: Columns that are hidden while no broker has a value there.
_RARE = ("fifo", "compacted", "retention_s", "retention_bytes")


def _view_list(_admin: object, given: Arguments, found: list[TopicRoute], _plan: Plan | None) -> View:
    routes = [route for route in found if given.with_own or not route.topic.startswith("%")]
    rows = [
        {
            "topic": route.topic,
            "brokers": [data.broker_name for data in route.queues],
            "read_queues": sum(data.read_queues for data in route.queues),
            "write_queues": sum(data.write_queues for data in route.queues),
            "permission": "/".join(dict.fromkeys(permission_name(data.permission) for data in route.queues)) or None,
            "offline": offline_rows(route.offline),
        }
        for route in routes
    ]
    lines: list[str | Rows] = [Rows(_TOPICS, rows)]
    if hidden := len(found) - len(routes):
        lines.append(f"\nnot shown: {count_of(hidden, 'topic')} of consumer groups; --all shows all")
    offline = by_broker(offline for route in routes for offline in route.offline)
    return View(json=rows, lines=lines, notes=missing(offline, {}, "not counted"))


def _view_description(_admin: object, _given: Arguments, found: TopicDescription, _plan: Plan | None) -> View:
    settings = [
        row_of(
            each,
            compacted=each.compaction is not None,
            retention_s=each.retention_s or None,
            retention_bytes=each.retention_bytes or None,
        )
        for each in found.settings
    ]
    queues = [row_of(each, "messages") for each in found.queues]
    return View(
        json={
            "topic": found.topic,
            "messages": found.messages,
            "brokers": settings,
            "queues": queues,
            "offline": offline_rows(found.offline),
            "unanswered": plain(found.unanswered),
        },
        lines=[
            f"{found.topic}: {count_of(found.messages, 'message')}\n",
            filled(_SETTINGS, settings, *_RARE),
            "",
            Rows(_QUEUES, queues),
        ],
        notes=missing(found.offline, found.unanswered, "not counted"),
    )


def _view_route(_admin: object, _given: Arguments, found: TopicRoute, _plan: Plan | None) -> View:
    rows: list[dict[str, Any]] = [
        {
            "broker": data.broker_name,
            "cluster": found.brokers[data.broker_name].cluster,
            "master": found.master_of(data.broker_name),
            "slaves": [f"{number}={at}" for number, at in found.brokers[data.broker_name].addresses.items() if number],
            "read_queues": data.read_queues,
            "write_queues": data.write_queues,
            "permission": permission_name(data.permission),
            "offline": None,
        }
        for data in found.queues
    ]
    # JSON has a row for each broker; the table has only those in the route.
    gone = [
        {**dict.fromkeys(rows[0]), "broker": offline.broker_name, "cluster": offline.cluster, "offline": plain(offline)}
        for offline in found.offline
    ]
    notes = missing(found.offline, {}, "not in the route")
    return View(json=[*rows, *gone], lines=[filled(_ROUTE, rows, "slaves")], notes=notes)


class TopicReads(Operations):
    """Lists and describes topics; a part of `Admin`."""

    @method
    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted, also of those whose brokers are all offline.

        Raises `Unavailable` when no name server answers.
        """
        return self._masters.topic_names()

    @Operation(
        "topic list",
        reads=True,
        example="topic list --output json",
        view=_view_list,
        flags=[flag("with_own", "Include the topics that minimq creates itself, whose names begin with %.", "--all")],
    )
    def routes(self) -> list[TopicRoute]:
        """List the topics.

        minimq itself creates topics for retries (%RETRY%group) and dead letters (%DLQ%group). A topic whose brokers are
        all offline has no queues.
        """
        calls = self._masters.calls
        return calls.wait(lambda: calls.nameservers.topics(calls.timeout_s))

    @Operation("topic describe", reads=True, example="topic describe orders", view=_view_description)
    def describe_topic(self, name: values.TopicName) -> TopicDescription:
        """Show the settings of a topic, and the offsets of each queue.

        Of a broker without a master, a slave answers.

        The queues of brokers that are offline or do not answer in time are missing; `offline` and `unanswered` of the
        result name these brokers.

        Raises:
            TopicNotFound: no broker carries it.
            TopicUnavailable: all brokers that carry it are offline.
        """
        check_topic(name)
        masters = self._masters.find(need="readable")
        answers, failures = self._masters.describe_each(name, masters)
        if not answers or any(error.answered for error in failures.values()):
            raise_failures(f"topic {name} cannot be looked up", failures, masters, "see to these brokers")
        offline = tuple(broker for broker in self._masters.offline_lookup()(name) if broker.broker_name not in answers)
        if not answers:
            check_route(TopicRoute(name, (), {}, offline))
            raise TopicNotFound.nowhere(name)
        return topic_from_wire(name, answers, offline, {broker: error.message for broker, error in failures.items()})

    @method
    def describe_topics(self, names: Iterable[str]) -> list[TopicDescription]:
        """Return the descriptions of several topics, with parallel calls, in the order of their names.

        A topic that no broker carries is left out. A broker that does not answer about a topic, or rejects to, is
        listed in `unanswered` of its description, with the reason, and its queues are missing.

        Raises `Unavailable` when no name server answers, or no broker is known.
        """
        wanted = [check_topic(name) for name in dict.fromkeys(names)]
        if not wanted:
            return []
        masters = self._masters.find(need="readable")
        offline, found = self._masters.offline_lookup(), []
        asked = self._masters.call_about(
            wanted, masters, lambda stub: stub.DescribeTopic, lambda name: broker_pb2.DescribeTopicRequest(topic=name)
        )
        for name, (told, failed) in asked.items():
            unanswered = {broker: e.message for broker, e in failed.items() if not isinstance(e, TopicNotFound)}
            gone = tuple(broker for broker in offline(name) if broker.broker_name not in told)
            if told or unanswered or gone:
                found.append(topic_from_wire(name, told, gone, unanswered))
        return found

    @Operation("route", reads=True, example="route orders", view=_view_route)
    def route(self, topic: values.TopicName) -> TopicRoute:
        """Show the brokers of a topic, as clients see them. It also shows those that are offline.

        Raises:
            TopicNotFound: no broker carries it.
            TopicUnavailable: all brokers that carry it are offline.
        """
        return self._masters.route(check_topic(topic))

    @method
    def offset_at(self, queue: MessageQueue, when: Time) -> int:
        """Return the first offset stored at or after a time, or the end of the queue if there is none.

        Args:
            queue: the queue.
            when: a datetime with a time zone, "2026-01-31T08:00Z", "-24h", or milliseconds since 1970.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
        """
        return self.offsets_at([queue], when)[queue]

    @method
    def offsets_at(self, queues: Iterable[MessageQueue], when: Time) -> dict[MessageQueue, int]:
        """Return the offsets of several queues at one time, as `offset_at` does, with parallel calls.

        Raises as `offset_at`; the text names the queue.
        """
        timestamp = timestamp_ms(when, time.time(), "when")
        return self._masters.offsets_at(tuple(queues), timestamp, self._masters.find(need="readable"))
