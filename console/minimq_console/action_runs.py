"""Actions whose plan was shown and waits for a confirmation, and confirmed ones: each runs once. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from types import SimpleNamespace
from typing import Any

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_console.parameters import Parameters

#: Bounds of a browser and of all, by number and size: the oldest that is not under way is dropped.
MAX_PER_BROWSER, MAX_RUNS = 30, 1_000
MAX_SIZE_PER_BROWSER, MAX_SIZE = 2 << 20, 16 << 20
#: Estimated size of a row of a plan.
_ROW_SIZE = 400
NOT_DESCRIBED = (
    "this confirmation does not match the plan that was shown to you, or the plan has expired, or another console made "
    "it: nothing was done; open the form again"
)
#: Seconds for which a plan can be confirmed, and for which a result is remembered.
CONFIRM_S, REMEMBERED_S = 900.0, 3_600.0
#: Maximum number of actions that are under way at once.
MAX_UNDER_WAY = 8


class MistypedName(InvalidArgument):
    """The typed name does not confirm the action, which still waits."""


@dataclass(eq=False, slots=True)
class ActionRun:
    """An action whose plan was shown; it runs once when it is confirmed."""

    number: str
    browser: str = field(repr=False)
    #: Empty without access control.
    user: str
    #: The arguments, the plan that was shown, and the form input for both.
    given: SimpleNamespace = field(repr=False)
    plan: Any = field(repr=False)
    parameters: Parameters = field(repr=False)
    #: The name to type as a confirmation; empty if none is needed.
    typed: str
    title: str
    #: URL path of its form.
    form: str
    #: When its plan was shown, or when it ended.
    seen_s: float
    #: "waiting" for the confirmation, "under way", "done" or "failed".
    state: str = "waiting"
    #: The last sentence about its progress, or the error.
    said: str = ""
    #: What was done.
    rows: Any = ()
    #: URL path of the page that shows the effect, once it is done.
    to: str = ""
    error: Exception | None = None
    #: Completes when the action ends; None before it begins.
    task: Awaitable[None] | None = None
    #: Estimated number of characters of the form input and the plan.
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.parameters.query.values())) + _ROW_SIZE * len(self.plan.rows)

    def end(self, now_s: float, said: str, *, rows: Any = (), to: str = "", error: Exception | None = None) -> None:
        self.said, self.rows, self.to, self.error, self.seen_s = said, rows, to, error, now_s
        self.state = "done" if error is None else "failed"

    def is_over(self, now_s: float) -> bool:
        if self.state == "under way":
            return False
        return now_s - self.seen_s >= (CONFIRM_S if self.state == "waiting" else REMEMBERED_S)


class ActionRuns:
    """All planned and confirmed actions. Used on the event loop; only `find` may be called on other threads."""

    def __init__(self) -> None:
        self._runs: dict[str, ActionRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def describe(self, run: ActionRun, now_s: float) -> None:
        """Add an action whose plan was shown to a browser."""
        self._runs = {number: each for number, each in self._runs.items() if not each.is_over(now_s)}
        self._make_room(run, lambda each: each.browser == run.browser, MAX_PER_BROWSER, MAX_SIZE_PER_BROWSER)
        self._make_room(run, lambda _: True, MAX_RUNS, MAX_SIZE)
        self._runs[run.number] = run

    def _make_room(self, run: ActionRun, is_counted: Callable[[ActionRun], bool], most: int, most_size: int) -> None:
        counted = sorted(filter(is_counted, self._runs.values()), key=lambda each: each.seen_s)
        number, size = len(counted) + 1, run.size + sum(each.size for each in counted)
        for each in counted:
            if number <= most and size <= most_size:
                break
            if each.state != "under way":
                del self._runs[each.number]
                number, size = number - 1, size - each.size

    def find(self, number: str, browser: str, user: str, now_s: float, form: str = "") -> ActionRun | None:
        """Return a run of this user and browser, of `form` or of any; None if it is unknown or has expired."""
        run = self._runs.get(number)
        if run is None or run.is_over(now_s) or run.user != user or form not in ("", run.form):
            return None
        return run if compare_digest(run.browser.encode(), browser.encode()) else None

    def confirm(
        self, number: str, browser: str, user: str, form: str, typed: str, now_s: float
    ) -> tuple[ActionRun, bool]:
        """Confirm a run; return it, and whether the caller has to start it, which is true only once."""
        run = self.find(number, browser, user, now_s, form)
        if run is None:
            raise InvalidArgument(NOT_DESCRIBED)
        if run.state != "waiting":
            return run, False
        if run.typed != typed:
            raise MistypedName(f"{typed!r} was typed: to confirm it, type {run.typed}")
        if sum(each.state == "under way" for each in self._runs.values()) >= MAX_UNDER_WAY:
            raise SystemBusy(f"{MAX_UNDER_WAY} actions are under way: wait for one of them, and confirm again")
        run.state = "under way"
        return run, True
