"""One producer, and a consumer group of two members."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from rich.progress import Progress

from minimq import Admin, Message, MessageQueue, Producer, PullConsumer, SendReceipt

#: The ids of messages by queue, in their order there.
IdsByQueue = dict[MessageQueue, list[str]]

MEMBERS = 2
_GIVE_UP_S = 120.0


def produce(nameserver: str, messages: Iterable[Message], total: int, progress: Progress) -> list[SendReceipt]:
    """Send messages with a progress bar. Returns when all of them are on disk."""
    with Producer(nameserver) as producer:
        return producer.send_many(progress.track(messages, total=total, description="sending"))


def ids_by_queue(receipts: Iterable[SendReceipt]) -> IdsByQueue:
    """Return the ids of messages by queue, in the order of sending."""
    ids: defaultdict[MessageQueue, list[str]] = defaultdict(list)
    for receipt in receipts:
        ids[receipt.queue].append(receipt.message_id)
    return dict(ids)


class ConsumerGroup:
    """Members of one group, each in a thread, which read a topic to its end.

    Args:
        nameserver: address of the name server.
        group: name of the group.
        topic: name of the topic.
        queues: number of queues of the topic.
        total: number of messages in the topic.
    """

    def __init__(self, nameserver: str, group: str, topic: str, queues: int, total: int) -> None:
        self._nameserver = nameserver
        self._group = group
        self._topic = topic
        self._share = queues // MEMBERS
        self._total = total
        self._settled = threading.Barrier(MEMBERS)
        self._stop = threading.Event()
        self._lock = threading.Lock()  # protects all below
        self._count = 0
        self._failure: BaseException | None = None
        #: Ids of received messages by queue, in the order of receipt; and the number of messages by member.
        self.received: defaultdict[MessageQueue, list[str]] = defaultdict(list)
        self.taken: list[int] = [0] * MEMBERS
        #: Seconds from the moment when each member had its share of the queues until everything was read.
        self.seconds = 0.0

    def run(self) -> None:
        """Read everything. Raises the first error of a member."""
        threads = [
            threading.Thread(target=self._run_member, args=(number,), name=f"member-{number}")
            for number in range(MEMBERS)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._end()  # on Ctrl-C the members stop as well
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        self._stop.set()
        self._settled.abort()

    def _run_member(self, number: int) -> None:
        try:
            with PullConsumer(self._nameserver, group=self._group) as consumer, suppress(threading.BrokenBarrierError):
                consumer.subscribe(self._topic)
                self._read(number, consumer)
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            self._failure = self._failure or error
            self._end()

    def _read(self, number: int, consumer: PullConsumer) -> None:
        give_up = time.monotonic() + _GIVE_UP_S
        # The first member gets all queues. It polls single messages until the other one has its half.
        while len(consumer.assignment) != self._share and not self._stop.is_set():
            self._take(number, consumer, max_messages=1)
            if time.monotonic() > give_up:
                raise TimeoutError(f"a member has {len(consumer.assignment)} queues instead of {self._share}")
        self._settled.wait(_GIVE_UP_S)
        started = time.monotonic()
        while self._count < self._total and not self._stop.is_set():
            self._take(number, consumer, max_messages=4096)
            if time.monotonic() > give_up:
                raise TimeoutError(f"{self._count} of {self._total} messages came within {_GIVE_UP_S:.0f} s")
        self.seconds = max(self.seconds, time.monotonic() - started)
        self._take(number, consumer, max_messages=4096)  # a further message would be a duplicate

    def _take(self, number: int, consumer: PullConsumer, max_messages: int) -> None:
        messages = consumer.poll(timeout=0.1, max_messages=max_messages)
        if messages:
            ids = [message.message_id for message in messages]
            with self._lock:
                self.received[messages[0].queue] += ids
                self.taken[number] += len(ids)
                self._count += len(ids)


def differences(sent: IdsByQueue, received: IdsByQueue) -> list[str]:
    """Return the mistakes in the received messages: lost, duplicated or out of the queue's order."""
    found = []
    for queue in sorted(sent.keys() | received.keys()):
        wanted, got = sent.get(queue, []), received.get(queue, [])
        if got == wanted:
            continue
        lost, doubled = len(set(wanted) - set(got)), len(got) - len(set(got))
        found.append(f"queue {queue}: {lost} lost, {doubled} twice" if lost or doubled else f"queue {queue}: order")
    return found


def uncommitted(admin: Admin, group: str, topic: str) -> int:
    committed = admin.committed_offsets(group, topic)
    queues = admin.describe_topic(topic).queues
    return sum(queue.max_offset - committed.get(queue.queue, queue.min_offset) for queue in queues)
