"""Rows of a state that another replica has sent, with right checksums, which are no rows of a state."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from minimq_broker.log.checkpoint import Checkpoint, position_of
from minimq_broker.log.sealed_rows import seal
from minimq_common.errors import StoreError

POSITION = b"\0position"


def row(key: bytes, value: object) -> tuple[bytes, bytes]:
    return key, seal(key, msgspec.msgpack.encode(value))


@pytest.mark.parametrize("value", ["t", -1, [1], None, (1 << 62) + 1, (1 << 64) - 1])
def test_a_position_that_is_none(tmp_path: Path, value: object) -> None:
    file = Checkpoint(tmp_path / "state.mdb")
    file.restore([row(POSITION, value)])

    with pytest.raises(StoreError, match="the log position of the state is invalid"):
        position_of([row(POSITION, value)])
    with pytest.raises(StoreError, match=r"state\.mdb: the log position of the state is invalid"):
        file.load()
    file.close()
