"""The log of calls and requests that were refused, a line a minute for each kind."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from minimq_common.log_handler import ALWAYS_WRITTEN
from minimq_common.security.access_rule import Need

audit = logging.getLogger("minimq.audit")

#: Seconds after which a refusal of a kind that was logged is logged again.
_REPEAT_S = 60.0
#: Kinds of refusals that are logged in that time; further ones are only counted.
_MOST_KINDS = 1_000

#: What servers alone may do, among the verbs.
SERVER = "server"


class RefusalLog:
    """Counts what is refused, and logs it. Lives on one event loop; any thread may look at the counts.

    Args:
        clock: returns seconds.

    Attributes:
        unauthenticated: calls by callers that are not known, by the reason.
        denied: requests for which a right was lacking, by the verb.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        self.unauthenticated: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()

    def caller_refused(self, reason: str, key_id: str) -> None:
        """Take note of a call by somebody who is not known.

        Args:
            reason: one word.
            key_id: of the key that was shown; empty when none was, or a text that is none.
        """
        self.unauthenticated[reason] += 1
        self._note("access: a caller is refused reason=%s key=%s", reason, key_id or "-")

    def request_denied(self, user: str, need: Need | None) -> None:
        """Take note of a request for which a right was lacking.

        Args:
            user: who asked.
            need: the right; None for what servers alone may do.
        """
        self.denied[SERVER if need is None else need.verb.value] += 1
        self._note(
            "access: a request is refused user=%s need=%r", user, "to be a server" if need is None else str(need)
        )

    def _note(self, text: str, who: str, what: str) -> None:
        now = self._clock()
        since, more = self._logged.get((who, what), (-_REPEAT_S, 0))
        if now < since + _REPEAT_S:
            self._logged[who, what] = since, more + 1
            return
        if len(self._logged) >= _MOST_KINDS:
            self._logged = {kind: last for kind, last in self._logged.items() if now < last[0] + _REPEAT_S}
            if len(self._logged) >= _MOST_KINDS:  # somebody makes up keys: the log must not grow with each
                return
        self._logged[who, what] = now, 0
        audit.warning(f"{text} before=%d", who, what, more, extra=ALWAYS_WRITTEN)
