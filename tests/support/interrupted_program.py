"""A program that sends, and then polls, while Ctrl-C comes again and again, and continues each time.

    python interrupted_program.py NAMESERVER TOPIC GROUP INTERRUPTS SEED

Prints the numbers of the messages whose sends have returned, the numbers that polls have returned, how many sends and
polls were interrupted, and what the producer still holds after a flush.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any

from minimq import Message, Producer, PullConsumer, ReceivedMessage, SendReceipt

#: Seconds between two signals, at most: about as long as a `send`, and as a `poll` that finds a message.
_SEND_S, _POLL_S = 0.002, 0.0003


class Interrupts:
    """Raises KeyboardInterrupt at a random moment of a call, at most once in each."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._may_interrupt = False
        self.count = 0
        signal.signal(signal.SIGALRM, self._interrupt)

    def during(self, call: Callable[[], object], max_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, max_s))
        try:
            self._may_interrupt = True
            call()
            self._may_interrupt = False
        except KeyboardInterrupt:
            self.count += 1

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._may_interrupt:
            self._may_interrupt = False
            raise KeyboardInterrupt


def send_all(nameserver: str, topic: str, wanted: int, interrupts: Interrupts, chance: random.Random) -> dict[str, Any]:
    sent: list[int] = []
    futures: list[tuple[int, Future[SendReceipt]]] = []
    number = 0
    with Producer(nameserver, send_timeout_s=60.0) as producer:

        def send() -> None:
            producer.send(Message(topic, b"%d" % number))
            sent.append(number)

        def send_async() -> None:
            futures.append((number, producer.send_async(Message(topic, b"%d" % number))))

        def send_many() -> None:
            numbers = range(number - 19, number + 1)
            producer.send_many([Message(topic, b"%d" % each) for each in numbers])
            sent.extend(numbers)

        while interrupts.count < wanted:
            call = chance.choice((send, send_async, send_many))
            number += 20 if call is send_many else 1
            interrupts.during(call, _SEND_S)
        producer.flush(30)
        held = producer.statistics()
        for each, future in futures:
            future.result(60)
            sent.append(each)
    return {"sent": sent, "interrupted_sends": interrupts.count, "held": [held.buffered_messages, held.buffered_bytes]}


def poll_all(nameserver: str, topic: str, group: str, wanted: int, interrupts: Interrupts) -> dict[str, Any]:
    read: list[int] = []
    with PullConsumer(nameserver, group=group, commit_interval_s=0.01) as consumer:
        consumer.subscribe(topic)

        found: list[ReceivedMessage] = []

        def poll() -> None:
            nonlocal found
            found = consumer.poll(0.05, max_messages=2)

        while not found:
            poll()
        while interrupts.count < wanted:
            read.extend(int(message.body) for message in found)  # not in `poll`: there, this would be interrupted, too
            found = []
            interrupts.during(poll, _POLL_S)
        read.extend(int(message.body) for message in found)
        while found := consumer.poll(2.0):
            read.extend(int(message.body) for message in found)
    return {"read": read, "interrupted_polls": interrupts.count}


def main(nameserver: str, topic: str, group: str, *numbers: str) -> None:
    wanted, seed = map(int, numbers)
    chance = random.Random(seed)
    faulthandler.dump_traceback_later(100, exit=True)
    report = send_all(nameserver, topic, wanted, Interrupts(chance), chance)
    print(json.dumps(report | poll_all(nameserver, topic, group, wanted, Interrupts(chance))))


main(*sys.argv[1:])
