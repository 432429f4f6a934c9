"""A broker with small segments, whose files come and go quickly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq.admin.descriptions import BrokerReport
from support.reading import check_brokers
from support.waiting import wait_until

TIMEOUT_S = 30.0
SEGMENT = 1 << 16
QUEUE = MessageQueue("t", "broker-a", 0)
OTHER = MessageQueue("t", "broker-a", 1)
#: A segment has ten of these at most.
BODY = bytes(8000)


class World:
    """One broker with small segments, topic "t" of two queues, and what looks at them."""

    def __init__(self, cluster: LocalCluster, admin: Admin, producer: Producer) -> None:
        self.cluster = cluster
        self.admin = admin
        self.producer = producer

    @property
    def nameserver(self) -> str:
        return self.cluster.nameserver

    def send(self, count: int, queue: MessageQueue = QUEUE) -> list[int]:
        """Send messages one by one, so that each is a batch; return their offsets."""
        return [self.producer.send(Message("t", BODY), queue=queue).queue_offset for _ in range(count)]

    def bounds(self, queue: MessageQueue = QUEUE) -> tuple[int, int]:
        [found] = [item for item in self.admin.describe_topic("t").queues if item.queue == queue]
        return found.min_offset, found.max_offset

    def report(self) -> BrokerReport:
        [status] = self.admin.broker_status()
        assert status.report is not None, status.error
        return status.report

    def files(self) -> list[Path]:
        return sorted((self.cluster.brokers[0].data_dir / "commitlog").glob("*.mdb*"))

    def wait_until_empty(self, end: int, queue: MessageQueue = QUEUE) -> None:
        wait_until(lambda: self.bounds(queue) == (end, end), TIMEOUT_S, what=f"{queue} is empty at {end}")

    def wait_until_trimmed(self) -> None:
        """Return when retention by size has nothing more to do."""

        def is_so() -> bool:
            report = self.report()
            files = sum(path.suffix == ".mdb" for path in self.files())
            return report.disk_bytes <= 300_000 and report.segments == files  # a file goes a moment before its segment

        wait_until(is_so, TIMEOUT_S, what="300,000 bytes are left")

    def restart(self) -> None:
        [broker] = self.cluster.brokers
        broker.kill()
        broker.start()


@contextmanager
def world_of(path: Path, **options: object) -> Iterator[World]:
    shrunk = {"segment_bytes": SEGMENT, "upkeep_interval_s": 0.05}
    with ExitStack() as opened:
        cluster = opened.enter_context(LocalCluster(brokers=1, data_dir=path, broker_options={**shrunk, **options}))
        admin = opened.enter_context(Admin(cluster.nameserver))
        admin.create_topic("t", queues=2)
        yield World(cluster, admin, opened.enter_context(Producer(cluster.nameserver)))
    check_brokers(cluster)
