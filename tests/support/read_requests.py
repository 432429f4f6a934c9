"""Notes the requests that the servers of this process read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minimq_common.wire import dispatcher


@contextmanager
def read_requests() -> Iterator[list[int]]:
    """Give the sizes of the requests that are read of the methods which are added in the block."""
    sizes: list[int] = []
    made = dispatcher._decoder

    def noting(decode: Callable[[bytes], Any], most: int) -> Callable[[bytes], Any]:
        decoder = made(decode, most)

        def note(data: bytes) -> Any:
            sizes.append(len(data))
            return decoder(data)

        return note

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "_decoder", noting)
        yield sizes
