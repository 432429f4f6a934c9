"""Hashes of keys, the same as in Java, so that Java and Python programs choose the same queue for a key."""

from __future__ import annotations

import functools
import sys
from operator import mul

from minimq_common.errors import InvalidArgument

#: 31 to the power of 0, 1, 2, ... in 32 bits.
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(256))
#: Longer keys are rare, and caching them would use memory.
_LONGEST_REMEMBERED = 64
_NATIVE_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def java_hash(text: str) -> int:
    """Return what `String.hashCode` returns in Java: 32 bits with a sign, over the UTF-16 code units. Thread-safe."""
    return _remembered_hash(text) if len(text) <= _LONGEST_REMEMBERED else _hash(text)


def consistent_hash(key: str, buckets: int) -> int:
    """Return a bucket, 0 or above, for a key: Guava's `consistentHash` of the key's `java_hash`."""
    if buckets < 1:
        raise InvalidArgument(f"{buckets} buckets: there must be at least one")
    return _jump(java_hash(key), buckets)


def _hash(text: str) -> int:
    units: bytes | memoryview
    try:
        units = text.encode("latin-1")  # one unit is one byte, which is the fastest to iterate
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
def _remembered_hash(text: str) -> int:
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
