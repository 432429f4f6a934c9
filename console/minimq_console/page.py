"""A page: a function that gathers what is known, and the template that shows it.

What is gathered has three faces at one address: HTML for browsers, JSON for programs, and server-sent events, which
bring the live part of the HTML anew whenever it has changed. Rows are those that operations show as JSON.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from minimq import Admin
from minimq.operations.operation import operations_of
from minimq_common.errors import DeadlineExceeded, MiniMQError, NotAuthenticated
from minimq_common.security.access_rule import Need
from minimq_console.console import Console
from minimq_console.parameters import Parameters
from minimq_console.sampler import Sample
from minimq_console.visitors import Observer, Visitor

Value = TypeVar("Value")
Default = TypeVar("Default")

#: What a page shows, by the names that its template and its JSON twin use. All pages have "missing" and "actions".
Data = dict[str, Any]

#: Seconds that the calls of a page may take together; what has not come then is missing, and the page says so.
PATIENCE_S = 1.8
_OPERATIONS = {each.name: each for each in operations_of(Admin)}


@dataclass(frozen=True, slots=True)
class Offer:
    """A link to an action on one thing, and the rights that it takes."""

    action: str
    label: str
    address: str
    needs: frozenset[Need]


class Asked(Generic[Value]):
    """One call that is under way."""

    def __init__(self, visit: Visit, what: str, future: Future[Value]) -> None:
        self._visit, self._what, self._future = visit, what, future

    def required(self) -> Value:
        """Return the value."""
        try:
            return self._future.result(self._visit.left_s)
        except LateError:
            self._future.cancel()
            raise DeadlineExceeded(
                f"{self._what}: no answer within {PATIENCE_S:g} s; the page tries again by itself"
            ) from None

    def or_else(self, default: Default) -> Value | Default:
        """Return the value, or a default if it does not come, which the page then says."""
        try:
            return self.required()
        except MiniMQError as error:
            text = error.message
            self._visit.missing.append(text if text.startswith(self._what) else f"{self._what}: {text}")
            return default


@dataclass(eq=False, slots=True)
class Visit:
    """One look at a page. Its calls to the cluster go side by side within `PATIENCE_S`. Used by one thread."""

    visitor: Visitor
    parameters: Parameters
    console: Console
    #: Sentences about what could not be found out in time: the rest is shown without it.
    missing: list[str] = field(default_factory=list)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    _give_up: float = field(default_factory=lambda: time.monotonic() + PATIENCE_S)

    @property
    def observer(self) -> Observer:
        """The view of the cluster with the rights of the visitor."""
        return self.visitor.observer

    @property
    def admin(self) -> Admin:
        """Asks the cluster with the rights of the visitor; call it by `ask`."""
        return self.observer.admin

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(self._give_up - time.monotonic(), 0.0)

    def ask(self, what: str, call: Callable[[], Value]) -> Asked[Value]:
        """Begin a call to the cluster."""
        return Asked(self, what, self.console.calling.submit(call))

    def shown(self, operation: str, result: object, **given: object) -> Any:
        """Return what an operation shows of a result as JSON."""
        declared = _OPERATIONS[operation]
        return declared.view(self.admin, declared.given(**given), result, None).json

    def sample(self) -> Sample:
        """Return the last sample of the cluster; says what is wrong with it among what is missing."""
        sample = self.observer.sampler.first_sample(self.left_s)
        if sample.is_refused:
            raise NotAuthenticated(sample.error or "")
        self.missing += sample.problems(self.now)
        return sample

    def rights(self, needs: Iterable[Need]) -> frozenset[Need]:
        """Return which of some rights the visitor has; none where actions are not offered. Asks the cluster."""
        asked = frozenset(needs) if self.console.allow_changes else frozenset()
        return self.ask("your rights", lambda: self.visitor.rights(asked)).or_else(frozenset()) if asked else asked

    def offers(self, *offers: Offer) -> list[dict[str, str]]:
        """Return links to the actions that the visitor may use, of some, in their order. Asks the cluster."""
        return self.offers_of_rows([offers])[0]

    def offers_of_rows(self, rows: Sequence[Sequence[Offer]]) -> list[list[dict[str, str]]]:
        """Return as `offers` does for each of some rows, and ask the cluster once."""
        if not self.console.allow_changes:
            return [[] for _ in rows]
        rights = self.rights(need for row in rows for offer in row for need in offer.needs)
        return [
            [
                {"action": offer.action, "label": offer.label, "address": offer.address}
                for offer in row
                if rights.issuperset(offer.needs)
            ]
            for row in rows
        ]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console."""

    path: str
    #: Name of its file in `templates`; its block "live" is what events bring anew.
    template: str
    #: Returns what is shown. It runs in a thread of its own and makes calls with `Visit.ask` only.
    gather: Callable[[Visit], Data]
    title: str
    #: In the navigation; None for pages that others lead to.
    label: str | None = None
    #: Seconds between two looks while somebody watches; None for a page that stays as it is.
    live_s: float | None = 2.0
    #: Returns whether what is shown stays as it is, so that no events bring it anew.
    stays: Callable[[Data], bool] = lambda _: False
    #: Yields what is new, at least every second; for pages to which rows are added. Else None.
    follow: Callable[[Visit], AsyncIterator[Data]] | None = None
    rows_template: str = ""
    has_form: bool = False
    #: It is the same for all visitors with the rights of one user.
    is_shared: bool = True
