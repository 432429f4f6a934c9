"""Large answers on their way to clients: bounded in all."""

from __future__ import annotations

import asyncio

from minimq_common.errors import SystemBusy
from minimq_nameserver.bounds import MAX_UNTAKEN_BYTES

#: Smaller answers are not counted.
_LARGE_BYTES = 64 << 10
#: Seconds after which a client that was refused is to ask again.
_BUSY_RETRY_S = 1.0


class UntakenAnswers:
    """The bytes of large answers that clients have not taken yet. Lives on one event loop."""

    def __init__(self) -> None:
        self._untaken = 0

    @property
    def untaken_bytes(self) -> int:
        """Bytes of large answers that are on their way."""
        return self._untaken

    def take(self, answer: bytes) -> bytes:
        """Return the answer to the call of the present task, which counts until that task has ended.

        Raises:
            SystemBusy: others have not taken theirs yet.
        """
        size = len(answer)
        if size <= _LARGE_BYTES:
            return answer
        if self._untaken and self._untaken + size > MAX_UNTAKEN_BYTES:
            raise SystemBusy(
                f"{self._untaken >> 20} MiB of answers are on their way to clients, and the limit is "
                f"{MAX_UNTAKEN_BYTES >> 20} MiB",
                retry_after_s=_BUSY_RETRY_S,
            )
        task = asyncio.current_task()
        assert task is not None
        self._untaken += size
        task.add_done_callback(lambda _: self._taken(size))
        return answer

    def _taken(self, size: int) -> None:
        self._untaken -= size
