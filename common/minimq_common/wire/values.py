"""Routes as they travel: conversions between the protobuf messages and the values of `minimq_common.model`."""

from __future__ import annotations

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
from minimq_common.moments import moment
from minimq_common.names import check_address, check_broker, check_cluster, check_topic
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import nameserver_pb2


def permission_from_wire(bits: int) -> Permission:
    """Return the permission; bits that this version does not know are left out."""
    return Permission(bits & Permission.READ_WRITE)


def broker_to_wire(broker: BrokerData) -> nameserver_pb2.BrokerData:
    """Return the message for one broker name."""
    return nameserver_pb2.BrokerData(
        cluster=broker.cluster, broker_name=broker.broker_name, addresses=dict(broker.addresses)
    )


def broker_from_wire(message: nameserver_pb2.BrokerData) -> BrokerData:
    """Return the value for one broker name, its addresses sorted by broker id."""
    check_bounds(message)
    check_broker(message.broker_name)
    check_cluster(message.cluster)
    for address in message.addresses.values():
        check_address(address)
    return BrokerData(message.cluster, message.broker_name, dict(sorted(message.addresses.items())))


def away_from_wire(message: nameserver_pb2.AwayBroker) -> AwayBroker:
    """Return the value for a broker that has gone. Raises as `broker_from_wire`."""
    broker = broker_from_wire(message.broker)
    return AwayBroker(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        addresses=broker.addresses,
        since=moment(message.since_ms),
        stopped=message.stopped,
        queues=message.queues,
    )


def route_to_wire(route: TopicRoute) -> nameserver_pb2.TopicRoute:
    """Return the message for the route of one topic."""
    return nameserver_pb2.TopicRoute(
        topic=route.topic,
        queues=[
            nameserver_pb2.QueueData(
                broker_name=data.broker_name,
                read_queues=data.read_queues,
                write_queues=data.write_queues,
                permission=int(data.permission),
                key_queues=data.key_queues,
            )
            for data in route.queues
        ],
        brokers=[broker_to_wire(broker) for broker in route.brokers.values()],
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
