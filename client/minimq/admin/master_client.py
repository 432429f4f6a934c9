"""Finds the masters of a cluster, calls them, and waits until the name servers show their changes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeVar

from minimq.admin.name_server_queries import offline as offline_brokers
from minimq.admin.name_server_queries import wait_until_shown
from minimq.connection.offline_brokers import ClusterView, say_offline
from minimq.connection.retry_schedule import RECONNECT_S
from minimq_common.errors import (
    InvalidArgument,
    MinimqError,
    NotDrained,
    NotEnoughReplicas,
    NotMaster,
    TopicNotFound,
    TopicUnavailable,
    Unavailable,
)
from minimq_common.model import MASTER_ID, BrokerData, MessageQueue, OfflineBroker, Permission, TopicRoute
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:  # gRPC takes longer to load than --help: operations load it when they run
    from minimq.connection.client import ClusterClient
    from minimq.connection.connection import BrokerMethod

log = logging.getLogger(__name__)

#: Identifies a call to a broker: its name, a pair of anything and its name, or one of its queues.
Key = TypeVar("Key", str, tuple[str, str], MessageQueue)
Request = TypeVar("Request")
Response = TypeVar("Response")
Result = TypeVar("Result")
Deletion = TypeVar("Deletion", broker_pb2.DeleteTopicResponse, broker_pb2.DeleteGroupResponse)

#: "present": the masters that exist; each named broker must have one. "all": every broker must have one. "readable": a
#: slave stands in for a missing master.
Needed = Literal["present", "all", "readable"]
#: Responses with the version of the broker's data.
Versioned = (
    broker_pb2.CreateTopicResponse
    | broker_pb2.UpdateTopicResponse
    | broker_pb2.DeleteTopicResponse
    | broker_pb2.DescribeTopicResponse
    | broker_pb2.DeleteGroupResponse
    | broker_pb2.SetPermissionResponse
)
#: Errors that an election may resolve.
_FAILOVER_ERRORS = (NotMaster, NotEnoughReplicas, Unavailable)


class MasterClient:
    """Finds and calls the masters that the name servers know. Thread-safe."""

    def __init__(self, calls: ClusterClient) -> None:
        self.calls = calls
        self._nameservers = calls.nameservers
        self._timeout_s = calls.timeout_s

    def route(self, topic: str) -> TopicRoute:
        """Return the current route of a topic, not a cached one. Raises as `NameServers.route`."""
        return self.calls.wait(lambda: self._nameservers.route(topic, self._timeout_s))

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted. Raises `Unavailable` if no name server answers."""
        return self.calls.wait(lambda: self._nameservers.topic_names(self._timeout_s))

    def brokers(self, *, settled: bool = False) -> list[BrokerData]:
        """Return the known brokers, sorted; with `settled`, wait while all name servers have just started."""
        return self.calls.wait(lambda: self._brokers(settled=settled))

    async def _brokers(self, *, settled: bool) -> list[BrokerData]:
        known = await self._nameservers.cluster(self._timeout_s)  # raises the proper error if none answers
        return await self._nameservers.brokers_of_all(settled=settled, timeout_s=self._timeout_s) or known

    def find(self, names: Sequence[str] = (), *, need: Needed = "present") -> dict[str, str]:
        """Return addresses by broker name; waits for the election of needed masters."""

        def attempt() -> dict[str, str]:
            return self.calls.wait(lambda: self.look(names, need=need))

        return attempt() if need == "readable" else self.with_retries(attempt, lambda: names)

    async def look(self, names: Sequence[str] = (), *, need: Needed = "present") -> dict[str, str]:
        """Do as `find` without waiting for elections; runs on the event loop of the connection."""
        brokers = await self._brokers(settled=need != "readable")
        first = {each.broker_name: min(each.addresses.items())[1] for each in brokers if each.addresses}
        if need == "readable" and first:
            return first
        own = {each.broker_name: each for each in brokers}
        masters = {name: each.addresses[MASTER_ID] for name, each in own.items() if each.master}
        wanted = names or (own if need == "all" else masters)
        if wanted and masters.keys() >= set(wanted):
            return {name: masters[name] for name in wanted}
        offline = await offline_brokers(self._nameservers)
        unknown = [name for name in names if name not in own]
        if gone := [each for each in offline if not own or each.broker_name in unknown]:
            raise Unavailable(say_offline([each for each in gone if not names or each.broker_name in names] or gone))
        if not brokers:
            raise Unavailable(
                "no broker is registered with the name server: start one with "
                f"`minimq-broker --nameserver {self._nameservers.preferred}`"
            )
        if unknown:
            raise InvalidArgument(
                f"there is no broker {', '.join(map(repr, unknown))}: the name server knows {', '.join(own)}"
            )
        lacking = ", ".join(sorted({*(names or own)} - masters.keys()))
        raise Unavailable(
            f"broker {lacking} has no master now: wait until one of its slaves is elected (`minimq cluster status`), "
            "start the others, or name other brokers"
        )

    def offline(self, topic: str | None = None) -> tuple[OfflineBroker, ...]:
        """Return the offline brokers, sorted by name; only those that carry `topic`, if given."""
        if topic is not None:
            return self.offline_lookup()(topic)
        return tuple(self.calls.wait(lambda: offline_brokers(self._nameservers)))

    def reject_if_offline(
        self, what: str, remedy: str, *, topic: str | None = None, names: Collection[str] = ()
    ) -> None:
        """Raise `Unavailable` if a broker that a change concerns is offline."""
        offline = [each for each in self.offline(topic) if not names or each.broker_name in names]
        if offline:
            raise Unavailable(f"{what}: {say_offline(offline)}; or {remedy}")

    def before_offline(self, look: Callable[[], Result], check_offline: Callable[[], None]) -> Result:
        """Return the result of `look`, with retries, unless a broker is offline: that error says more than its own.

        The order matters: a broker that goes offline in between is in the result, so that its call fails, or in the
            check.
        """
        try:
            found = self.with_retries(look)
        except MinimqError:
            check_offline()
            raise
        check_offline()
        return found

    def offline_lookup(self) -> Callable[[str], tuple[OfflineBroker, ...]]:
        """Return a function that looks up which departed brokers carry a topic, sorted. Results are cached."""
        gone = {offline.broker_name for offline in self.offline()}

        @functools.cache
        def offline(topic: str) -> tuple[OfflineBroker, ...]:
            try:
                found = self.route(topic).offline if gone else ()
            except TopicUnavailable as error:
                found = error.offline
            except TopicNotFound:
                found = ()
            return tuple(broker for broker in found if broker.broker_name in gone)

        return offline

    def with_retries(
        self, attempt: Callable[[], Result], concerned: Callable[[], Collection[str]] = lambda: ()
    ) -> Result:
        """Return the result of `attempt`; retry while one of the `concerned` brokers may get another master.

        `concerned` returns broker names; none means all brokers.
        """
        from minimq.connection.master_calls import with_retries  # asyncio takes as long to load as gRPC

        def may_move(error: MinimqError) -> bool:
            return isinstance(error, _FAILOVER_ERRORS) and self._have_replicas(concerned())

        return with_retries(lambda _: attempt(), self._timeout_s, wait=self.calls.pause, again=may_move)

    def _have_replicas(self, names: Collection[str]) -> bool:
        try:
            known = [broker for broker in self.brokers() if not names or broker.broker_name in names]
        except MinimqError:
            return False
        return any(len(broker.addresses) > 1 or not broker.master for broker in known)

    def call(self, broker_name: str, method: BrokerMethod[Request, Response], request: Request) -> Response:
        """Call the master of a broker. Raises as `find` and `call_all`."""
        answers, failures = self.call_all(self.find([broker_name]), method, request)
        for failure in failures.values():
            raise failure
        return answers[broker_name]

    def call_all(
        self,
        addresses: Mapping[Key, str],
        method: BrokerMethod[Request, Response],
        request: Request | Mapping[Key, Request],
    ) -> tuple[dict[Key, Response], dict[Key, MinimqError]]:
        """Do as `ClusterClient.call_all`; if a master changes meanwhile, retry at its successor."""
        answers: dict[Key, Response] = {}
        failures: dict[Key, MinimqError] = {}

        def attempt() -> None:
            now: dict[str, str] = {}
            if moving := [key for key, error in failures.items() if isinstance(error, _FAILOVER_ERRORS)]:
                with suppress(MinimqError):
                    now = self.find(need="readable")
            asked = {key: now.get(_broker_of(key), addresses[key]) for key in moving} or addresses
            answered, failed = self.calls.call_all(asked, method, request)
            answers.update(answered)
            for key in asked:
                failures.pop(key, None)
            failures.update(failed)
            for error in failed.values():
                if isinstance(error, _FAILOVER_ERRORS):
                    raise error

        with suppress(*_FAILOVER_ERRORS):
            self.with_retries(attempt, lambda: {_broker_of(key) for key in failures})
        return (
            {key: answers[key] for key in addresses if key in answers},
            {key: failures[key] for key in addresses if key in failures},
        )

    def call_about(
        self,
        names: Collection[str],
        addresses: Mapping[str, str],
        method: BrokerMethod[Request, Response],
        request: Callable[[str], Request],
    ) -> dict[str, tuple[dict[str, Response], dict[str, MinimqError]]]:
        """Ask all brokers about each name; return the responses and failures of each name, by broker."""
        keys = {(name, broker): address for name in names for broker, address in addresses.items()}
        answers, failures = self.call_all(keys, method, {key: request(key[0]) for key in keys})
        return {
            name: (
                {broker: answers[name, broker] for broker in addresses if (name, broker) in answers},
                {broker: failures[name, broker] for broker in addresses if (name, broker) in failures},
            )
            for name in names
        }

    def describe(self, topic: str, masters: Mapping[str, str]) -> dict[str, broker_pb2.DescribeTopicResponse]:
        """Return the descriptions of a topic from the brokers that carry it, by name. Raises if one fails."""
        answers, failures = self.describe_each(topic, masters)
        raise_failures(
            f"topic {topic} cannot be looked up", failures, masters, "nothing was changed; see to these brokers first"
        )
        return answers

    def describe_each(
        self, topic: str, masters: Mapping[str, str]
    ) -> tuple[dict[str, broker_pb2.DescribeTopicResponse], dict[str, MinimqError]]:
        """Return the descriptions of a topic from the brokers that carry it, and the failures, by broker name."""
        request = broker_pb2.DescribeTopicRequest(topic=topic)
        answers, failures = self.call_all(masters, lambda stub: stub.DescribeTopic, request)
        return answers, {broker: error for broker, error in failures.items() if not isinstance(error, TopicNotFound)}

    def offsets_at(
        self, queues: Collection[MessageQueue], timestamp_ms: int, addresses: Mapping[str, str]
    ) -> dict[MessageQueue, int]:
        """Return for each queue the first offset stored at or after a moment, or its end when there is none."""
        for queue in queues:
            if queue.broker_name not in addresses:
                raise Unavailable(f"no name server knows broker {queue.broker_name} of queue {queue}")
        answers, failures = self.call_all(
            {queue: addresses[queue.broker_name] for queue in queues},
            lambda stub: stub.DescribeTopic,
            {
                queue: broker_pb2.DescribeTopicRequest(
                    topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms
                )
                for queue in queues
            },
        )
        for queue, error in failures.items():
            raise error.with_message(f"the offset of queue {queue} at that time is not known: {error.message}")
        return {queue: answer.queues[0].offset_at for queue, answer in answers.items()}

    def delete(
        self, what: str, addresses: Mapping[str, str], method: BrokerMethod[Request, Deletion], request: Request
    ) -> dict[str, Deletion]:
        """Delete on all brokers, and return when the name servers show it; a missing topic is no failure."""
        answers, failures = self.call_all(addresses, method, request)
        failures = {broker: error for broker, error in failures.items() if not isinstance(error, TopicNotFound)}
        raise_failures(f"{what} was not deleted", failures, addresses, "repeat the call to complete it")
        if answers:
            self.wait_until_shown(answers, gone=True)
        return answers

    def wait_until_shown(self, answers: Mapping[str, Versioned], *, gone: bool = False) -> None:
        """Block until every name server that answers shows these changes of brokers; see `show`."""
        self.calls.wait(lambda: self.show(answers, gone=gone))

    async def show(self, answers: Mapping[str, Versioned], *, gone: bool = False) -> None:
        """Wait until every name server that answers shows these changes; runs on the event loop of the connection.

        The version of a broker grows with every change and over restarts, so later changes do not matter. A broker that
        has left is waited for, since it registers with the change when it is back; but not after a deletion (`gone`).
        """

        def lack(view: ClusterView) -> str | None:
            for broker, answer in answers.items():
                shown = view.versions.get((broker, MASTER_ID))
                if shown is None and not (gone and view.settled):
                    return f"broker {broker} is not registered there yet"
                if shown is not None and shown < answer.data_version:
                    return f"it does not show the change of broker {broker} yet"
            return None

        await wait_until_shown(self._nameservers, lack, self._timeout_s)


def _broker_of(key: str | tuple[str, str] | MessageQueue) -> str:
    if isinstance(key, MessageQueue):
        return key.broker_name
    return key if isinstance(key, str) else key[1]


async def make_topic(
    client: ClusterClient, topic: broker_pb2.Topic, timeout_s: float, masters: Mapping[str, str] | None = None
) -> None:
    """Create a topic on all masters that answer, and wait until the name servers show it. Existing ones stay."""
    found = masters or await MasterClient(client).look()
    requests = dict.fromkeys(found, broker_pb2.CreateTopicRequest(topic=topic, if_not_exists=True))
    answers, failures = await client.connection.brokers.call_all(
        found, lambda stub: stub.CreateTopic, requests, timeout_s, min(RECONNECT_S, timeout_s)
    )
    if not answers:
        raise_failures(f"topic {topic.topic} was not created", failures, found, "try again")
    await MasterClient(client).show(answers)
    log.info("client: topic is there topic=%s brokers=%s", topic.topic, ", ".join(answers))


def make_group_topic(client: ClusterClient, topic: str, timeout_s: float) -> None:
    """Create a topic of a group; see `make_topic`. Blocks, also until masters are elected."""
    wanted = broker_pb2.Topic(topic=topic, read_queues=1, write_queues=1, permission=int(Permission.READ_WRITE))
    masters = MasterClient(client).find()
    client.wait(lambda: make_topic(client, wanted, timeout_s, masters))
    client.routes.refresh(topic)


def merge_failures(failures: Mapping[str, MinimqError]) -> MinimqError:
    """Merge the failures of brokers into one error, with the class of the first: of a permanent one, if any."""
    # Permanent errors come first, then queues that groups have to read.
    ordered = sorted(failures.items(), key=lambda item: (item[1].retriable, not isinstance(item[1], NotDrained)))
    first = ordered[0][1]
    if len({error.message for error in failures.values()}) == 1:
        text = f"{', '.join(broker for broker, _ in ordered)}: {first.message}"
    else:
        text = "; ".join(f"{broker}: {error.message}" for broker, error in ordered)
    return first.with_message(text)


def raise_failures(what: str, failures: Mapping[str, MinimqError], asked: Mapping[str, str], remedy: str) -> None:
    """Raise the merged error of all failures, if there are any; see `merge_failures`."""
    if not failures:
        return
    merged = merge_failures({f"{broker} ({asked[broker]})": error for broker, error in failures.items()})
    texts = {error.message for error in failures.values()}
    if len(failures) == len(asked) and len(texts) == 1:
        text = f"{what}: {texts.pop()}"
    else:
        text = f"{what} on {len(failures)} of {len(asked)} brokers: {merged.message}; {remedy}"
    raise merged.with_message(text)
