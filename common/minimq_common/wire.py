"""Routes as they travel: conversions between the protobuf messages and the values of `minimq_common.model`."""

from __future__ import annotations

from minimq_common.model import BrokerData, Permission, QueueData, TopicRoute
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
    return BrokerData(message.cluster, message.broker_name, dict(sorted(message.addresses.items())))


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
            )
            for data in route.queues
        ],
        brokers=[broker_to_wire(broker) for broker in route.brokers.values()],
    )


def route_from_wire(message: nameserver_pb2.TopicRoute) -> TopicRoute:
    """Return the value for the route of one topic, its queue data sorted by broker name."""
    queues = (
        QueueData(data.broker_name, data.read_queues, data.write_queues, permission_from_wire(data.permission))
        for data in message.queues
    )
    return TopicRoute(
        topic=message.topic,
        queues=tuple(sorted(queues, key=lambda data: data.broker_name)),
        brokers={broker.broker_name: broker_from_wire(broker) for broker in message.brokers},
    )
