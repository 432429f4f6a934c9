"""Finds queues and their offsets, for jobs that plan their reads in advance."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.connection import BrokerMethod, together
from minimq.connection.finalizers import Finalizer
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.commits import BrokerOffsets
from minimq.consuming.queue_decisions import Commit
from minimq.consuming.stored_offsets import StoredOffsets, TopicOnBroker
from minimq_common.errors import MinimqError, TopicNotFound, TopicUnavailable, Unavailable
from minimq_common.model import MessageQueue, OfflineBroker, Permission, TopicId, TopicRoute
from minimq_common.names import check_group
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.timestamps import Time, timestamp_ms
from minimq_proto.v1 import broker_pb2

Key = TypeVar("Key", bound=Hashable)
Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class QueueLookup:
    """The result of `QueueFinder.find`."""

    queues: Mapping[MessageQueue, StoredOffsets]
    #: Brokers that do not have the topic.
    absent: frozenset[TopicOnBroker]
    failures: Mapping[TopicOnBroker, MinimqError]
    offline: Mapping[TopicOnBroker, OfflineBroker] = field(default_factory=dict)


class QueueFinder:
    """Finds queues, their bounds, and offsets by time. Thread-safe. Create it after a fork, not before.

    While a master does not answer, its slaves are asked.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        timeout_s: float = 5.0,
        credentials: CredentialsArgument | None = None,
    ) -> None:
        self._client = ClusterClient(nameserver, timeout_s, credentials=credentials)
        self._routes = self._client.routes
        self._places = ReplicaSelector(self._client)
        self._finalizer = Finalizer(self, self._client.close)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted. Raises `Unavailable` when no name server answers."""
        return self._client.wait(lambda: self._client.nameservers.topic_names(self._client.timeout_s))

    def find(self, topics: Iterable[str], known: Iterable[TopicOnBroker] = ()) -> QueueLookup:
        """Describe all queues of topics; a topic without brokers has none.

        A `known` carrier that is missing in the routes is asked directly whether the topic was deleted.
        """
        carriers: list[TopicOnBroker] = []
        offline: dict[TopicOnBroker, OfflineBroker] = {}
        for topic in topics:
            names, brokers = self._brokers_of(topic)
            carriers += [TopicOnBroker(topic, name) for name in names]
            offline |= {TopicOnBroker(topic, broker.broker_name): broker for broker in brokers if broker.queues}
        requests = {
            carrier: (MessageQueue(*carrier, 0), broker_pb2.DescribeTopicRequest(topic=carrier[0]))
            for carrier in carriers
        }
        answers, failures = self._client.wait(lambda: self._ask(requests, lambda stub: stub.DescribeTopic))
        unrouted = [carrier for carrier in dict.fromkeys(known) if carrier not in requests]
        if unrouted:
            found, silent = self._ask_masters(unrouted)
            answers, failures = {**answers, **found}, {**failures, **silent}
        absent = {carrier for carrier, error in failures.items() if isinstance(error, TopicNotFound)}
        for topic in {topic for topic, _ in absent}:
            self._routes.forget(topic)  # looked up again next time
        queues = {queue: found for carrier, answer in answers.items() for queue, found in _queues_of(carrier, answer)}
        return QueueLookup(
            dict(sorted(queues.items())),
            frozenset(absent),
            {carrier: error for carrier, error in failures.items() if carrier not in absent},
            offline,
        )

    def _brokers_of(self, topic: str) -> tuple[Sequence[str], Sequence[OfflineBroker]]:
        """Return the names of the brokers that carry a topic, and those of them that are offline."""
        try:
            route = self._routes.route(topic)
        except TopicNotFound:
            return (), ()
        except TopicUnavailable as error:
            if not error.offline:
                raise
            return (), error.offline
        return [data.broker_name for data in route.queues], route.offline

    def known_routes(self, topics: Iterable[str]) -> list[TopicRoute]:
        """Return the cached routes of topics, for `RangeReader.learn`. Does not wait."""
        return [route for topic in topics if (route := self._routes.known(topic)) is not None]

    def _ask_masters(
        self, carriers: Iterable[TopicOnBroker]
    ) -> tuple[dict[TopicOnBroker, tuple[broker_pb2.DescribeTopicResponse, bool]], dict[TopicOnBroker, MinimqError]]:
        brokers = self._client.wait(self._client.nameservers.brokers_of_all)
        masters = {broker.broker_name: broker.master for broker in brokers}
        unknown: dict[TopicOnBroker, MinimqError] = {}
        addresses: dict[TopicOnBroker, str] = {}
        for carrier in carriers:
            broker = carrier[1]
            master = masters.get(broker)
            if master is None:
                unknown[carrier] = Unavailable(f"no name server knows where broker {broker} is: is it running?")
            else:
                addresses[carrier] = master
        requests = {carrier: broker_pb2.DescribeTopicRequest(topic=carrier[0]) for carrier in addresses}
        found, failures = self._client.call_all(addresses, lambda stub: stub.DescribeTopic, requests, reconnect_s=0)
        answers = {carrier: (answer, False) for carrier, answer in found.items()}
        return answers, {**unknown, **failures}

    def offsets_at(self, queues: Iterable[MessageQueue], when: Time) -> dict[MessageQueue, int]:
        """Return for each queue the first offset stored at or after a time, or its end if there is none."""
        timestamp = timestamp_ms(when, time.time(), "when")
        requests = {
            queue: (
                queue,
                broker_pb2.DescribeTopicRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp),
            )
            for queue in queues
        }
        answers, failures = self._client.wait(lambda: self._ask(requests, lambda stub: stub.DescribeTopic))
        for queue, error in failures.items():
            raise error.with_message(f"the offset of queue {queue} at {when} is not known: {error.message}")
        return {queue: answer.queues[0].offset_at for queue, (answer, _) in answers.items()}

    def publish(self, group: str, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, MinimqError]:
        """Publish the progress of a job under the name of a group, for monitoring; offsets may go back.

        Brokers mark the group: its offsets cannot be reset, since the job does not read them.
        """
        addresses: dict[MessageQueue, str] = {}
        failures: dict[MessageQueue, MinimqError] = {}
        brokers, timeout_s = self._client.connection.brokers, self._client.timeout_s
        store = BrokerOffsets(brokers, addresses.__getitem__, check_group(group), "", timeout_s, published=True)
        for queue in offsets:
            try:
                self._routes.route(queue.topic)  # fetches the route that `places` needs
                addresses[queue] = self._places.of(queue).address
            except MinimqError as error:
                failures[queue] = error
        commits = [Commit(queue, offsets[queue], sought=True) for queue in addresses]
        return failures | dict(self._client.wait(lambda: store.save(commits)))

    def close(self) -> None:
        self._finalizer.close(self._client.close)

    async def _ask(
        self, requests: Mapping[Key, tuple[MessageQueue, Request]], method: BrokerMethod[Request, Response]
    ) -> tuple[dict[Key, tuple[Response, bool]], dict[Key, MinimqError]]:
        async def ask(key: Key) -> tuple[Response, bool]:
            answer, place = await self._places.ask(requests[key][0], method, requests[key][1], self._client.timeout_s)
            return answer, not place.is_master

        return await together({key: queue.broker_name for key, (queue, _) in requests.items()}, ask)


def _queues_of(
    carrier: TopicOnBroker, answer: tuple[broker_pb2.DescribeTopicResponse, bool]
) -> Iterable[tuple[MessageQueue, StoredOffsets]]:
    described, from_slave = answer
    topic = described.topic
    for status in described.queues:
        yield (
            MessageQueue(*carrier, status.queue_id),
            StoredOffsets(
                first=status.min_offset,
                end=status.max_offset,
                topic_id=TopicId(topic.topic_id, topic.created_ms),
                is_shown=status.queue_id < topic.read_queues,
                is_readable=bool(topic.permission & Permission.READ),
                from_slave=from_slave,
                term=described.term,
            ),
        )
