"""A program that reads a group while Ctrl-C comes again and again, and goes on each time.

    python interrupted_consumer.py NAMESERVER TOPIC GROUP MESSAGES INTERRUPTS SEED

Prints the numbers of the messages, as polls that returned have returned them, and how often a poll was interrupted.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
from types import FrameType

from minimq import PullConsumer

#: Seconds of real time between two signals, at most: about as long as a poll takes that finds a message.
_MAX_S = 0.0003


def main(nameserver: str, topic: str, group: str, *numbers: str) -> None:
    messages, interrupts, seed = map(int, numbers)
    chance = random.Random(seed)
    is_polling = False
    left = interrupts
    interrupted = 0
    read: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal left
        if left:
            left -= 1
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, _MAX_S))
        if is_polling:
            raise KeyboardInterrupt

    faulthandler.dump_traceback_later(60, exit=True)
    signal.signal(signal.SIGALRM, interrupt)
    consumer = PullConsumer(nameserver, group=group, commit_interval_s=0.01)
    consumer.subscribe(topic)
    while not read:
        read += [int(message.body) for message in consumer.poll(max_messages=1)]
    signal.setitimer(signal.ITIMER_REAL, _MAX_S)
    while len(set(read)) < messages or left:
        try:
            is_polling = True
            found = consumer.poll(0.05, max_messages=2)
            is_polling = False
        except KeyboardInterrupt:
            is_polling = False
            interrupted += 1
            continue
        read += [int(message.body) for message in found]
    consumer.close()
    print(json.dumps({"read": read, "interrupted": interrupted}))


main(*sys.argv[1:])
