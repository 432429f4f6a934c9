"""Looking after topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from minimq.descriptions import (
    BrokerStatus,
    QueueDescription,
    TopicDescription,
    TopicSettings,
    moment,
    name_of,
    report_from_wire,
)
from minimq.fan_out import FanOut, raise_failures
from minimq.nameserver_link import NameServerLinks
from minimq.options import DEFAULT_NAMESERVER, nameserver_addresses
from minimq_common.errors import InvalidArgument, TopicExists, TopicNotFound, Unavailable
from minimq_common.model import MASTER_ID, BrokerData, MessageQueue, Permission, TopicRoute
from minimq_common.names import check_group, check_topic
from minimq_common.wire import permission_from_wire
from minimq_proto.v1 import broker_pb2


class Admin:
    """Creates, changes, describes and deletes topics, and looks at brokers. Thread-safe; a context manager.

    Whatever changes something does so on every master of the cluster that the name servers know, and may be repeated
    when it failed half-way: what has been done already stays done.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses.
        timeout_s: seconds that one call to a server may take, and seconds to wait until all name servers show a change.

    Raises:
        InvalidArgument: an address is not HOST:PORT.
    """

    def __init__(self, nameserver: str | Sequence[str] = DEFAULT_NAMESERVER, *, timeout_s: float = 5.0) -> None:
        if timeout_s <= 0:
            raise InvalidArgument(f"timeout_s is {timeout_s}: it must be above 0")
        self._addresses = nameserver_addresses(nameserver)
        self._timeout_s = timeout_s
        self._nameservers = NameServerLinks(self._addresses, timeout_s)
        self._brokers = FanOut(timeout_s)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End all connections; later calls raise `Closed`. Idempotent."""
        self._nameservers.close()
        self._brokers.close()

    # ---- Topics ---------------------------------------------------------------------------------

    def create_topic(  # noqa: PLR0913 - by name, as the flags of the command
        self,
        name: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: Permission = Permission.READ_WRITE,
        cluster: str | None = None,
        if_not_exists: bool = False,
        wait: bool = True,
    ) -> bool:
        """Create a topic on every master.

        Brokers on which the topic is already, with the same settings, are left as they are: so a creation that failed
        half-way is completed by repeating it, and a broker that joined later gets the topic in the same way.

        Args:
            name: 1 to 127 letters, digits and the characters _ - % |.
            queues: how many on each broker, 1 to 1024.
            read_queues: how many of them consumers see, when it is not all.
            write_queues: how many of them producers see, when it is not all.
            permission: what may be done with it.
            cluster: name of the cluster, when the name servers know several.
            if_not_exists: succeed when the topic is there already, on all masters and with the same settings.
            wait: return only when every name server that answers shows the topic on all these brokers, so that a
                producer which starts right now finds it.

        Returns:
            Whether anything was created: False when all masters have it already.

        Raises:
            TopicExists: it is on all masters already, or with other settings on one of them. Nothing was changed.
            InvalidArgument: a name or number breaks a rule.
            Unavailable: no name server or no master is reached.
            DeadlineExceeded: a name server did not show the topic in time. It has been created.
            MiniMQError: a master failed; the text says which, and the class is that of the first failure.
        """
        check_topic(name)
        if not permission:
            raise InvalidArgument("a new topic must be readable or writable: permission is none")
        wanted = broker_pb2.Topic(
            topic=name,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=int(permission),
        )
        masters = self._masters(cluster)
        present = self._present(name, masters)
        others = {broker: topic for broker, topic in present.items() if _settings(topic) != _settings(wanted)}
        if others or (len(present) == len(masters) and not if_not_exists):
            raise TopicExists(_say_exists(name, others or present))
        absent = {broker: address for broker, address in masters.items() if broker not in present}
        request = broker_pb2.CreateTopicRequest(topic=wanted, if_not_exists=True)
        _, failures = self._brokers.call_all(absent, lambda stub: stub.CreateTopic, request)
        raise_failures(f"topic {name} was not created", failures, masters, "repeat the call to complete it")
        if wait:
            self._wait_until_shown(name, dict.fromkeys(masters, wanted))
        return bool(absent)

    def update_topic(  # noqa: PLR0913 - by name, as the flags of the command
        self,
        name: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: Permission | None = None,
        cluster: str | None = None,
        force: bool = False,
        wait: bool = True,
    ) -> None:
        """Change a topic on every master that carries it; what is not given stays as it is.

        To shrink a topic without losing sight of messages, reduce `write_queues`, wait until consumers have read the
        other queues, and then reduce `read_queues` with `force`: what was read is still stored there. More read queues
        bring it back to sight.

        Args:
            name: of the topic.
            queues: sets both counts.
            read_queues: how many queues on each broker consumers see, 1 to 1024.
            write_queues: how many queues on each broker producers see, 1 to 1024.
            permission: what may be done with the topic.
            cluster: name of the cluster, when the name servers know several.
            force: also when queues that hold messages are not read any more.
            wait: return only when every name server that answers shows the change.

        Raises:
            TopicNotFound: no master carries it.
            InvalidArgument: nothing is to be changed, a number breaks a rule, or messages would go out of sight.
            MiniMQError: as for `create_topic`.
        """
        check_topic(name)
        request = broker_pb2.UpdateTopicRequest(
            topic=name,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=None if permission is None else int(permission),
            force=force,
        )
        if not any(request.HasField(field) for field in ("read_queues", "write_queues", "permission")):
            raise InvalidArgument("nothing is to be changed: give queues, read_queues, write_queues or permission")
        carriers = self._carriers(name, cluster)
        answers, failures = self._brokers.call_all(carriers, lambda stub: stub.UpdateTopic, request)
        remedy = "the others were changed; repeat the call to complete it"
        raise_failures(f"topic {name} was not changed", failures, carriers, remedy)
        if wait:
            self._wait_until_shown(name, {broker: answer.topic for broker, answer in answers.items()})

    def delete_topic(
        self, name: str, *, cluster: str | None = None, if_exists: bool = False, wait: bool = True
    ) -> None:
        """Delete a topic with all its messages on every master that carries it.

        A broker that is down keeps the topic and brings it back when it starts: delete it again then.

        Args:
            name: of the topic.
            cluster: name of the cluster, when the name servers know several.
            if_exists: succeed when there is no such topic.
            wait: return only when no name server that answers shows it on these brokers any more.

        Raises:
            TopicNotFound: no master carries it.
            MiniMQError: as for `create_topic`.
        """
        check_topic(name)
        try:
            carriers = self._carriers(name, cluster)
        except TopicNotFound:
            if if_exists:
                return
            raise
        request = broker_pb2.DeleteTopicRequest(topic=name)
        _, failures = self._brokers.call_all(carriers, lambda stub: stub.DeleteTopic, request)
        failures = {broker: error for broker, error in failures.items() if not isinstance(error, TopicNotFound)}
        raise_failures(f"topic {name} was not deleted", failures, carriers, "repeat the call to complete it")
        if wait:
            self._wait_until_shown(name, dict.fromkeys(carriers))

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted. Raises `Unavailable` when no name server answers."""
        return [route.topic for route in self.routes()]

    def routes(self) -> list[TopicRoute]:
        """Return the routes of all topics, sorted. Raises `Unavailable` when no name server answers."""
        return self._nameservers.topics()

    def describe_topic(self, name: str) -> TopicDescription:
        """Return the settings of a topic and where its queues begin and end.

        Raises:
            TopicNotFound: no master carries it.
            MiniMQError: a master failed; the text says which.
        """
        check_topic(name)
        answers = self._describe(name, self._masters(None))
        if not answers:
            raise TopicNotFound(f"topic {name} is on no broker: create it with `minimq topic create {name}`")
        return TopicDescription(
            topic=name,
            settings=tuple(
                TopicSettings(
                    broker_name=broker,
                    read_queues=answer.topic.read_queues,
                    write_queues=answer.topic.write_queues,
                    permission=permission_from_wire(answer.topic.permission),
                    created_at=moment(answer.topic.created_ms),
                )
                for broker, answer in answers.items()
            ),
            queues=tuple(
                QueueDescription(
                    queue=MessageQueue(name, broker, status.queue_id),
                    min_offset=status.min_offset,
                    max_offset=status.max_offset,
                    last_stored_at=moment(status.last_store_timestamp_ms) if status.last_store_timestamp_ms else None,
                )
                for broker, answer in answers.items()
                for status in answer.queues
            ),
        )

    def route(self, topic: str) -> TopicRoute:
        """Return where the queues of a topic are, asked anew. Raises `TopicNotFound`, `SystemBusy`, `Unavailable`."""
        return self._nameservers.route(check_topic(topic))

    # ---- Brokers --------------------------------------------------------------------------------

    def cluster(self) -> list[BrokerData]:
        """Return the brokers that the name servers know together, sorted. Raises `Unavailable` when none answers."""
        known = self._nameservers.cluster()  # which has the words for it when nobody answers
        return self._nameservers.brokers_of_all() or known

    def broker_status(self) -> list[BrokerStatus]:
        """Return what each replica of each broker says of itself, sorted by name and id.

        A broker that does not answer is in the list, with the reason. Raises `Unavailable` when no name server answers.
        """
        replicas = {
            (broker.cluster, broker.broker_name, broker_id): address
            for broker in self.cluster()
            for broker_id, address in broker.addresses.items()
        }
        request = broker_pb2.GetStatusRequest()
        answers, failures = self._brokers.call_all(replicas, lambda stub: stub.GetStatus, request)
        return [
            BrokerStatus(
                *replica,
                address=address,
                report=report_from_wire(answers[replica]) if replica in answers else None,
                error=failures[replica].message if replica in failures else None,
            )
            for replica, address in sorted(replicas.items())
        ]

    # ---- Offsets --------------------------------------------------------------------------------

    def offset_at(self, queue: MessageQueue, when: datetime) -> int:
        """Return the first offset stored at or after a moment, or the end of the queue when there is none.

        Args:
            queue: which one.
            when: with a time zone.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
            Unavailable: its broker has no master now, or is not reached.
            InvalidArgument: the moment has no time zone.
        """
        if when.tzinfo is None:
            raise InvalidArgument("the moment has no time zone: for example, datetime.now(UTC) has one")
        master = self._masters(None).get(queue.broker_name)
        if master is None:
            raise Unavailable(f"broker {queue.broker_name} of queue {queue} has no master that a name server knows")
        request = broker_pb2.GetOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=round(when.timestamp() * 1000)
        )
        return self._brokers.call(master, lambda stub: stub.GetOffset, request).offset

    def committed_offsets(self, group: str, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the offsets that a consumer group has committed, sorted by queue; of all topics when none is given.

        Raises:
            MiniMQError: a master failed; the text says which.
        """
        request = broker_pb2.GetCommittedRequest(group=check_group(group), topic=check_topic(topic) if topic else "")
        masters = self._masters(None)
        answers, failures = self._brokers.call_all(masters, lambda stub: stub.GetCommitted, request)
        raise_failures(f"the offsets of group {group} are not known", failures, masters, "try again")
        offsets = {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }
        return dict(sorted(offsets.items()))

    # ---- Calling brokers ------------------------------------------------------------------------

    def _masters(self, cluster: str | None) -> dict[str, str]:
        """Return the addresses of all masters by broker name. Raises `Unavailable` when there is none."""
        brokers = self.cluster()
        if not brokers:
            raise Unavailable(
                "no broker is registered with the name server: start one with "
                f"`minimq-broker --nameserver {','.join(self._addresses)}`"
            )
        known = sorted({broker.cluster for broker in brokers})
        if cluster is not None and cluster not in known:
            raise InvalidArgument(f"there is no cluster {cluster!r}: the name server knows {', '.join(known)}")
        if cluster is not None:
            brokers = [broker for broker in brokers if broker.cluster == cluster]
        masters = {broker.broker_name: broker.addresses[MASTER_ID] for broker in brokers if broker.master}
        if not masters:
            names = ", ".join(broker.broker_name for broker in brokers)
            raise Unavailable(f"of {names} only slaves are running: start a master with `minimq-broker --id 0`")
        return masters

    def _carriers(self, topic: str, cluster: str | None) -> dict[str, str]:
        """Return the masters that carry a topic. Raises `TopicNotFound` when there is none."""
        masters = self._masters(cluster)
        present = self._present(topic, masters)
        if not present:
            raise TopicNotFound(f"topic {topic} is on no broker: `minimq topic list` shows those there are")
        return {broker: masters[broker] for broker in present}

    def _present(self, topic: str, masters: dict[str, str]) -> dict[str, broker_pb2.Topic]:
        return {broker: answer.topic for broker, answer in self._describe(topic, masters).items()}

    def _describe(self, topic: str, masters: dict[str, str]) -> dict[str, broker_pb2.DescribeTopicResponse]:
        """Return what each master that carries the topic says; raises when one cannot be asked."""
        request = broker_pb2.DescribeTopicRequest(topic=topic)
        answers, failures = self._brokers.call_all(masters, lambda stub: stub.DescribeTopic, request)
        failures = {broker: error for broker, error in failures.items() if not isinstance(error, TopicNotFound)}
        raise_failures(
            f"topic {topic} cannot be looked up", failures, masters, "nothing was changed; see to these brokers first"
        )
        return answers

    def _wait_until_shown(self, topic: str, wanted: Mapping[str, broker_pb2.Topic | None]) -> None:
        """Wait until the name servers show a topic as wanted: its settings by broker name, None where it is gone."""

        def missing(route: TopicRoute) -> str | None:
            shown = {data.broker_name: data for data in route.queues}
            for broker, settings in wanted.items():
                data = shown.get(broker)
                if settings is None:
                    if data is not None:
                        return f"it still shows topic {topic} on {broker}"
                elif data is None or (data.read_queues, data.write_queues, data.permission) != _settings(settings):
                    return f"it does not show topic {topic} on {broker} as it is now"
            return None

        self._nameservers.wait_for_route(topic, missing, self._timeout_s)


def _settings(topic: broker_pb2.Topic) -> tuple[int, int, int]:
    return topic.read_queues, topic.write_queues, topic.permission


def _say_exists(name: str, present: Mapping[str, broker_pb2.Topic]) -> str:
    """Name the topic and how the brokers have it, and the remedies."""
    there = "; ".join(
        f"{broker} has {topic.write_queues} write and {topic.read_queues} read queues, "
        f"permission {name_of(permission_from_wire(topic.permission))}"
        for broker, topic in present.items()
    )
    return f"topic {name} exists ({there}): change it with `minimq topic update {name}`, or choose another name"
