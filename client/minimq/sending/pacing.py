"""Into which pieces large requests are cut, by the time until the broker acknowledges a piece. Pure.

On a slow connection, small pieces show that a request makes progress, and let the requests of other streams pass
between them. On a fast one the pieces grow until requests are sent whole: each piece costs as much as a request.
"""

from __future__ import annotations

import math

#: Size of the smallest piece, and of the first one on a stream.
_MIN_BYTES = 16 << 10
#: After a quick piece of this size, requests of any size are sent whole.
_FAST_BYTES = 512 << 10
#: A piece that took that much longer than the quickest one is followed by larger, or by smaller ones.
_QUICK_S, _SLOW_S = 0.05, 0.2


class Pacing:
    """The pieces on one stream. Times are seconds on one clock."""

    def __init__(self) -> None:
        #: Largest request that is sent whole, and size of the pieces of larger ones.
        self.piece_bytes = _MIN_BYTES
        #: When the broker acknowledged a piece last.
        self.moved_at = -math.inf
        self._quickest_s = math.inf
        self._unacknowledged_bytes = 0

    @property
    def is_full(self) -> bool:
        """True while the next piece must wait: two are on their way, so that the connection is never idle."""
        return self._unacknowledged_bytes > self.piece_bytes

    def sent(self, size: int) -> None:
        self._unacknowledged_bytes += size

    def acknowledged(self, size: int, took_s: float, now: float) -> None:
        self._unacknowledged_bytes -= size
        self.moved_at = now
        self._quickest_s = min(self._quickest_s, took_s)
        if took_s < self._quickest_s + _QUICK_S:
            if size >= self.piece_bytes:
                self.piece_bytes *= 2 if size < _FAST_BYTES else _FAST_BYTES
        elif took_s > self._quickest_s + _SLOW_S:
            self.piece_bytes = max(self.piece_bytes // 2, _MIN_BYTES)
