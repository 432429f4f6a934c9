"""Watches the committed offsets of a group while a run lasts: they must never go back."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from minimq import Admin, MessageQueue, MiniMQError

_LOOK_AGAIN_S = 0.02


class OffsetWatch:
    """Asks the brokers all the time while the block runs.

    Attributes:
        looks: how often they have answered.
        went_back: how often an offset was lower than before.
        examples: some of them as text.
    """

    def __init__(self, nameserver: str, group: str, topic: str) -> None:
        self.looks = 0
        self.went_back = 0
        self.examples: list[str] = []
        self._asked = nameserver, group, topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offset-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        nameserver, group, topic = self._asked
        seen: dict[MessageQueue, int] = {}
        with Admin(nameserver) as admin:
            while not self._end.wait(_LOOK_AGAIN_S):
                try:
                    found = admin.committed_offsets(group, topic)
                except MiniMQError:
                    continue  # a broker is being restarted
                self.looks += 1
                for queue, offset in found.items():
                    if offset < seen.get(queue, 0):
                        self.went_back += 1
                        self.examples = [*self.examples, f"{queue} was committed up to {seen[queue]}, then {offset}"][
                            :8
                        ]
                seen.update(found)
