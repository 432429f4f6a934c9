"""A broker with slaves, for tests of clients."""

from __future__ import annotations

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq.local.server_process import BrokerProcess
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember
from support.replicas import TIMEOUT_S, wait_for_master, wait_in_sync


def send(cluster: LocalCluster, count: int, size: int = 10) -> None:
    """Send messages evenly to the two queues, in batches of about ten."""
    with Producer(cluster.nameserver, batch_messages=10, send_timeout_s=TIMEOUT_S) as producer:
        futures = [producer.send_async(Message("t", b"%010d" % number * (size // 10))) for number in range(count)]
        for future in futures:
            future.result(TIMEOUT_S)


def ends(cluster: LocalCluster) -> dict[MessageQueue, int]:
    """Return where the queues end."""
    with Admin(cluster.nameserver) as admin:
        return {item.queue: item.max_offset for item in admin.describe_topic("t").queues}


def committed(broker: BrokerProcess, group: str) -> dict[int, int]:
    """Return what a group has committed as a broker has it, by queue id."""
    with RawMember(broker.address, "looks") as member:
        answer = member.call("GetCommitted", broker_pb2.GetCommittedRequest(group=group))
        return {item.queue_id: item.offset for item in answer.offsets}


def members_at(broker: BrokerProcess, group: str) -> int:
    """Return how many members of a group have a session with a broker."""
    with RawMember(broker.address, "looks") as member:
        return len(member.call("DescribeGroup", broker_pb2.DescribeGroupRequest(group=group)).client_ids)


def messages_out(broker: BrokerProcess) -> int:
    """Return how many messages a broker has handed out since it was started."""
    with RawMember(broker.address, "looks") as member:
        return int(member.call("GetStatus", broker_pb2.GetStatusRequest()).messages_out)


def leave_slaves_alone(cluster: LocalCluster) -> None:
    """End the master, and the controller, so that there is no other one."""
    cluster.nameservers[0].kill()
    cluster.brokers[0].kill()


def bring_back(cluster: LocalCluster) -> BrokerProcess:
    """Start what `leave_slaves_alone` has ended. Returns the master: any replica may be elected."""
    controller, master = cluster.nameservers[0], cluster.brokers[0]
    master.launch()
    controller.launch()
    controller.wait_ready()
    master.wait_ready()
    leader = wait_for_master(cluster)
    wait_in_sync(cluster, *cluster.brokers)
    return leader
