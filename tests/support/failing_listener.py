"""A program whose listener fails some messages.

    python failing_listener.py NAMESERVER TOPIC LOG OPTIONS

Appends the body of each message and its delivery count to a file. A body that begins with "once" fails at its first
delivery, one that begins with "bad" always. OPTIONS are those of `PushConsumer`, as JSON. It ends with its standard
input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from minimq import ConsumeResult, PushConsumer, ReceivedMessage, RetryLater


def main(nameserver: str, topic: str, log: str, text: str) -> None:
    def listen(messages: list[ReceivedMessage]) -> ConsumeResult | RetryLater:
        with Path(log).open("ab", buffering=0) as file:
            for message in messages:
                file.write(b"%s %d\n" % (message.body, message.delivery_count))
        return RetryLater(
            indexes=[
                index
                for index, message in enumerate(messages)
                if message.body.startswith(b"bad") or (message.body.startswith(b"once") and message.delivery_count == 1)
            ]
        )

    with PushConsumer(nameserver, group=topic, **json.loads(text)) as consumer:
        consumer.subscribe(topic)
        consumer.start(listen)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
