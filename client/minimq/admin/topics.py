"""Topics: list, describe and delete them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from minimq.admin import values
from minimq.admin.descriptions import TopicDescription, topic_from_wire
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import HIDDEN, Arguments, Form, Operation, flag, method
from minimq.admin.texts import missing
from minimq.admin.topic_changes import TopicChanges
from minimq.admin.views import (
    Plan,
    PlanRow,
    Rows,
    Table,
    View,
    columns,
    filled,
    offline_plan_rows,
    offline_rows,
    plain,
    row_of,
)
from minimq.connection.offline_brokers import by_broker, check_route
from minimq_common.errors import TopicNotFound, TopicUnavailable
from minimq_common.model import MessageQueue, OfflineBroker, TopicRoute, permission_name
from minimq_common.names import DEAD_LETTER_PREFIX, check_topic
from minimq_common.text_units import count_of
from minimq_common.timestamps import Time, timestamp_ms
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:
    from minimq.admin.admin import Admin

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


def _view_list(_admin: Admin, given: Arguments, found: list[TopicRoute], _plan: Plan | None) -> View:
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
    own = [route.topic for route in found if route.topic.startswith("%")]
    if own and not given.with_own:
        dead = sum(name.startswith(DEAD_LETTER_PREFIX) for name in own)
        with_dead = f", {dead} with dead letters" if dead else ""
        lines.append(f"\nnot shown: {count_of(len(own), 'topic')} of consumer groups{with_dead}; --all shows all")
    offline = by_broker(offline for route in routes for offline in route.offline)
    return View(json=rows, lines=lines, notes=missing(offline, {}, "not counted"))


def _view_description(_admin: Admin, _given: Arguments, found: TopicDescription, _plan: Plan | None) -> View:
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


def _view_route(_admin: Admin, _given: Arguments, found: TopicRoute, _plan: Plan | None) -> View:
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


def _plan_deletion(admin: Admin, given: Arguments) -> Plan:
    name, cluster, brokers = given.name, given.cluster, given.brokers
    chosen = admin._to_delete(name, cluster, brokers, if_exists=given.if_exists, force=given.force)
    offline = admin._left_out(name, cluster, brokers, chosen) if given.force else ()  # without force it is rejected
    rows = offline_plan_rows(name, offline, "brings the topic back when it starts: then delete it again")
    if not chosen:
        return Plan(rows=rows, is_harmless=True)
    described = admin.describe_topic(name)
    stored = dict.fromkeys(sorted(chosen), 0)
    for each in described.queues:
        if each.queue.broker_name in stored:
            stored[each.queue.broker_name] += each.messages
    deleted = [PlanRow(f"messages of {name} on {broker}", count) for broker, count in stored.items()]
    return Plan(rows=[*deleted, *admin._reader_rows(described), *rows])


class TopicOperations(TopicChanges):
    """Creates, lists, describes, changes and deletes topics; a part of `Admin`."""

    @method
    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted, also of those whose brokers are all offline.

        Raises `Unavailable` when no name server answers.
        """
        calls = self._masters.calls
        return calls.wait(lambda: calls.nameservers.topic_names(calls.timeout_s))

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

    @Operation(
        "topic delete",
        example="topic delete orders",
        plan=_plan_deletion,
        asks="Delete topic {name}?",
        forms=[Form("delete-topic", "/topics/{name}", "Delete topic {name}", "Delete", to="/topics", typed="name")],
    )
    def delete_topic(
        self,
        name: values.TopicName,
        *,
        cluster: values.ClusterName = None,
        brokers: Annotated[Sequence[str], values.BrokerNames] = (),
        if_exists: bool = False,
        force: bool = False,
        wait: Annotated[bool, HIDDEN] = True,
    ) -> tuple[OfflineBroker, ...]:
        """Delete a topic with all its messages.

        It is deleted on all brokers, or on some of them. This is rejected while a broker of the topic is offline, since
        that broker would bring the topic back. `force` or `brokers` deletes the topic on the others.

        Args:
            name: of the topic.
            cluster: name of the cluster; needed if the name servers know several.
            brokers: only on these brokers.
            if_exists: succeed if there is no such topic.
            force: delete even while a broker of the topic is offline; that broker brings the topic back when it starts.
            wait: return only when no name server that answers shows it on these brokers any more.

        Returns:
            The brokers that are offline and bring the topic back: delete it again then. None when `brokers` is given.

        Raises:
            TopicNotFound: no master carries it, or not all of `brokers` do.
            Unavailable: a broker that carries it is offline; the text says since when.
        """
        carriers = self._to_delete(name, cluster, brokers, if_exists=if_exists, force=force)
        request = broker_pb2.DeleteTopicRequest(topic=name)
        done = self._masters.delete(f"topic {name}", carriers, lambda stub: stub.DeleteTopic, request, wait=wait)
        return self._left_out(name, cluster, brokers, done)

    def _to_delete(
        self, name: str, cluster: str | None, brokers: Sequence[str], *, if_exists: bool, force: bool
    ) -> dict[str, str]:
        """Return the masters on which to delete the topic. Raises as `delete_topic`."""
        check_topic(name)

        def check_offline() -> None:
            if not force and not brokers:
                remedy = "delete it on the others with force (--force) or by name (--broker)"
                self._masters.reject_if_offline(f"topic {name} was not deleted", remedy, cluster=cluster, topic=name)

        try:
            return self._masters.before_offline(lambda: self._carriers(name, cluster, brokers), check_offline)
        except (TopicNotFound, TopicUnavailable):
            if if_exists:
                return {}
            where = f" on {', '.join(brokers)}" if brokers else ""
            raise TopicNotFound(
                f"there is no topic {name}{where} to delete: `minimq topic list` shows the topics; one on a "
                "broker that is offline can be deleted when the broker is back"
            ) from None
