"""Another number of queues while producers and consumers run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MinimqError, Producer, PullConsumer
from minimq_common.errors import InvalidArgument, NotDrained, TopicNotFound
from support.command import Minimq
from support.members import Log, Member
from support.reading import check_brokers
from support.waiting import wait_until

pytestmark = pytest.mark.system

TIMEOUT_S = 60.0
REMEDY = "--ignore-group leaves a dead group out, --force hides the messages all the same"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, nameservers=2, data_dir=tmp_path_factory.mktemp("resize")) as own:
        yield own
    check_brokers(own)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster in which brokers are killed."""
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        yield cluster
    check_brokers(cluster)


def counts(admin: Admin, topic: str) -> dict[str, tuple[int, int]]:
    """Return (read, write) queues by broker, as the brokers have them."""
    return {item.broker_name: (item.read_queues, item.write_queues) for item in admin.describe_topic(topic).settings}


def fill(nameserver: str, topic: str, broker: str, *queue_ids: int, messages: int = 3) -> None:
    """Send some messages to each of these queues."""
    with Producer(nameserver) as producer:
        for queue_id in queue_ids:
            for number in range(messages):
                producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, broker, queue_id))


def commit(nameserver: str, group: str, topic: str, broker: str, *queue_ids: int, messages: int = 3) -> None:
    """Read that many messages of each of these queues as a group, and commit."""
    queues = [MessageQueue(topic, broker, queue_id) for queue_id in queue_ids]
    with PullConsumer(nameserver, group=group, auto_commit=False) as consumer:
        consumer.assign(queues)
        consumer.commit(dict.fromkeys(queues, messages))


class Sender:
    """Sends messages, one after the other, until the end of its block."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self.sent: set[tuple[MessageQueue, int]] = set()
        self.errors: list[MinimqError] = []
        self._producer = Producer(nameserver)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender")

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(TIMEOUT_S)
            self._producer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                receipt = self._producer.send(Message(self._topic, b"x"))
                self.sent.add((receipt.queue, receipt.queue_offset))
            except MinimqError as error:
                self.errors.append(error)

    def queues(self) -> set[MessageQueue]:
        return {queue for queue, _ in self.sent.copy()}


# ---- While everything runs ----------------------------------------------------------------------


def test_growing_and_shrinking_leaves_no_message_unread(shared: LocalCluster) -> None:
    topic, log = "running", Log()
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 2)
        sender = Sender(shared.nameserver, topic)
        with Member(shared.nameserver, "g", topic, log), sender.running():
            wait_until(lambda: len(sender.queues()) == 4, TIMEOUT_S)
            admin.update_topic(topic, queues=5)
            assert counts(admin, topic) == {"broker-a": (5, 5), "broker-b": (5, 5)}
            wait_until(lambda: len(sender.queues()) == 10, TIMEOUT_S, what="the producer sends to the new queues")
            wait_until(lambda: not log.missing(sender.sent.copy()), TIMEOUT_S, what="the group reads them")
            admin.update_topic(topic, queues=1)
            assert counts(admin, topic) == {"broker-a": (1, 1), "broker-b": (1, 1)}
            before = len(sender.sent)
            wait_until(lambda: len(sender.sent) > before + 50, TIMEOUT_S, what="sending goes on")
        with Member(shared.nameserver, "g", topic, log):
            wait_until(lambda: not log.missing(sender.sent), TIMEOUT_S, what="every message is read")
    assert sender.errors == []


# ---- Groups that lag ----------------------------------------------------------------------------


def test_a_lagging_group_is_named_and_when_it_has_read_the_repeat_passes(shared: LocalCluster) -> None:
    topic = "lagging"
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 8)
        fill(shared.nameserver, topic, "broker-b", 4, 5, 6, 7)
        fill(shared.nameserver, topic, "broker-b", 0)  # which stays
        commit(shared.nameserver, "audit", topic, "broker-b", 4, 5, 6, 7)
        commit(shared.nameserver, "billing", topic, "broker-b", 4, messages=0)
        said: list[str] = []
        with pytest.raises(NotDrained) as rejected:
            admin.update_topic(topic, queues=4, timeout_s=2.5, progress=said.append)
        text = str(rejected.value)
        assert "after 2.5 s: broker-b: group billing has not read 12 messages of queues 4-7." in text
        assert "Consumers and producers see now: broker-a 4 and 4, broker-b 8 and 4." in text
        assert "--ignore-group" in text
        assert f"go back with `minimq topic update {topic} --queues 8`" in text
        assert said == [
            "letting producers use 4 queues on broker-a, broker-b",
            "hiding queues 4 to 7 on broker-a, broker-b from consumers, once every group has read them",
            f"waiting: broker-b: group billing has not read 12 messages of queues 4-7; {REMEDY}",
        ]
        assert counts(admin, topic) == {"broker-a": (4, 4), "broker-b": (8, 4)}
        commit(shared.nameserver, "billing", topic, "broker-b", 4, 5, 6, 7)
        admin.update_topic(topic, queues=4)
        assert counts(admin, topic) == {"broker-a": (4, 4), "broker-b": (4, 4)}


def test_a_resize_that_waits_goes_on_as_soon_as_the_group_has_read(shared: LocalCluster) -> None:
    topic = "waiting"
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 2)
        fill(shared.nameserver, topic, "broker-a", 1)
        said: list[str] = []
        waiting = threading.Event()

        def progress(sentence: str) -> None:
            said.append(sentence)
            if sentence.startswith("waiting"):
                waiting.set()

        resizing = threading.Thread(target=lambda: admin.update_topic(topic, queues=1, progress=progress))
        resizing.start()
        assert waiting.wait(TIMEOUT_S)
        assert said[-1] == f"waiting: broker-a: no group has read 3 messages of queue 1; {REMEDY}"
        with Member(shared.nameserver, "late", topic, Log(), start="earliest"):
            resizing.join(TIMEOUT_S)
        assert not resizing.is_alive()
        assert counts(admin, topic) == {"broker-a": (1, 1), "broker-b": (1, 1)}


def test_a_shrink_can_be_undone(shared: LocalCluster) -> None:
    topic = "undone"
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 3)
        fill(shared.nameserver, topic, "broker-a", 2)
        with pytest.raises(NotDrained):
            admin.update_topic(topic, queues=1, timeout_s=1.0)
        admin.update_topic(topic, queues=3)
        assert counts(admin, topic) == {"broker-a": (3, 3), "broker-b": (3, 3)}
        fill(shared.nameserver, topic, "broker-b", 2)


def test_a_dead_group_can_be_left_out_and_force_asks_nobody(shared: LocalCluster) -> None:
    topic = "forced"
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 4, brokers=["broker-a"])
        fill(shared.nameserver, topic, "broker-a", 2, 3)
        commit(shared.nameserver, "audit", topic, "broker-a", 2, 3)
        commit(shared.nameserver, "dead", topic, "broker-a", 2, messages=1)
        with pytest.raises(NotDrained, match="group dead has not read 5 messages of queues 2-3"):
            admin.update_topic(topic, read_queues=2, write_queues=2)
        with pytest.raises(NotDrained, match="group dead has not read 5"):
            admin.update_topic(topic, queues=2, timeout_s=1.0, ignore_groups=["audit"])
        admin.update_topic(topic, queues=2, timeout_s=TIMEOUT_S, ignore_groups=["dead"])
        assert counts(admin, topic) == {"broker-a": (2, 2)}
        fill(shared.nameserver, topic, "broker-a", 1)
        with pytest.raises(NotDrained, match="group audit has not read 3 messages of queue 1"):
            admin.update_topic(topic, queues=1, timeout_s=1.0, ignore_groups=["dead"])
        admin.update_topic(topic, queues=1, timeout_s=TIMEOUT_S, force=True)
        assert counts(admin, topic) == {"broker-a": (1, 1)}
        admin.update_topic(topic, queues=4)
        assert admin.describe_topic(topic).messages == 9  # nothing is lost by it


# ---- Each broker by its own counts --------------------------------------------------------------


def test_growing_may_be_a_shrink_on_one_of_the_brokers(shared: LocalCluster) -> None:
    topic = "mixed"
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 2, brokers=["broker-a"])
        admin.create_topic(topic, 6, brokers=["broker-b"])
        fill(shared.nameserver, topic, "broker-b", 5)
        with pytest.raises(NotDrained) as rejected:
            admin.update_topic(topic, queues=4, timeout_s=2.0)
        assert "no group has read 3 messages of queue 5" in str(rejected.value)
        assert f"`minimq topic update {topic} --queues 2 --broker broker-a` and `" in str(rejected.value)
        assert counts(admin, topic) == {"broker-a": (4, 4), "broker-b": (6, 4)}
        admin.update_topic(topic, queues=6, brokers=["broker-b"])
        assert counts(admin, topic) == {"broker-a": (4, 4), "broker-b": (6, 6)}


# ---- Faults -------------------------------------------------------------------------------------


@pytest.mark.fault
def test_a_broker_that_is_killed_between_the_steps_is_waited_for(own: LocalCluster) -> None:
    broker = own.server("broker-b")
    steps = 0

    def kill_once(sentence: str) -> None:
        nonlocal steps
        if sentence.startswith("letting producers use"):
            steps += 1
            if steps == 1:
                broker.kill()
        elif "not reached" in sentence and not broker.running:
            broker.start()

    with Admin(own.nameserver) as admin:
        admin.create_topic("orders", 2)
        admin.update_topic("orders", queues=4, progress=kill_once)
        assert counts(admin, "orders") == {"broker-a": (4, 4), "broker-b": (4, 4)}
        steps = 0
        admin.update_topic("orders", queues=1, progress=kill_once)
        assert counts(admin, "orders") == {"broker-a": (1, 1), "broker-b": (1, 1)}


@pytest.mark.fault
def test_a_resize_that_a_dead_broker_stopped_is_completed_by_repeating_it(own: LocalCluster) -> None:
    broker = own.server("broker-b")

    def kill(sentence: str) -> None:
        if sentence.startswith("letting producers use") and broker.running:
            broker.kill()

    with Admin(own.nameserver) as admin:
        admin.create_topic("orders", 2)
        with pytest.raises(MinimqError, match=r"broker-b: broker .* is not reached.*Repeat the command to continue"):
            admin.update_topic("orders", queues=4, timeout_s=1.0, progress=kill)
        broker.start()
        assert counts(admin, "orders") == {"broker-a": (4, 4), "broker-b": (4, 2)}
        admin.update_topic("orders", queues=4)
        assert counts(admin, "orders") == {"broker-a": (4, 4), "broker-b": (4, 4)}


# ---- Usage --------------------------------------------------------------------------------------


def test_bad_input_is_rejected_before_anything_is_changed(shared: LocalCluster) -> None:
    with Admin(shared.nameserver) as admin:
        admin.create_topic("bad", 2)
        for queues in (0, -1, 1025):
            with pytest.raises(InvalidArgument, match="1 to 1024"):
                admin.update_topic("bad", queues=queues)
        with pytest.raises(InvalidArgument, match="timeout_s is 0"):
            admin.update_topic("bad", queues=3, timeout_s=0)
        with pytest.raises(InvalidArgument, match="illegal group name"):
            admin.update_topic("bad", queues=3, ignore_groups=["a b"])
        with pytest.raises(TopicNotFound, match="on no broker"):
            admin.update_topic("no-such-topic", queues=3)
        assert counts(admin, "bad") == {"broker-a": (2, 2), "broker-b": (2, 2)}


def test_the_command_tells_what_it_does_on_stderr(shared: LocalCluster) -> None:
    minimq = Minimq(shared.nameserver)
    minimq("topic", "create", "command", "--queues", "2", "--broker", "broker-a")
    minimq("topic", "create", "command", "--queues", "3", "--broker", "broker-b")
    with minimq.running("topic", "update", "command", "--queues", "4") as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert out.decode().splitlines() == [
        "topic command changed",
        "  broker-a: 4 write queues, 4 read queues, read-write",
        "  broker-b: 4 write queues, 4 read queues, read-write",
    ]
    assert err.decode().splitlines() == [
        "showing 4 queues to consumers on broker-a, broker-b",
        "letting producers use 4 queues on broker-a, broker-b",
    ]
    fill(shared.nameserver, "command", "broker-a", 3)
    update = ("topic", "update", "command")
    rejection = minimq(*update, "--queues", "2", "--timeout", "1.5", status=1)
    assert "error: topic command does not have 2 queues everywhere after 1.5 s: broker-a: no group has" in rejection
    assert "--force" in minimq(*update, "--read-queues", "2", "--broker", "broker-a", status=1)
    status, asked = minimq.on_terminal(*update, "--queues", "2", answer=b"n\n")
    assert status == 1
    assert "3 stored messages of topic command will be hidden from groups that begin later" in asked
    hide = (*update, "--read-queues", "2", "--broker", "broker-a", "--force", "--permission", "read", "--yes")
    assert "3 stored messages" in minimq.with_stderr(*hide)
    assert "3 stored messages" not in minimq.with_stderr(*hide)
    assert [(row["write_queues"], row["permission"]) for row in minimq.json("route", "command")] == [
        (2, "read"),
        (2, "read-write"),
    ]
    assert "give it alone" in minimq(*update, "--queues", "2", "--read-queues", "3", status=2)
    assert "no broker 'broker-z'" in minimq(*update, "--queues", "2", "--broker", "broker-z", status=2)
    minimq(*update, "--queues", "2", "--timeout", "0", status=2)
