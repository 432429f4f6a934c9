"""Permissions of a broker, and of a topic on one broker: they are stored, shown, and obeyed."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from minimq import Admin, LocalCluster, Message, Permission, Producer
from minimq_common.errors import DeadlineExceeded
from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink
from support.kernel_stores import make_batch
from support.nameserver_client import NameServerClient
from support.reading import read_all

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, nameservers=2) as made:
        yield made


@pytest.fixture
def pair(own: LocalCluster) -> Iterator[LocalCluster]:
    """Two name servers and two brokers that carry "orders", with two queues each."""
    with Admin(own.nameserver) as admin:
        admin.create_topic("orders", 2)
    yield own
    with Admin(own.nameserver) as admin:
        for broker in own.brokers:
            admin.set_broker_permission(broker.name, Permission.READ_WRITE)
        for topic in admin.list_topics():
            admin.delete_topic(topic)


def shown(cluster: LocalCluster, broker: str) -> list[Permission]:
    """Return what each name server shows for "orders" on a broker."""
    found = []
    for server in cluster.nameservers:
        link = NameServerClient(server.address)
        found += [data.permission for data in link.route("orders").queues if data.broker_name == broker]
        link.close()
    return found


def told(admin: Admin) -> dict[str, Permission]:
    """Return what the brokers say of themselves."""
    return {status.broker_name: status.report.permission for status in admin.broker_status() if status.report}


def test_every_name_server_shows_it_when_it_is_set(pair: LocalCluster) -> None:
    with Admin(pair.nameserver) as admin:
        for permission in (Permission.READ, Permission.NONE, Permission.WRITE, Permission.READ_WRITE) * 5:
            admin.set_broker_permission("broker-a", permission)
            assert shown(pair, "broker-a") == [permission] * 2
            assert shown(pair, "broker-b") == [Permission.READ_WRITE] * 2
            assert told(admin) == {"broker-a": permission, "broker-b": Permission.READ_WRITE}


def append(address: str, body: bytes) -> str:
    """Send to queue 0 of "orders" whatever its route says, and return the text of the rejection, if there is one."""
    link = BrokerLink(address)
    request = broker_pb2.AppendRequest(
        appends=[broker_pb2.Append(request_id=1, topic="orders", batch=make_batch([body]))]
    )
    [result] = next(iter(link.stub.Append(iter([request])))).results
    link.close()
    return result.failure.message


def pull(address: str) -> tuple[int, str]:
    """Read queue 0 of "orders" whatever its route says: how many batches, and the text of the rejection."""
    link = BrokerLink(address)
    request = broker_pb2.PullRequest(pull_id=1, topic="orders", max_messages=100, max_bytes=1 << 20)
    frames = list(link.stub.Pull(iter([request])))
    link.close()
    return sum(len(frame.batches) for frame in frames), frames[-1].failure.message


@pytest.mark.parametrize("bits", [-(1 << 31), -1, 1, 7, 8, (1 << 31) - 1])
def test_bits_without_a_meaning_are_rejected_by_every_call_that_takes_them(
    cluster: LocalCluster, topic: str, bits: int
) -> None:
    link = BrokerLink(cluster.brokers[0].address)
    config = broker_pb2.Topic(topic=f"{topic}-new", read_queues=1, write_queues=1, permission=bits)
    calls = (
        lambda: link.stub.SetPermission(broker_pb2.SetPermissionRequest(permission=bits)),
        lambda: link.stub.CreateTopic(broker_pb2.CreateTopicRequest(topic=config)),
        lambda: link.stub.UpdateTopic(broker_pb2.UpdateTopicRequest(topic=topic, permission=bits)),
    )
    for call in calls:
        with pytest.raises(grpc.RpcError, match=f"permission {bits}: it is the sum of 2"):
            call()
    link.close()


def test_a_broker_keeps_to_its_permission_whatever_clients_believe(pair: LocalCluster) -> None:
    address = pair.server("broker-a").address
    with Admin(pair.nameserver) as admin:
        assert append(address, b"one") == ""
        admin.set_broker_permission("broker-a", Permission.READ)
        assert "the whole broker is not writable, until minimq cluster permission" in append(address, b"two")
        assert pull(address) == (1, "")
        admin.set_broker_permission("broker-a", Permission.WRITE)
        assert append(address, b"three") == ""
        assert "the whole broker is not readable" in pull(address)[1]
        admin.set_broker_permission("broker-a", Permission.READ_WRITE)
        admin.update_topic("orders", permission=Permission.WRITE, brokers=["broker-a"])
        assert "its own permission does not allow it" in pull(address)[1]
        admin.update_topic("orders", permission=Permission.READ)
        assert pull(address) == (2, "")
    assert [message.body for message in read_all(pair.nameserver, "orders")] == [b"one", b"three"]


@pytest.mark.fault
def test_it_outlives_a_kill_of_the_broker_and_a_restart_of_a_name_server(pair: LocalCluster) -> None:
    broker = pair.server("broker-b")
    with Admin(pair.nameserver) as admin:
        admin.set_broker_permission("broker-b", Permission.READ)
        broker.kill()
        broker.start()
        assert shown(pair, "broker-b") == [Permission.READ] * 2
        for server in pair.nameservers:
            server.kill()
            server.start()
        assert shown(pair, "broker-b") == [Permission.READ] * 2
        broker.stop()  # in order, so that the checkpoint alone tells
        broker.start()
        assert told(admin)["broker-b"] == Permission.READ
        admin.set_broker_permission("broker-b", Permission.READ_WRITE)
        broker.kill()
        broker.start()
        assert shown(pair, "broker-b") == [Permission.READ_WRITE] * 2


@pytest.mark.fault
def test_a_topic_can_be_closed_on_one_broker_only(pair: LocalCluster) -> None:
    with Admin(pair.nameserver) as admin, Producer(pair.nameserver) as producer:
        admin.update_topic("orders", permission=Permission.READ, brokers=["broker-a"])
        assert shown(pair, "broker-a") == [Permission.READ] * 2
        assert shown(pair, "broker-b") == [Permission.READ_WRITE] * 2
        assert {producer.send(Message("orders", b"x")).queue.broker_name for _ in range(8)} == {"broker-b"}
        pair.server("broker-a").kill()
        pair.server("broker-a").start()
        assert shown(pair, "broker-a") == [Permission.READ] * 2


def test_a_name_server_that_does_not_show_it_in_time_is_named(pair: LocalCluster) -> None:
    with LocalCluster(brokers=1) as other:
        other.brokers[0].stop()  # a name server that answers and never hears of the brokers
        with (
            Admin(f"{pair.nameserver},{other.nameserver}", timeout_s=3.0) as hasty,
            pytest.raises(DeadlineExceeded, match=f"{other.nameserver} lags 3.0 s behind"),
        ):
            hasty.set_broker_permission("broker-a", Permission.READ)
        with Admin(f"{pair.nameserver},{other.nameserver}") as admin:
            assert told(admin)["broker-a"] == Permission.READ
