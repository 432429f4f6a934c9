"""Delayed messages that are sent and recalled whatever happens to the servers, and a check of what becomes of them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from minimq import LocalCluster, Message, MinimqError, Producer, RecallResult, SendReceipt
from support.reading import read_all
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: The longest delay, in seconds.
MAX_S = 3.0


class DelayWorld:
    """Sends numbered messages with random delays to the topic "t", and recalls some of them, in threads.

    Args:
        cluster: whose brokers are disturbed meanwhile.
        chance: decides about delays and recalls.
    """

    def __init__(self, cluster: LocalCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._seeds = [chance.random() for _ in range(3)]
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._numbers = 0
        self.attempted: set[bytes] = set()
        self.receipts: dict[bytes, SendReceipt] = {}
        #: Results of recalls that were answered; None for one that may have happened or not.
        self.recalls: dict[bytes, RecallResult | None] = {}
        self.failures: list[MinimqError] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed), bulk), name=f"delays-{bulk}")
            for seed, bulk in zip(self._seeds, (1, 8, 200), strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def wait_for_more(self, count: int = 50) -> None:
        """Return once so many more messages are acknowledged."""
        enough = len(self.receipts) + count
        wait_until(lambda: len(self.receipts) >= enough, TIMEOUT_S, what=f"sends; {self.failures[-1:]}")

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    def check(self) -> None:
        """Wait until everything is due, and compare what is in the queues with what was acknowledged and recalled."""
        outcomes = {body: self.recalls.get(body, RecallResult.TOO_LATE) for body in self.receipts}
        expected = {body for body, outcome in outcomes.items() if outcome is RecallResult.TOO_LATE}
        recalled = {body for body, outcome in outcomes.items() if outcome}
        assert expected
        assert recalled

        def arrived() -> bool:
            return expected <= {message.body for message in read_all(self._cluster.nameserver, "t")}

        wait_until(arrived, TIMEOUT_S, what="all that is due")
        with Producer(self._cluster.nameserver, send_timeout_s=20) as producer:  # what is due later comes later
            last = [producer.send(Message("t", b"last", deliver_after_s=MAX_S)) for _ in self._cluster.brokers]
        wait_until(
            lambda: Counter(each.body for each in read_all(self._cluster.nameserver, "t"))[b"last"] >= len(last),
            TIMEOUT_S,
        )
        messages = [message for message in read_all(self._cluster.nameserver, "t") if message.body != b"last"]
        found = Counter(message.body for message in messages)
        print(f"{len(self.receipts)} stored, {len(recalled)} recalled, {len(found)} delivered")
        assert not expected - found.keys(), "what was acknowledged and not recalled is delivered"
        assert not [body for body, times in found.items() if times > 1], "each is delivered once"
        assert not recalled & found.keys(), "what was recalled is never delivered"
        assert found.keys() <= self.attempted
        early = []
        for message in messages:
            receipt = self.receipts.get(message.body)
            if receipt is not None and receipt.due_at is not None and message.stored_at < receipt.due_at:
                early.append((message, receipt))
        assert not early, "nothing is early by the clock of the broker"

    # ---- threads --------------------------------------------------------------------------------

    def _run(self, chance: random.Random, bulk: int) -> None:
        with Producer(self._cluster.nameserver, send_timeout_s=20.0) as producer:
            while not self._stop.is_set():
                messages = [self._message(chance) for _ in range(bulk)]
                futures = [(message, producer.send_async(message)) for message in messages]
                for message, future in futures:
                    try:
                        self.receipts[message.body] = future.result(TIMEOUT_S)
                    except MinimqError as error:
                        self.failures.append(error)
                chosen = [message for message in messages if message.recallable and chance.random() < 0.5]
                time.sleep(chance.choice((0.0, 0.01, 0.5)))
                for message in chosen[:20]:
                    self._recall(producer, message.body)

    def _message(self, chance: random.Random) -> Message:
        with self._lock:
            self._numbers += 1
            body = b"%d" % self._numbers
        self.attempted.add(body)
        delay_s = chance.choice((0.5, 1.0, chance.uniform(0.0, MAX_S)))
        return Message("t", body, deliver_after_s=delay_s, recallable=chance.random() < 0.3)

    def _recall(self, producer: Producer, body: bytes) -> None:
        receipt = self.receipts.get(body)
        if receipt is None:
            return
        assert receipt.recall_handle is not None
        self.recalls[body] = None
        try:
            self.recalls[body] = producer.recall(receipt.recall_handle)
        except MinimqError as error:
            self.failures.append(error)
