"""One reply or a clear error, whoever of the three is killed or hangs: who asks, the broker, or who answers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import support
from minimq import Admin, Cluster, LocalCluster, Message, Producer, ReceivedMessage, Reply
from minimq.errors import DeadlineExceeded, MinimqError, SendFailed, TopicUnavailable, Unavailable
from support.chance import SEED, rounds
from support.process import process
from support.replicas import find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.replying import answer_to, service
from support.waiting import wait_until

pytestmark = pytest.mark.fault

PROGRAM = Path(support.__file__).with_name("echo_service.py")
TIMEOUT_S = 60.0
ROUNDS = rounds(2)


@contextmanager
def program(what: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program beside the block, once it has said that it does what it is for."""
    with process(sys.executable, str(PROGRAM), what, *arguments) as started:
        assert line(started) == what, started.stderr and started.stderr.read()
        yield started


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def home_of(producer: Producer) -> str:
    """Return the broker to which replies go."""
    home = producer._requester.home
    assert home is not None
    return home.queue.broker_name


class Asking:
    """Threads that make requests all the time, and know how each has ended."""

    def __init__(self, producer: Producer, topic: str, timeout_s: float, threads: int = 4) -> None:
        self._producer, self._topic, self._timeout_s = producer, topic, timeout_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(threads)]
        self.ends: Counter[str] = Counter()
        self.wrong: list[object] = []
        self.longest_s = 0.0

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self) -> None:
        """Return when requests that are made from now on are answered."""
        enough = self.ends["answered"] + 20
        wait_until(lambda: self.ends["answered"] > enough, TIMEOUT_S, what=f"requests are answered {self.ends}")

    def wait_for_failures(self) -> None:
        """Return when a request has failed that was made before this."""
        before = self.ends.total() - self.ends["answered"]
        wait_until(lambda: self.ends.total() - self.ends["answered"] > before, TIMEOUT_S, what="a request fails")

    def _ask(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            body = b"%d of thread %d" % (count, number)
            began = time.monotonic()
            try:
                reply = self._producer.request(Message(self._topic, body), timeout=self._timeout_s)
                if reply.body != answer_to(body):
                    self.wrong.append((body, reply))
                self.ends["answered"] += 1
            except (DeadlineExceeded, SendFailed, TopicUnavailable, Unavailable) as error:
                self.ends[type(error).__name__] += 1
            except MinimqError as error:
                self.wrong.append(error)
            self.longest_s = max(self.longest_s, time.monotonic() - began)


def test_a_request_whose_service_is_killed_over_it_is_answered_by_another(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    with program("hangs", cluster.nameserver, topic, group) as hanging:
        future = producer.request_async(Message(topic, b"x"), timeout=TIMEOUT_S)
        assert line(hanging) == "has x"
        with program("answers", cluster.nameserver, topic, group):
            hanging.kill()
            assert future.result(TIMEOUT_S).body == answer_to(b"x")


def test_requests_are_answered_while_another_requester_is_killed(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    with service(cluster.nameserver, topic), Asking(producer, topic, TIMEOUT_S) as asking:
        for _ in range(2):
            with program("asks", cluster.nameserver, topic) as other:
                asking.wait_for_answers()
                other.kill()
            asking.wait_for_answers()
    assert not asking.wrong
    assert set(asking.ends) == {"answered"}


def test_five_hundred_requesters_get_their_own_replies(cluster: LocalCluster, topic: str) -> None:
    with Cluster(cluster.nameserver) as shared, ExitStack() as clients:
        clients.enter_context(service(cluster.nameserver, topic, batch_size=100))
        requesters = [clients.enter_context(Producer(shared)) for _ in range(500)]
        for _ in range(3):
            futures = [
                requester.request_async(Message(topic, b"%d" % number), timeout=TIMEOUT_S)
                for number, requester in enumerate(requesters)
            ]
            assert [each.result().body for each in futures] == [answer_to(b"%d" % number) for number in range(500)]
        assert not any(requester._requester.late_replies for requester in requesters)


@pytest.mark.parametrize("fault", ["kill", "pause", "restart"])
def test_requests_are_answered_again_after_the_broker_was_offline(tmp_path: Path, fault: str) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t")
        broker = own.brokers[0]
        with (
            service(own.nameserver, "t", retry_delays_s=(0.1,)),
            Producer(own.nameserver) as asker,
            Asking(asker, "t", timeout_s=3.0) as asking,
        ):
            for _ in range(2):
                asking.wait_for_answers()
                if fault == "kill":
                    broker.kill()
                    asking.wait_for_failures()
                    broker.start()
                elif fault == "restart":
                    broker.restart()
                else:
                    broker.pause()
                    asking.wait_for_failures()
                    broker.resume()
            asking.wait_for_answers()
        assert not asking.wrong


def test_replies_come_over_another_broker_while_that_of_their_queue_is_offline(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t")
        with service(own.nameserver, "t"), Producer(own.nameserver) as asker:
            asker.request(Message("t", b"x"), timeout=TIMEOUT_S)
            home = home_of(asker)
            [broker] = [each for each in own.brokers if each.broker_name == home]
            with Asking(asker, "t", timeout_s=2.0) as asking:
                asking.wait_for_answers()
                broker.kill()
                asking.wait_for_answers()
                assert home_of(asker) != home
                broker.start()
                asking.wait_for_answers()
                broker.pause()
                asking.wait_for_answers()
                broker.resume()
                asking.wait_for_answers()
        assert not asking.wrong


@pytest.mark.timeout(180)
def test_a_request_that_waits_during_a_fail_over_is_answered_through_the_new_master(tmp_path: Path) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def listener(messages: list[ReceivedMessage]) -> Reply:
        is_asked.set()
        may_answer.wait(TIMEOUT_S)
        return Reply(answer_to(messages[0].body))

    with (
        replicas(tmp_path, 2, role="sync-master") as own,
        service(own.nameserver, "t", listener),
        Producer(own.nameserver) as producer,
    ):
        future = producer.request_async(Message("t", b"x"), timeout=2 * TIMEOUT_S)
        assert is_asked.wait(TIMEOUT_S)
        wait_caught_up(own)
        master = wait_for_master(own)
        master.kill()
        may_answer.set()  # before there is another one
        assert future.result(2 * TIMEOUT_S).body == answer_to(b"x")
        assert find_master(own, master) is not None
        master.start()
        wait_in_sync(own, *own.brokers)


@pytest.mark.timeout(180)
def test_requests_are_answered_through_the_new_master_while_the_former_one_hangs(tmp_path: Path) -> None:
    with (
        replicas(tmp_path, 2, role="sync-master") as own,
        service(own.nameserver, "t"),
        Producer(own.nameserver) as asker,
        Asking(asker, "t", timeout_s=3.0) as asking,
    ):
        asking.wait_for_answers()
        wait_caught_up(own)
        master = wait_for_master(own)
        master.pause()
        wait_for_master(own, master)
        asking.wait_for_answers()
        master.resume()
        wait_in_sync(own, *own.brokers)  # it has left out what the new master does not have
        asking.wait_for_answers()
    assert not asking.wrong


@pytest.mark.rounds
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_each_request_ends_as_it_may_while_all_three_are_killed_and_hang(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with replicas(tmp_path, role="sync-master") as own, ExitStack() as programs:
        running = [programs.enter_context(program("answers", own.nameserver, "t", "g")) for _ in range(2)]
        with Producer(own.nameserver) as asker, Asking(asker, "t", timeout_s=5.0) as asking:

            def kill_service() -> None:
                running.pop(0).kill()
                running.append(programs.enter_context(program("answers", own.nameserver, "t", "g")))

            def kill_requester() -> None:
                with program("asks", own.nameserver, "t") as other:
                    asking.wait_for_answers()
                    other.kill()

            def kill_master() -> None:
                wait_caught_up(own)
                master = wait_for_master(own)
                master.kill()
                wait_for_master(own, master)
                master.start()

            def hang_master() -> None:
                wait_caught_up(own)
                master = wait_for_master(own)
                master.pause()
                wait_for_master(own, master)
                master.resume()

            faults: list[Callable[[], None]] = [kill_service, kill_requester, kill_master, hang_master]
            for _ in range(ROUNDS):
                chance.shuffle(faults)
                for fault in faults:
                    asking.wait_for_answers()
                    print(fault.__name__, asking.ends)
                    fault()
            asking.wait_for_answers()
        assert not asking.wrong
        wait_in_sync(own, *own.brokers)
