"""A program that answers requests, or asks, or hangs over a request, until it is killed.

answers|asks|hangs NAMESERVER TOPIC [GROUP]
"""

from __future__ import annotations

import sys
import threading

from minimq import Message, Producer, ReceivedMessage, Reply
from minimq.errors import DeadlineExceeded
from support.replying import answer_to, echo, service


def ask_forever(nameserver: str, topic: str) -> None:
    with Producer(nameserver) as producer:
        print("asks", flush=True)
        for number in range(1 << 30):
            body = b"%d of a program" % number
            try:
                assert producer.request(Message(topic, body), timeout=5).body == answer_to(body)
            except DeadlineExceeded:
                continue


def hang(messages: list[ReceivedMessage]) -> Reply:
    print("has", messages[0].body.decode(), flush=True)
    threading.Event().wait()
    raise AssertionError


if __name__ == "__main__":
    what, nameserver, topic, *groups = sys.argv[1:]
    if what == "asks":
        ask_forever(nameserver, topic)
    else:
        listener = echo if what == "answers" else hang
        with service(nameserver, topic, listener, group=groups[0], invisible_s=2.0, retry_delays_s=(0.1,)):
            print(what, flush=True)
            threading.Event().wait()
