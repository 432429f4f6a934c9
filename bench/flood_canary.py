"""A client that wants little while others flood its broker: `python flood_canary.py NAMESERVER TOPIC`.

It sends a message twenty times a second, and receives it, until a line comes on stdin; then it prints what it saw as
one line of JSON. Times are counted from the moment at which a message was due, so that a broker that stands still for a
second delays all that were due in it.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from minimq import Message, Producer, PullConsumer
from minimq.errors import MiniMQError

RATE = 20
#: How long it waits at the end for messages that were sent, in seconds.
PATIENCE_S = 30.0


def quantile(values: list[float], part: float) -> float:
    """Return a quantile of times in seconds, in ms; 0 when there are none."""
    return round(sorted(values)[min(int(len(values) * part), len(values) - 1)] * 1000, 1) if values else 0.0


class Canary:
    """Sends from one thread and receives on another."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self._nameserver = nameserver
        self._topic = topic
        self._sent_in: list[float] = []
        self._received_in: list[float] = []
        self._sent: set[bytes] = set()
        self._received: set[bytes] = set()
        self._failed = 0
        self._ended = threading.Event()
        self._all_sent = threading.Event()
        self._is_ready = threading.Event()

    def run(self) -> None:
        """Run until a line comes on stdin."""
        receiver = threading.Thread(target=self._receive)
        receiver.start()
        with Producer(self._nameserver) as producer:
            producer.send(Message(self._topic, b"warm"))
            self._is_ready.wait(PATIENCE_S)
            sender = threading.Thread(target=self._send, args=(producer,))
            sender.start()
            print("ready", flush=True)
            sys.stdin.readline()
            self._ended.set()
            sender.join()
            self._all_sent.set()
        receiver.join()
        print(
            json.dumps(
                {
                    "sent": len(self._sent),
                    "failed": self._failed,
                    "lost": len(self._sent - self._received),
                    "send_p50_ms": quantile(self._sent_in, 0.5),
                    "send_p99_ms": quantile(self._sent_in, 0.99),
                    "receive_p50_ms": quantile(self._received_in, 0.5),
                    "receive_p99_ms": quantile(self._received_in, 0.99),
                }
            ),
            flush=True,
        )

    def _send(self, producer: Producer) -> None:
        began, number = time.monotonic(), 0
        while not self._ended.is_set():
            due = began + number / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            number += 1
            body = f"{due}".encode()
            try:
                producer.send(Message(self._topic, body))
            except MiniMQError:
                self._failed += 1
            else:
                self._sent.add(body)
            self._sent_in.append(time.monotonic() - due)

    def _receive(self) -> None:
        with PullConsumer(self._nameserver, group="canary") as consumer:
            consumer.subscribe(self._topic)
            until = float("inf")
            while time.monotonic() < until and not (self._all_sent.is_set() and self._sent <= self._received):
                for message in consumer.poll(timeout=0.2):
                    now = time.monotonic()
                    self._is_ready.set()
                    if message.body != b"warm":
                        self._received.add(message.body)
                        self._received_in.append(now - float(message.body))
                if self._all_sent.is_set():
                    until = min(until, time.monotonic() + PATIENCE_S)


if __name__ == "__main__":
    Canary(*sys.argv[1:]).run()
