"""Notes the requests that the servers of this process read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minimq_common.large_requests import Decoder


@contextmanager
def read_requests() -> Iterator[list[int]]:
    """Give the sizes of the requests that are read in the block."""
    sizes: list[int] = []
    decode = Decoder.__call__

    def note(self: Decoder, data: bytes) -> Any:  # noqa: ANN401 - of any call
        sizes.append(len(data))
        return decode(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "__call__", note)
        yield sizes
