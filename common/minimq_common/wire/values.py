"""Values of messages that are checked before anybody goes by them: routes, brokers, records of replicas."""

from __future__ import annotations

from dataclasses import asdict

from minimq_common.errors import InvalidArgument
from minimq_common.model import (
    MAX_QUEUES,
    MAX_QUEUES_OF_A_TOPIC,
    AwayBroker,
    BrokerData,
    Permission,
    QueueData,
    TopicRoute,
)
from minimq_common.names import check_address, check_broker, check_cluster, check_topic
from minimq_common.replicas.replica_set import ReplicaSet, check_record
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.convert import from_wire, to_wire
from minimq_proto.v1 import controller_pb2, nameserver_pb2


def permission_from_wire(bits: int) -> Permission:
    """Return the permission; bits that this version does not know are left out."""
    return Permission(bits & Permission.READ_WRITE)


def broker_from_wire(message: nameserver_pb2.BrokerData) -> BrokerData:
    """Return the value for one broker name, its addresses sorted by broker id."""
    check_bounds(message)
    check_broker(message.broker_name)
    check_cluster(message.cluster)
    for address in message.addresses.values():
        check_address(address)
    return from_wire(BrokerData, message)


def away_from_wire(message: nameserver_pb2.AwayBroker) -> AwayBroker:
    """Return the value for a broker that has gone. Raises as `broker_from_wire`."""
    return from_wire(AwayBroker, message, **asdict(broker_from_wire(message.broker)))


def route_to_wire(route: TopicRoute) -> nameserver_pb2.TopicRoute:
    """Return the message for the route of one topic."""
    return nameserver_pb2.TopicRoute(
        topic=route.topic,
        queues=[to_wire(nameserver_pb2.QueueData, data) for data in route.queues],
        brokers=[to_wire(nameserver_pb2.BrokerData, broker) for broker in route.brokers.values()],
    )


def queue_data(
    broker_name: str, read_queues: int, write_queues: int, permission: int, key_queues: int = 0, topic: str = ""
) -> QueueData:
    """Return the value for a topic on one broker. Raises `InvalidArgument` when it has more queues than can be."""
    for count in (read_queues, write_queues):
        if not 0 <= count <= MAX_QUEUES:
            raise InvalidArgument(f"a topic has {count} queues on broker {broker_name!r}, the limit is {MAX_QUEUES}")
    if not 0 <= key_queues <= MAX_QUEUES_OF_A_TOPIC:
        raise InvalidArgument(f"a topic has {key_queues} queues on all brokers, the limit is {MAX_QUEUES_OF_A_TOPIC}")
    return QueueData(broker_name, read_queues, write_queues, permission_from_wire(permission), key_queues, topic)


def route_from_wire(message: nameserver_pb2.TopicRoute) -> TopicRoute:
    """Return the value for the route of one topic, its queue data sorted by broker name."""
    check_bounds(message)
    check_topic(message.topic)
    queues = [
        queue_data(
            check_broker(data.broker_name),
            data.read_queues,
            data.write_queues,
            data.permission,
            data.key_queues,
            message.topic,
        )
        for data in message.queues
    ]
    number = sum(max(data.read_queues, data.write_queues) for data in queues)
    if number > MAX_QUEUES_OF_A_TOPIC:
        raise InvalidArgument(f"topic {message.topic} has {number} queues, the limit is {MAX_QUEUES_OF_A_TOPIC}")
    if len({data.broker_name for data in queues}) < len(queues):
        raise InvalidArgument(f"the route of topic {message.topic} names a broker twice")
    return TopicRoute(
        topic=message.topic,
        queues=tuple(sorted(queues, key=lambda data: data.broker_name)),
        brokers={broker.broker_name: broker_from_wire(broker) for broker in message.brokers},
        away=tuple(map(away_from_wire, message.away)),
    )


def replica_set_from_wire(message: controller_pb2.ReplicaSet) -> ReplicaSet:
    """Return the record of a replica set."""
    record = from_wire(ReplicaSet, message)
    check_record(record)
    return record
