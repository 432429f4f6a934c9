"""A program whose listener holds the GIL, so that its whole process stands still.

    python gil_holder.py NAMESERVER GROUP TOPICS LOG FD OPTIONS

It appends "began BODY TRIES" to the file for each message. With a body that begins with "hold", the listener reads one
byte from FD, appends "holds BODY", and reads a second byte while it holds the GIL. The program closes its consumer when
the standard input ends. TOPICS are separated by commas; OPTIONS are those of `PushConsumer`, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from pathlib import Path

from minimq import ConsumeResult, PushConsumer, ReceivedMessage

#: Unlike `os.read`, keeps the GIL.
_read_with_gil = ctypes.PyDLL(None).read


def main(nameserver: str, group: str, topics: str, log: str, fd: str, options: str) -> None:
    logging.basicConfig(level=logging.WARNING)

    def append(line: str) -> None:
        with Path(log).open("a") as file:
            file.write(line + "\n")

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        for message in messages:
            body = message.body.decode()
            append(f"began {body} {message.reconsume_times + 1}")
            if body.startswith("hold"):
                os.read(int(fd), 1)
                append(f"holds {body}")
                _read_with_gil(int(fd), ctypes.create_string_buffer(1), 1)
        return ConsumeResult.SUCCESS

    with PushConsumer(nameserver, group=group, batch_size=1, threads=2, **json.loads(options)) as consumer:
        for topic in topics.split(","):
            consumer.subscribe(topic)
        consumer.start(listen)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
