"""A page: a function that gathers what is known as a frozen struct, and the template that shows it.

The same struct has three faces at one address: HTML for browsers, JSON for programs, and server-sent events, which
bring the live part of the HTML anew whenever it has changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from minimq_common.errors import NotAuthenticated
from minimq_common.security.access_rule import Need
from minimq_console.action import ActionTarget, Offer
from minimq_console.asking import Asked, Asking, Value
from minimq_console.body_decoder import Decode
from minimq_console.observer import Observer
from minimq_console.parameters import Parameters
from minimq_console.sampler import Sample
from minimq_console.visitors import Visitor


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """The struct of a page; each page has one of its own."""

    #: Sentences about what could not be found out in time: the rest is shown without it.
    missing: tuple[str, ...] = ()
    #: Those that the visitor may use on what the page is about.
    actions: tuple[Offer, ...] = ()

    @property
    def stays(self) -> bool:
        """True if what is shown stays as it is, so that no events bring it anew."""
        return False


@dataclass(frozen=True, slots=True)
class Visit:
    """One look at a page."""

    visitor: Visitor
    parameters: Parameters
    asking: Asking
    allow_changes: bool = False
    #: Decodes bodies that name a schema; None without a schema registry.
    decode: Decode | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def observer(self) -> Observer:
        """The view of the cluster with the rights of the visitor."""
        return self.visitor.observer

    def ask(self, what: str, call: Callable[[], Value]) -> Asked[Value]:
        """Begin a call to the cluster; see `Asking.ask`."""
        return self.asking.ask(what, call)

    def sample(self) -> Sample:
        """Return the last sample of the cluster; says what is wrong with it among what is missing."""
        sample = self.observer.sampler.first_sample(self.asking.left_s)
        if sample.is_refused:
            raise NotAuthenticated(sample.error or "")
        self.asking.missing.extend(sample.problems(self.now))
        return sample

    def rights(self, needs: Iterable[Need]) -> frozenset[Need]:
        """Return which of some rights the visitor has; none where actions are not offered. Asks the cluster."""
        asked = frozenset(needs) if self.allow_changes else frozenset()
        return self.ask("your rights", lambda: self.visitor.rights(asked)).or_else(frozenset()) if asked else asked

    def offers(self, *targets: ActionTarget) -> tuple[Offer, ...]:
        """Return the actions that the visitor may use, of some, in their order. Asks the cluster."""
        if not self.allow_changes:
            return ()
        rights = self.rights(need for target in targets for need in target.needs)
        return tuple(target.offer for target in targets if rights.issuperset(target.needs))

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences about what did not come so far."""
        return tuple(dict.fromkeys(self.asking.missing))


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console."""

    path: str
    #: Name of its file in `templates`; its block "live" is what events bring anew.
    template: str
    #: Returns the struct. It runs in a thread of its own and makes calls with `Visit.ask` only.
    gather: Callable[[Visit], PageData]
    title: str
    #: In the navigation; None for pages that others lead to.
    label: str | None = None
    #: Seconds between two looks while somebody watches; None for a page that stays as it is.
    live_s: float | None = 2.0
    #: Yields structs of what is new, at least every second; for pages to which rows are added. Else None.
    follow: Callable[[Visit], AsyncIterator[PageData]] | None = None
    rows_template: str = ""
    has_form: bool = False
    #: It is the same for all visitors with the rights of one user.
    is_shared: bool = True
