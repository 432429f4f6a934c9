"""Services that answer requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minimq import PushConsumer, ReceivedMessage, Reply
from minimq.features.listeners.push_consumer import Mode

_numbers = itertools.count(1)


def answer_to(body: bytes) -> bytes:
    return b"re: " + body


def echo(messages: list[ReceivedMessage]) -> list[Reply]:
    return [Reply(answer_to(message.body)) for message in messages]


@contextmanager
def service(
    nameserver: Any,
    topic: str,
    listener: Callable[[list[ReceivedMessage]], Any] = echo,
    *,
    mode: Mode = "work_queue",
    group: str = "",
    **options: Any,
) -> Iterator[PushConsumer]:
    """Answer what is asked in a topic by a listener."""
    name = group or f"service-{next(_numbers)}-{topic}"[:100]
    with PushConsumer(nameserver, group=name, mode=mode, **options) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        yield consumer
