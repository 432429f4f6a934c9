"""The log of calls and requests that were refused, a line a minute for each kind."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from minimq_common.security.access_rule import Need
from minimq_common.serving.logs import ALWAYS_WRITTEN

audit = logging.getLogger("minimq.audit")

#: Seconds after which a refusal of a kind that was logged is logged again.
_REPEAT_S = 60.0
#: Kinds of refusals of one user, or of strangers for one reason, that are logged in that time; further ones are only
#: counted. Each has its own, so that nobody silences the log for others by keys or names that are made up.
_MOST_KINDS = 200

#: Users and reasons of which is known what was logged; those that were refused in the last minute, if there are more.
_MOST_LOGGED = 10_000

#: Stands for all kinds for which there is no room.
_OTHERS = "others"

#: What servers alone may do, among the verbs.
SERVER = "server"


class RefusalLog:
    """Counts what is refused, and logs it. Lives on one event loop; any thread may look at the counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, only_reports: bool = False) -> None:
        self._clock = clock
        self._is = "would be" if only_reports else "is"
        #: By user or reason: when each kind was logged, and how many came since; the first one first.
        self._logged: dict[str, dict[str, tuple[float, int]]] = {}
        self.unauthenticated: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()

    def caller_refused(self, reason: str, key_id: str) -> None:
        """Take note of a call by somebody who is not known."""
        self.unauthenticated[reason] += 1
        self._note(f"access: a caller {self._is} refused reason=%s key=%s", reason, key_id or "-")

    def request_denied(self, user: str, need: Need | None) -> None:
        """Take note of a request for which a right was lacking."""
        self.denied[SERVER if need is None else need.verb.value] += 1
        self._note(
            f"access: a request {self._is} refused user=%s need=%r",
            user,
            "to be a server" if need is None else str(need),
        )

    def _note(self, text: str, who: str, what: str) -> None:
        now = self._clock()
        if who not in self._logged and len(self._logged) >= _MOST_LOGGED:
            self._logged = {name: kinds for name, kinds in self._logged.items() if _is_fresh(kinds, now)}
        kinds = self._logged.setdefault(who, {})
        since, more = kinds.get(what, (-_REPEAT_S, 0))
        if now < since + _REPEAT_S:
            kinds[what] = since, more + 1
            return
        kinds.pop(what, None)
        while kinds and now >= next(iter(kinds.values()))[0] + _REPEAT_S:
            del kinds[next(iter(kinds))]
        if len(kinds) >= _MOST_KINDS and what != _OTHERS:
            self._note(text, who, _OTHERS)
            return
        kinds[what] = now, 0
        audit.warning(f"{text} before=%d", who, what, more, extra=ALWAYS_WRITTEN)


def _is_fresh(kinds: dict[str, tuple[float, int]], now: float) -> bool:
    return any(now < since + _REPEAT_S for since, _ in kinds.values())
