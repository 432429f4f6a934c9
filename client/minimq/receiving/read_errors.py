"""The errors that a poll raises, in place of messages."""

from __future__ import annotations

from collections.abc import Iterable

from minimq.receiving.queue_reader import QueueReader
from minimq_common.errors import Closed, MiniMQError


class ReadErrors:
    """The errors that the user has to hear. Used under the lock of the readers."""

    def __init__(self) -> None:
        self.failure: MiniMQError | None = None
        self.refusal: MiniMQError | None = None
        self.has_halted = False

    def raise_first(self, readers: Iterable[QueueReader]) -> None:
        """Raise what is to be raised now, if there is anything."""
        if self.has_halted:
            raise Closed("the consumer is closed")
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # which would grow with each time
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        for reader in readers:
            error = reader.error_to_tell()
            if error is not None:
                raise error
