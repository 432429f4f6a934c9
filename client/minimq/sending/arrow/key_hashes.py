"""The hash that spreads keys over queues, for a whole Arrow column; see `key_hash.py` of the client."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from minimq.sending.key_hash import java_hash

#: Longer keys are hashed one by one.
_LONGEST: Final = 64
_THIRTY_ONE: Final = pa.scalar(31, pa.int32())


def key_hashes(keys: pa.Array) -> pa.Array:
    """Return the absolute value of each key's `java_hash` as a 64-bit number, null for null."""
    if pa.types.is_integer(keys.type) or pa.types.is_large_string(keys.type):
        keys = keys.cast(pa.string())
    elif pa.types.is_large_binary(keys.type):
        keys = keys.cast(pa.binary())
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary
    return pc.abs(_hashes(distinct).cast(pa.int64())).take(encoded.indices)


def _hashes(keys: pa.Array) -> pa.Array:
    if len(keys) == 0:
        return pa.array([], pa.int32())
    is_text = pa.types.is_string(keys.type)
    lengths = pc.binary_length(keys).cast(pa.int32())
    longest = pc.max(lengths).as_py()
    if longest > _LONGEST or (is_text and not pc.all(pc.string_is_ascii(keys)).as_py()):
        return pa.array(
            [java_hash(key if isinstance(key, str) else key.decode("latin-1")) for key in keys.to_pylist()], pa.int32()
        )
    # All keys at once, place by place. Arrow's numbers overflow as Java's do.
    starts = pa.Array.from_buffers(pa.int32(), len(keys), [None, keys.buffers()[1]], offset=keys.offset)
    content = keys.buffers()[2]
    hashes = pa.repeat(pa.scalar(0, pa.int32()), len(keys))
    if longest == 0:
        return hashes
    units = pa.Array.from_buffers(pa.uint8(), content.size, [None, content])
    for place in range(longest):
        # Keys that are shorter take any unit, and keep what they have.
        within = pc.greater(lengths, place)
        taken = units.take(pc.if_else(within, pc.add(starts, pa.scalar(place, pa.int32())), 0)).cast(pa.int32())
        hashes = pc.if_else(within, pc.add(pc.multiply(hashes, _THIRTY_ONE), taken), hashes)
    return hashes
