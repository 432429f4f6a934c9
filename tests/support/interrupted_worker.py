"""A program that takes messages one by one while Ctrl-C comes again and again, and goes on each time.

    python interrupted_worker.py NAMESERVER TOPIC GROUP MESSAGES INTERRUPTS SEED

Prints the numbers of the messages that it received, and how often it was interrupted.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
from types import FrameType

from minimq import WorkQueueConsumer

#: Seconds of real time between two signals, at most: about as long as a take that finds a message.
_MAX_S = 0.002


def main(nameserver: str, topic: str, group: str, *numbers: str) -> None:
    messages, interrupts, seed = map(int, numbers)
    chance = random.Random(seed)
    is_waiting = False
    left = interrupts
    interrupted = 0
    received: set[int] = set()

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal left
        if left:
            left -= 1
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, _MAX_S))
        if is_waiting:
            raise KeyboardInterrupt

    faulthandler.dump_traceback_later(60, exit=True)
    signal.signal(signal.SIGALRM, interrupt)
    consumer = WorkQueueConsumer(nameserver, group=group, invisible_s=1)
    consumer.subscribe(topic)
    consumer.receive(1, timeout=30)
    signal.setitimer(signal.ITIMER_REAL, _MAX_S)
    while len(received) < messages or left:
        try:
            is_waiting = True
            found = consumer.receive(2, timeout=0.05)
            received.update(int(message.body) for message in found)
            if found:
                consumer.ack(found)
            is_waiting = False
        except KeyboardInterrupt:
            is_waiting = False
            interrupted += 1
    while found := consumer.receive(timeout=5):  # longer than what was received when it was interrupted is invisible
        consumer.ack(found)
    consumer.close()
    print(json.dumps({"received": sorted(received), "interrupted": interrupted}))


main(*sys.argv[1:])
