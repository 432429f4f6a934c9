"""A producer under a steady load while a broker is killed or hangs: what its callers notice, and what is stored."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MinimqError, Producer, ReceivedMessage, SendReceipt
from minimq.local.server_process import ServerProcess
from minimq_broker.backup.check import check_directory
from support.chance import SEED, rounds
from support.reading import check_brokers, read_all, read_queue
from support.relay import Relay
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

#: Rounds of killing.
ROUNDS = rounds(2)
TIMEOUT_S = 40.0
STEP_S = 0.01


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers, with a topic of four queues on each."""
    with LocalCluster(brokers=2, data_dir=tmp_path) as made:
        with Admin(made.nameserver) as admin:
            admin.create_topic("t", queues=4)
        yield made
    check_brokers(made)


class Load:
    """Hands in numbered messages when they are due, whatever became of those before, and notes each outcome.

    It runs while the block does, in a thread of its own; the end of the block waits for all outcomes.
    """

    def __init__(self, producer: Producer, per_second: int, choose: Callable[[int], MessageQueue | None]) -> None:
        self.handed_in: list[float] = []  # by number
        self.acknowledged: list[tuple[float, int, SendReceipt]] = []  # when, and which number
        self.errors: list[MinimqError] = []
        self._producer = producer
        self._per_step = max(1, round(per_second * STEP_S))
        self._step_s = self._per_step / per_second
        self._choose = choose
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self._producer.flush(TIMEOUT_S)
        assert kind or len(self.acknowledged) + len(self.errors) == len(self.handed_in)

    def lasts(self, seconds: float) -> None:
        """Wait until the messages of so many more seconds were handed in."""
        wanted = len(self.handed_in) + seconds / self._step_s * self._per_step
        wait_until(lambda: len(self.handed_in) >= wanted, seconds + TIMEOUT_S)

    def acknowledged_by(self, broker: str, since: float) -> bool:
        """Return true if a broker has acknowledged one of the latest messages, handed in after a moment."""
        return any(
            receipt.queue.broker_name == broker and self.handed_in[number] > since
            for _, number, receipt in self.acknowledged[-500:]
        )

    def has_acknowledged(self, count: int) -> bool:
        """Return true if that many messages, from the first one on, are acknowledged."""
        return len({number for _, number, _ in list(self.acknowledged) if number < count}) == count

    def rate_is_back_at(self, since: float) -> float | None:
        """Return when the half second begins in which 95 % of what was handed in is acknowledged; None if never."""
        window, look_again = 0.5, 0.05
        acknowledged = [done for done, _, _ in self.acknowledged]
        while since + window < self.handed_in[-1]:
            handed_in = sum(since <= moment < since + window for moment in self.handed_in)
            if sum(since <= moment < since + window for moment in acknowledged) >= 0.95 * handed_in:
                return since
            since += look_again
        return None

    def _run(self) -> None:
        due = time.perf_counter()
        while not self._stop.is_set():
            for number in range(len(self.handed_in), len(self.handed_in) + self._per_step):
                message = Message("t", b"%d" % number + b" " * 90)
                self.handed_in.append(time.perf_counter())
                self._producer.send_async(message, queue=self._choose(number), callback=partial(self._note, number))
            due += self._step_s
            self._stop.wait(max(0.0, due - time.perf_counter()))

    def _note(self, number: int, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        if receipt is not None:
            self.acknowledged.append((time.perf_counter(), number, receipt))
        elif error is not None:
            self.errors.append(error)


def check_stored(load: Load, stored: list[ReceivedMessage]) -> None:
    """Nothing acknowledged is lost, and no broker has a message twice; both brokers may have it."""
    at = {(message.queue, message.queue_offset): int(message.body) for message in stored}
    lost = [
        number for _, number, receipt in load.acknowledged if at.get((receipt.queue, receipt.queue_offset)) != number
    ]
    assert lost == [], f"{len(lost)} of {len(load.acknowledged)} are not where the receipt says"
    copies = Counter((message.queue.broker_name, int(message.body)) for message in stored)
    twice = sorted(place for place, count in copies.items() if count > 1)
    assert twice == [], f"{len(twice)} of {len(stored)} messages are on their broker more than once"


# ---- brokers that die or hang -------------------------------------------------------------------


def test_a_killed_broker_costs_no_message_and_soon_no_throughput(pair: LocalCluster) -> None:
    victim, _ = pair.brokers
    with Producer(pair.nameserver, send_timeout_s=TIMEOUT_S) as producer, Load(producer, 1_000, lambda _: None) as load:
        load.lasts(1.0)
        killed = time.perf_counter()
        victim.kill()
        # `make bench-faults` tells how soon that is.
        wait_until(lambda: load.rate_is_back_at(killed) is not None, TIMEOUT_S, what="the other broker takes all")
        victim.start()
        started = time.perf_counter()
        wait_until(lambda: load.acknowledged_by(victim.name, started), TIMEOUT_S)
        load.lasts(0.5)
    assert load.errors == []
    check_stored(load, read_all(pair.nameserver, "t"))


@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_what_a_killed_broker_had_stored_without_saying_so_is_not_stored_again(pair: LocalCluster) -> None:
    """Messages that may go nowhere else are sent again when it is back, and some of them it has already."""
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    victim, _ = pair.brokers
    queues = [MessageQueue("t", victim.name, number) for number in range(4)]
    with Producer(pair.nameserver, send_timeout_s=TIMEOUT_S, batch_messages=20) as producer:
        with Load(producer, 2_000, lambda number: queues[number % 4]) as load:
            for _ in range(ROUNDS):
                began = time.perf_counter()
                wait_until(lambda: load.acknowledged and load.acknowledged[-1][0] > began, TIMEOUT_S)  # noqa: B023
                # A random moment, not a wait for something.
                time.sleep(chance.uniform(0.0, 0.4))
                victim.kill()
                victim.start()
        assert load.errors == []
    check_stored(load, read_all(pair.nameserver, "t"))


def test_a_hung_broker_is_soon_left_out_and_taken_in_again(pair: LocalCluster) -> None:
    victim, _ = pair.brokers
    with Producer(pair.nameserver, send_timeout_s=TIMEOUT_S) as producer, Load(producer, 500, lambda _: None) as load:
        load.lasts(0.5)
        paused = time.perf_counter()
        victim.pause()
        wait_until(lambda: load.rate_is_back_at(paused) is not None, TIMEOUT_S, what="the other broker takes all")
        # What waits for the broker that hangs goes to the other one, and what comes later goes there at once.
        load.lasts(1.0)
        handed_in = len(load.handed_in)
        wait_until(lambda: load.has_acknowledged(handed_in), TIMEOUT_S, what="nothing waits for it")
        resumed = time.perf_counter()
        victim.resume()
        wait_until(lambda: load.acknowledged_by(victim.name, resumed), TIMEOUT_S)
    assert load.errors == []
    check_stored(load, read_all(pair.nameserver, "t"))


# ---- answers that get lost ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_a_batch_whose_receipt_got_lost_is_not_stored_again(pair: LocalCluster, tmp_path: Path, fault: str) -> None:
    """The broker has stored it, the producer does not know, and sends it to the same queue again."""
    broker = ServerProcess("broker", "broker-x", tmp_path, flags=lambda *_: flags, settled=lambda: None)
    with Relay(broker.address) as relay, Admin(pair.nameserver) as admin:
        flags = [f"--name={broker.name}", f"--listen={broker.address}", f"--advertise={relay.address}"]
        flags += [f"--data-dir={broker.data_dir}", f"--nameserver={pair.nameserver}"]
        try:
            broker.start()
            wait_until(lambda: broker.name in [known.broker_name for known in admin.cluster()], TIMEOUT_S)
            admin.create_topic("lossy", queues=1)
            queue = MessageQueue("lossy", broker.name, 0)
            with Producer(pair.nameserver, send_timeout_s=TIMEOUT_S) as producer:
                producer.send(Message("lossy", b"0"), queue=queue)
                relay.lose_answers()
                futures = [producer.send_async(Message("lossy", b"%d" % number), queue=queue) for number in (1, 2, 3)]
                wait_until(lambda: len(read_queue(pair.nameserver, queue)) > 1, TIMEOUT_S)
                assert not any(future.done() for future in futures)
                if fault == "kill":
                    broker.kill()
                    broker.start()
                else:
                    relay.cut()
                assert [future.result(TIMEOUT_S).queue_offset for future in futures] == [1, 2, 3]
            bodies = [message.body for message in read_queue(pair.nameserver, queue)]
            assert bodies == [b"0", b"1", b"2", b"3"]
        finally:
            broker.stop()
    assert check_directory(broker.data_dir).findings == []
