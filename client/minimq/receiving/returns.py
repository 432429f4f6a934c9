"""The thread that sends messages back which were not consumed, so that listeners need not wait for it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from minimq.receiving.in_hand import Call
from minimq.receiving.received import ReceivedMessage
from minimq.receiving.retry_sender import Failed

log = logging.getLogger(__name__)


class Returns:
    """Takes calls that were without success. Thread-safe.

    Args:
        send: sends messages and tells which of them are on disk.
        is_current: whether a call is still to be cared for; another member sends its messages back otherwise.
        done: called with a call and its messages that could not be sent.
        name: of the thread.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Failed]], Sequence[bool]],
        is_current: Callable[[Call], bool],
        done: Callable[[Call, list[ReceivedMessage]], None],
        name: str,
    ) -> None:
        self._send = send
        self._is_current = is_current
        self._done = done
        self._to_do: queue.SimpleQueue[tuple[Call, int | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, call: Call, level: int | None) -> None:
        """Have the messages of a call sent back, to wait for so long as the level says."""
        self._to_do.put((call, level))

    def close(self, timeout_s: float) -> None:
        """End when that is done which is under way. Idempotent."""
        if self._thread.is_alive():
            self._to_do.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (first := self._to_do.get()) is not None:
            waiting = [first]
            ended = False
            while not self._to_do.empty():
                item = self._to_do.get()
                if item is None:
                    ended = True
                    break
                waiting.append(item)
            self._return(waiting)
            if ended:
                return

    def _return(self, waiting: Sequence[tuple[Call, int | None]]) -> None:
        wanted = [(call, level) for call, level in waiting if self._is_current(call)]
        failed = [Failed(message, level) for call, level in wanted for message in call.messages]
        try:
            sent = iter(self._send(failed))
        except Exception:  # the messages stay in hand, and the thread serves all queues
            log.exception("consumer: messages could not be sent back")
            sent = iter([False] * len(failed))
        current = {call for call, _ in wanted}
        for call, _ in waiting:
            left = [message for message in call.messages if not next(sent)] if call in current else []
            self._done(call, left)
