"""Work on many things on an event loop: a part at a time, and between two parts it is the turn of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: Things that are worked on in one go: in one to two milliseconds, where each takes some microseconds.
SLICE = 250


async def slices(items: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield items in parts, and let other tasks of the event loop run in between."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
