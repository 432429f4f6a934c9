"""The pace of full garbage collections: each looks at everything there is, while everybody waits."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

#: After a full collection there is none for so many times as long as it took: they take a hundredth of the time.
_REST = 100
#: But for no longer than that, in seconds.
_LONGEST_REST_S = 60.0
#: More collections of young objects than there are in that time.
_NEVER = 1 << 30


class FullCollections:
    """Spaces the full garbage collections of this process, whichever thread they come up on.

    With the calls of thousands of clients under way one takes a tenth of a second, and the more of them come and go,
    the more often it is due. What ends young is collected meanwhile as ever, which takes little time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thresholds = gc.get_threshold()
        self._began = 0.0
        self._rests_until: float | None = None

    def start(self) -> None:
        """Begin to space them."""
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """Let them come as they are due."""
        gc.callbacks.remove(self._collecting)
        gc.set_threshold(*self._thresholds)

    def _collecting(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] == 2:
            if phase == "start":
                self._began = self._clock()
            else:
                now = self._clock()
                self._rests_until = now + min(_REST * (now - self._began), _LONGEST_REST_S)
                gc.set_threshold(*self._thresholds[:2], _NEVER)
        elif self._rests_until is not None and phase == "stop" and self._clock() >= self._rests_until:
            self._rests_until = None
            gc.set_threshold(*self._thresholds)
