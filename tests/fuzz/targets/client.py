"""Decoders of consumers: frames of a broker that may be wrong, and files of offsets."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Final

from fuzz import mutation
from fuzz.target import Target
from fuzz.targets.batches import QUEUE, make_batch, valid_batches
from minimq.consuming.member_state import Grant
from minimq.consuming.pulls import frame_of
from minimq.consuming.queue_decisions import FetchOptions
from minimq.consuming.queue_reader import QueueReader
from minimq.features.broadcasting.broadcasting import LocalOffsets
from minimq_common.batch.header import HEADER
from minimq_common.errors import CorruptBatch, InvalidArgument, StoreError
from minimq_proto.v1 import broker_pb2
from support.handing import has_any, take

_START: Final = 1000


def _number(rng: Random) -> int:
    return min(mutation.number(rng), (1 << 62))


def _make_frames(rng: Random) -> list[broker_pb2.PullFrame]:
    """Return frames that follow each other, mostly."""
    frames, offset = [], _START
    for _ in range(rng.randint(1, 4)):
        frame = broker_pb2.PullFrame(max_offset=offset)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            data = rng.choice(valid_batches()) if rng.random() < 0.8 else make_batch(rng)
            count = HEADER.unpack_from(data)[3] if len(data) >= HEADER.size else 1
            if rng.random() < 0.1:
                count = rng.choice((0, 1, count + 1, _number(rng) & 0xFFFFFFFF))
            base = offset if rng.random() < 0.9 else rng.choice((0, offset - 1, offset + 7, _number(rng)))
            frame.batches.add(base_offset=base, count=count, batch=data, store_timestamp_ms=_number(rng))
            offset = min(max(base + count, 0), 1 << 62)
        frame.next_offset = offset if rng.random() < 0.9 else _number(rng)
        frames.append(frame)
    return frames


def _fetch(frames: Sequence[broker_pb2.PullFrame]) -> None:
    """Take frames in as a consumer does: what is handed out never goes back."""
    reader = QueueReader(QUEUE, Grant(0, _START, 0), FetchOptions(1 << 40, 1 << 40))
    reader.tick(0.0)
    last = _START - 1
    for frame in frames:
        reader.frame_arrived(1, frame_of(frame), 0.0)
        for _ in range(10):
            if not has_any(reader, 0.0):
                break
            taken = take(reader, 7, 0.0)
            assert len(taken) <= 7
            for message in taken:
                assert message.queue_offset > last, "a message is handed out twice"
                last = message.queue_offset


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


_OFFSETS: Final = (
    '{"version": 1, "offsets": [{"topic": "t", "broker": "a", "queue": 0, "offset": 7, "topic_id": 1, "term": 2}]}',
    '{"version": 1, "offsets": [{"topic": "t", "broker": "a", "queue": 0, "offset": 7}, {"topic": "u"}]}',
)


def _make_file(rng: Random) -> bytes:
    if rng.random() < 0.5:
        return mutation.text(rng, _OFFSETS).encode(errors="surrogatepass")
    value = json.loads(_OFFSETS[0])
    value["offsets"][0][rng.choice(("queue", "offset", "topic_id", "term", "topic"))] = rng.choice(
        (None, "", "x", "1", 1.5, 1e400, -1, 1 << 70, [], {}, True)
    )
    return json.dumps(value).encode()


def _open_offsets(content: bytes) -> None:
    path = Path(_folder().name) / "g" / "c.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    offsets = LocalOffsets(_folder().name, "g", "c")
    try:
        offsets.get(QUEUE, 1)
        offsets.knows("t")
        offsets.knows_former(QUEUE, 1)
    finally:
        offsets.close()


TARGETS = (
    Target("client.queue-reader", _make_frames, _fetch, (CorruptBatch, InvalidArgument)),
    Target("client.local-offsets", _make_file, _open_offsets, (StoreError,), 0.2),
)
