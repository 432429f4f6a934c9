"""A page: a function that gathers what is known as a frozen struct, and the template that shows it.

The same struct has three faces at one address: HTML for browsers, JSON for programs, and server-sent events, which
bring the live part of the HTML anew whenever it has changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from minimq_console.asking import Asked, Asking, Value
from minimq_console.observer import Observer
from minimq_console.parameters import Parameters
from minimq_console.sampler import Sample


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """The struct of a page; each page has one of its own.

    Attributes:
        missing: sentences about what could not be found out in time: the rest is shown without it.
    """

    missing: tuple[str, ...] = ()

    @property
    def stays(self) -> bool:
        """True if what is shown stays as it is, so that no events bring it anew."""
        return False


@dataclass(frozen=True, slots=True)
class Visit:
    """One look at a page.

    Attributes:
        observer: sees the cluster with the rights of who looks.
        parameters: those of the address.
        asking: the calls that the page makes.
        now: the time.
    """

    observer: Observer
    parameters: Parameters
    asking: Asking
    now: datetime

    @classmethod
    def begin(cls, observer: Observer, parameters: Parameters, asking: Asking) -> Visit:
        """Return a visit that begins now."""
        return cls(observer, parameters, asking, datetime.now(UTC))

    def ask(self, what: str, call: Callable[[], Value]) -> Asked[Value]:
        """Begin a call to the cluster; see `Asking.ask`."""
        return self.asking.ask(what, call)

    def sample(self) -> Sample:
        """Return the last sample of the cluster; says what is wrong with it among what is missing."""
        sample = self.observer.sampler.first_sample(self.asking.left_s)
        self.asking.missing.extend(sample.problems(self.now))
        return sample

    @property
    def missing(self) -> tuple[str, ...]:
        """Sentences about what did not come so far."""
        return tuple(dict.fromkeys(self.asking.missing))


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console.

    Attributes:
        path: of its address, such as "/topics/{topic}".
        template: name of its file in `templates`; its block "live" is what events bring anew.
        gather: returns the struct. It runs in a thread of its own and makes calls with `Visit.ask` only.
        title: of the page.
        label: in the navigation; None for pages that others lead to.
        live_s: seconds between two looks while somebody watches; None for a page that stays as it is.
        follow: yields structs of what is new, at least every second; for pages to which rows are added. Else None.
        rows_template: makes the rows of such a struct.
    """

    path: str
    template: str
    gather: Callable[[Visit], PageData]
    title: str
    label: str | None = None
    live_s: float | None = 2.0
    follow: Callable[[Visit], AsyncIterator[PageData]] | None = None
    rows_template: str = ""
