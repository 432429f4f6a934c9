"""Three replicas and a controller on hosts of their own, between which the network is cut, one pair after the other."""

from __future__ import annotations

import contextlib
import itertools
import queue
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from minimq import Admin
from minimq.admin.descriptions import ReplicationReport, replication_from_wire
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import MinimqError
from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink
from support.chance import SEED
from support.cut_network import CutNetwork, can_cut
from support.kernel_stores import make_batch
from support.process import process
from support.raw_member import RawMember
from support.raw_sender import Broken, RawSender
from support.reading import read_all
from support.replicas import TIMEOUT_S
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.skipif(not can_cut(), reason="needs root and network namespaces")]

LEASE_S = 1.5
CONTROLLER, REPLICAS = 3, (0, 1, 2)
ROUNDS = 12


@dataclass(frozen=True)
class Served:
    """A moment in which a broker acted as the master: it lies between two times."""

    replica: int
    begun: float
    done: float


class Hosts:
    """The servers, each on its host, and threads that use each broker as if it were the master all the time."""

    def __init__(self, network: CutNetwork) -> None:
        self.network = network
        self.nameserver = f"{network.addresses[CONTROLLER]}:9876"
        self.brokers = [f"{network.addresses[replica]}:10911" for replica in REPLICAS]
        self.served: list[Served] = []
        self.stored: list[bytes] = []
        #: The offset and the body of each message that a broker has given to a reader, by its replica.
        self.pulled: dict[int, set[tuple[int, bytes]]] = {replica: set() for replica in REPLICAS}
        self.ended = threading.Event()

    def report(self, replica: int) -> ReplicationReport | None:
        link = BrokerLink(self.brokers[replica])
        try:
            answer = link.call(link.stub.GetStatus, broker_pb2.GetStatusRequest(), 2.0)
        except MinimqError:
            return None
        finally:
            link.close()
        return replication_from_wire(answer.replication)

    def masters(self) -> list[int]:
        reports = {replica: self.report(replica) for replica in REPLICAS}
        return [replica for replica, report in reports.items() if report and report.role == "master" and report.lease_s]

    def all_in_sync(self) -> bool:
        reports = [self.report(replica) for replica in REPLICAS]
        return any(report and report.role == "master" and report.in_sync == REPLICAS for report in reports)

    def send(self, replica: int) -> None:
        """Send one message after the other to a broker, whatever it is."""
        with RawSender(self.brokers[replica]) as sender:
            for number in itertools.count():
                if self.ended.wait(0.02):
                    return
                body, begun = b"%d %d" % (replica, number), time.monotonic()
                with contextlib.suppress(Broken, KeyError):  # it may end without an answer
                    [result] = sender.send("t", [(0, make_batch([body]))])
                    if not result.failure.code:
                        self.stored.append(body)
                        self.served.append(Served(replica, begun, time.monotonic()))

    def own(self, replica: int) -> None:
        """Be granted a queue by a broker, one time after the other, whatever it is."""
        while not self.ended.wait(0.05):
            begun = time.monotonic()
            with RawMember(self.brokers[replica], f"member-{replica}") as member:
                member.join("g", "t")
                member.ask("g", "t", 1)
                if _is_granted(member):
                    self.served.append(Served(replica, begun, time.monotonic()))

    def pull(self, replica: int) -> None:
        """Read the queue from a broker, whatever it is."""
        link, offset = BrokerLink(self.brokers[replica]), 0
        while not self.ended.wait(0.02):
            request = broker_pb2.PullRequest(
                pull_id=1, topic="t", queue_id=0, offset=offset, max_messages=1000, max_bytes=1 << 20, wait_ms=500
            )
            with contextlib.suppress(grpc.RpcError):
                for frame in link.stub.Pull(iter([request]), timeout=2.0):
                    for found in frame.batches:
                        [body] = RecordBatch(found.batch).bodies()
                        self.pulled[replica].add((found.base_offset, body))
                        offset = found.base_offset + 1
        link.close()

    @contextlib.contextmanager
    def asked(self) -> Iterator[None]:
        asking = (self.send, self.own, self.pull)
        threads = [threading.Thread(target=ask, args=(each,)) for each in REPLICAS for ask in asking]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ended.set()
            for thread in threads:
                thread.join()


def _is_granted(member: RawMember) -> bool:
    deadline = time.monotonic() + 1.0
    while member.ended.empty() and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            if member.events.get(timeout=0.05).WhichOneof("event") == "granted":
                return True
    return False


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with CutNetwork(4) as network, contextlib.ExitStack() as running:
        hosts = Hosts(network)
        nameserver = ["-m", "minimq_nameserver", "--listen", hosts.nameserver, "--term-lease", str(LEASE_S)]
        commands = {CONTROLLER: [*nameserver, "--controller-dir", str(tmp_path / "controller")]}
        for replica in REPLICAS:
            commands[replica] = [
                *(
                    "-m",
                    "minimq_broker",
                    "--name",
                    "broker-a",
                    "--id",
                    str(replica),
                    "--listen",
                    hosts.brokers[replica],
                ),
                *("--role", "sync-master", "--data-dir", str(tmp_path / str(replica)), "--session-grace", "0.2"),
                *("--nameserver", hosts.nameserver, "--controller", hosts.nameserver),
            ]
        for host in (CONTROLLER, *REPLICAS):
            command = network.command(host, sys.executable, *commands[host], "--log-level", "error")
            started = running.enter_context(process(*command))
            assert started.stdout is not None
            assert started.stdout.readline().startswith("ready"), started.communicate()
        wait_until(hosts.all_in_sync, TIMEOUT_S, what="all are in sync")
        with Admin(hosts.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield hosts
        network.heal()
        running.close()


@pytest.mark.timeout(120)
def test_with_every_link_to_the_controller_cut_the_master_goes_on_until_a_replica_is_cut_off(hosts: Hosts) -> None:
    [master] = hosts.masters()
    hosts.network.isolate(CONTROLLER)

    def by_replicas_s() -> float:
        report = hosts.report(master)
        return report.by_replicas_s if report is not None else 0.0

    wait_until(lambda: by_replicas_s() > 2 * LEASE_S, TIMEOUT_S, what="it serves by its replicas")
    with RawSender(hosts.brokers[master]) as sender:
        [result] = sender.send("t", [(0, make_batch([b"meanwhile"]))])
        assert not result.failure.code, result
        slave = next(replica for replica in REPLICAS if replica != master)
        hosts.network.cut(master, slave)
        wait_until(lambda: not hosts.masters(), TIMEOUT_S, what="one of those that may be elected confirms it no more")
        [result] = sender.send("t", [(0, make_batch([b"alone"]))])
        assert result.failure.code == "NOT_MASTER", result
    hosts.network.heal()
    wait_until(hosts.all_in_sync, TIMEOUT_S, what="all are in sync again")


@pytest.mark.timeout(300)
def test_whichever_links_are_cut_two_masters_never_serve_and_nothing_acknowledged_or_read_is_lost(hosts: Hosts) -> None:
    chance = random.Random(SEED)
    pairs = list(itertools.combinations((CONTROLLER, *REPLICAS), 2))
    with hosts.asked():
        for number in range(ROUNDS):
            masters = [(CONTROLLER, master) for master in hosts.masters() if number % 2]
            for pair in {*masters, pairs[number % len(pairs)], *chance.sample(pairs, chance.choice((0, 0, 1)))}:
                hosts.network.cut(*pair)
            time.sleep(chance.uniform(0.5, 3 * LEASE_S))  # schedules of faults; nothing is expected of this time
            if chance.random() < 0.7:
                hosts.network.heal()
                time.sleep(chance.uniform(0, 2 * LEASE_S))
        hosts.network.heal()
        wait_until(hosts.all_in_sync, TIMEOUT_S, what="all are in sync again")
    assert len({served.replica for served in hosts.served}) > 1, "no other one became the master"
    _check_one_at_a_time(hosts.served)
    messages = read_all(hosts.nameserver, "t")
    found = [message.body for message in messages]
    assert len(set(found)) == len(found)
    assert set(hosts.stored) <= set(found)
    there = {(message.queue_offset, message.body) for message in messages}
    for replica, pulled in hosts.pulled.items():
        assert pulled, replica
        assert not pulled - there, f"replica {replica} has given away what the last master does not have"


def _check_one_at_a_time(served: list[Served]) -> None:
    """Check that no broker served before and after another one, unless it may have been elected in between."""
    for one in {each.replica for each in served}:
        own = sorted((each for each in served if each.replica == one), key=lambda each: each.begun)
        others = [each for each in served if each.replica != one]
        for before, after in itertools.pairwise(own):
            if after.begun - before.done < LEASE_S:
                between = [each for each in others if before.done < each.begun and each.done < after.begun]
                assert not between, (before, between, after)
