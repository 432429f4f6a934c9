"""A program that closes a push consumer on Ctrl-C while its listener takes long.

    python interrupted_close.py NAMESERVER TOPIC GROUP queues|messages

Prints "listens" once the listener is called.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from minimq import ConsumeResult, PushConsumer, ReceivedMessage


def main(nameserver: str, topic: str, group: str, mode: Any) -> None:
    forever = threading.Event()

    def listen(_: list[ReceivedMessage]) -> ConsumeResult:
        print("listens", flush=True)
        forever.wait()
        return ConsumeResult.SUCCESS

    with PushConsumer(nameserver, group=group, mode=mode, threads=1, batch_size=1) as consumer:
        consumer.subscribe(topic)
        consumer.start(listen)
        forever.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
