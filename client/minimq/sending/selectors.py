"""Selectors: functions that choose the queue of a message.

A selector gets all queues of the topic (at least one, sorted in the same order in every producer) and the message, and
returns one of the queues.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import mul

from minimq.arguments import check_text
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue

#: 31 to the power of 0, 1, 2, ... in 32 bits.
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(256))
#: Longer keys are rare; caching them would cost memory.
_MAX_CACHED_LENGTH = 64
_NATIVE_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

#: Chooses the queue of a message.
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: a signed 32-bit hash of the UTF-16 code units. Thread-safe."""
    return _cached_hash(text) if len(text) <= _MAX_CACHED_LENGTH else _hash(text)


def consistent_hash(key: str, buckets: int) -> int:
    """Return a bucket, from 0 on, for a key: Guava's `consistentHash` of the key's `java_hash`."""
    if buckets < 1:
        raise InvalidArgument(f"{buckets} buckets: there must be at least one")
    return _jump(java_hash(key), buckets)


def _hash(text: str) -> int:
    units: bytes | memoryview
    try:
        units = text.encode("latin-1")  # one byte per unit: fastest to iterate
    except UnicodeEncodeError:
        units = memoryview(text.encode(_NATIVE_UTF16, "surrogatepass")).cast("H")
    total = 0
    step = len(_POWERS) - 1
    for start in range(0, len(units), step):
        block = units[start : start + step]
        total = total * _POWERS[len(block)] + sum(map(mul, block[::-1], _POWERS))
    total &= 0xFFFF_FFFF
    return total - ((total & 0x8000_0000) << 1)


@functools.lru_cache(maxsize=16_384)
def _cached_hash(text: str) -> int:
    return _hash(text)


@functools.lru_cache(maxsize=16_384)
def _jump(hashed: int, buckets: int) -> int:
    state = hashed  # the sign is extended to 64 bits, as in Java's conversion from int to long
    bucket = following = 0
    while following < buckets:
        bucket = following
        state = (2_862_933_555_777_941_757 * state + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((bucket + 1) / (((state >> 33) + 1) / 0x8000_0000))
    return bucket


def by_hash(key: str | None = None) -> Selector:
    """Return a selector that sends all messages of one key to one queue, the same one as RocketMQ's clients.

    When the number of queues changes, nearly every key moves to another queue: see `by_consistent_hash`.

    Args:
        key: the key of all messages. By default, the first key of each message; one without keys raises
            `InvalidArgument`.

    Returns:
        A selector. Thread-safe.
    """
    if key is None:
        return lambda queues, message: queues[abs(java_hash(_first_key(message))) % len(queues)]
    check_text("key", key)
    # Java takes the remainder before the absolute value, as its smallest integer has none; the result is the same.
    number = abs(java_hash(key))
    return lambda queues, message: queues[number % len(queues)]


def by_consistent_hash(key: str | None = None) -> Selector:
    """Return a selector that sends all messages of one key to one queue, and moves few keys when the topic grows.

    When each broker gets more queues, only keys that go to the new queues move: queues are numbered across brokers,
    first queue 0 of each broker, then queue 1 of each. An additional broker still moves many keys.

    Args:
        key: as for `by_hash`.

    Returns:
        A selector. Thread-safe.
    """
    across = _AcrossBrokers()
    if key is None:
        return lambda queues, message: across.of(queues)[consistent_hash(_first_key(message), len(queues))]
    check_text("key", key)
    return lambda queues, message: across.of(queues)[consistent_hash(key, len(queues))]


def by_random() -> Selector:
    """Return a selector that sends each message to a random queue. Thread-safe."""
    return lambda queues, message: queues[int(random.random() * len(queues))]


def _first_key(message: Message) -> str:
    if not message.keys:
        raise InvalidArgument("the message has no key by which its queue could be chosen: give it one in `keys`")
    return message.keys[0]


def across_brokers(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Return queues in the order of `by_consistent_hash`: first queue 0 of each broker, then queue 1 of each."""
    return sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))


class _AcrossBrokers:
    """Sorts queues by number, then by broker; caches the result for the latest tuple. Thread-safe."""

    def __init__(self) -> None:
        self._latest: tuple[Sequence[MessageQueue], list[MessageQueue]] | None = None

    def of(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        latest = self._latest
        if latest is not None and latest[0] is queues:
            return latest[1]
        ordered = across_brokers(queues)
        if isinstance(queues, tuple):  # other sequences are mutable: identity proves nothing
            self._latest = queues, ordered
        return ordered
