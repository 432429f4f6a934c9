"""The pace at which freed memory is returned to the system while a server is flooded, and afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from minimq_common import allocator

#: With less than that there is no need.
_KEPT_BYTES = 48 << 20
#: A process that has more memory than that returns what is freed at once. It is to stay below 512 MiB, and grows by a
#: fifth of that between two looks at most.
_MUCH_BYTES = 320 << 20
#: What nobody has used for so many seconds is returned in any case.
_UNUSED_S = 5.0
#: Returning takes no more than one in so many parts of the time.
_SHARE = 4


class FreedMemory:
    """Returns freed memory where nobody needs it again.

    The C library keeps what it was given back, more of it with each part of a flood, since threads of gRPC have heaps
    of their own. But whatever is returned while frames of a MiB pass comes back page by page, each of them cleared
    first: a broker that has to send much, and returns what it has sent, spends most of its time on that.
    """

    def __init__(
        self,
        freed: Callable[[], int] = allocator.freed_bytes,
        give_back: Callable[[], None] = allocator.give_back,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._freed = freed
        self._give_back = give_back
        self._clock = clock
        self._unused_since: float | None = None
        self._again_at = -math.inf

    def look(self, memory: int) -> None:
        """Return it if it is time for that. Looks follow each other until `pause`."""
        began = self._clock()
        if self._freed() <= _KEPT_BYTES:
            self._unused_since = began
            return
        if self._unused_since is None:
            self._unused_since = began
        if began >= self._unused_since + _UNUSED_S or (memory > _MUCH_BYTES and began >= self._again_at):
            self._give_back()
            self._unused_since = ended = self._clock()
            self._again_at = ended + _SHARE * (ended - began)

    def pause(self) -> None:
        """Look no more for a while: nobody knows how long something is unused then."""
        self._unused_since = None
