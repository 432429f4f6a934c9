"""A program whose listener is killed by some messages.

    python mortal_listener.py NAMESERVER TOPIC LOG OPTIONS

Appends the body of each message to a file. A body that begins with "poison" kills the process; one that begins with
"slow" is being processed until the standard input ends, at which the program closes its consumer. OPTIONS are those of
`PushConsumer`, as JSON; with "aio" the listener is a coroutine function.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from minimq import ConsumeResult, PushConsumer, ReceivedMessage, WorkQueueConsumer, aio

_ended = threading.Event()


def _listen(log: Path, messages: list[ReceivedMessage]) -> ConsumeResult:
    with log.open("ab", buffering=0) as file:
        for message in messages:
            file.write(b"%s %d\n" % (message.body, message.delivery_count - 1))
    for message in messages:
        if message.body.startswith(b"poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        if message.body.startswith(b"slow"):
            _ended.wait()
    return ConsumeResult.SUCCESS


def _wait_for_end() -> None:
    sys.stdin.read()
    _ended.set()


async def _listen_on_loop(nameserver: str, topic: str, log: Path, options: dict[str, Any]) -> None:
    async def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        return _listen(log, messages)

    async with aio.PushConsumer(nameserver, group=topic, **options) as consumer:
        consumer.subscribe(topic)
        await consumer.start(listener)
        await asyncio.to_thread(_ended.wait)


def _receive(nameserver: str, topic: str, log: Path, options: dict[str, Any]) -> None:
    """Receive in several threads, each of which acknowledges what it has before it receives more."""
    with WorkQueueConsumer(nameserver, group=topic, **options) as consumer:
        consumer.subscribe(topic)

        def receive() -> None:
            while not _ended.is_set():
                messages = consumer.receive(4, timeout=0.2)
                _listen(log, [*messages])
                consumer.ack(messages)

        threads = [threading.Thread(target=receive) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main(nameserver: str, topic: str, log: str, text: str) -> None:
    options = json.loads(text)
    threading.Thread(target=_wait_for_end, daemon=True).start()
    if options.pop("simple", False):
        _receive(nameserver, topic, Path(log), options)
    elif options.pop("aio", False):
        asyncio.run(_listen_on_loop(nameserver, topic, Path(log), options))
    else:
        with PushConsumer(nameserver, group=topic, **options) as consumer:
            consumer.subscribe(topic)
            consumer.start(lambda messages: _listen(Path(log), messages))
            _ended.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
