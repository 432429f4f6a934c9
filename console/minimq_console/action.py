"""An action: one change of the cluster, as a declaration. It says what it will do before it does it.

Each is at one address, with two faces as a page has them: a form for browsers, and JSON for programs. What is filled
in is answered with what will happen; only what is confirmed then is done, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from minimq_common.security.access_rule import Need
from minimq_console.parameters import Parameters
from minimq_console.texts import address, with_query

if TYPE_CHECKING:
    from minimq_console.form_field import FormField
    from minimq_console.page import Visit

#: Takes a sentence about what is done or waited for.
Progress = Callable[[str], None]


class ActionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an action, told before it is done."""

    sentences: tuple[str, ...]
    #: Sentences about what one may not want.
    warnings: tuple[str, ...] = ()
    #: A name that is to be typed before it is done; empty if none is.
    typed: str = ""
    carried: Mapping[str, str] = {}


class ActionResult(msgspec.Struct, frozen=True):
    """The end of an action that was done."""

    said: str
    to: str


class Offer(msgspec.Struct, frozen=True):
    """An action that a visitor may use, on a page about what it changes."""

    action: str
    label: str
    address: str


def no_fields(_visit: Visit) -> Sequence[FormField]:
    """Return the fields of an action that has none."""
    return ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Action:
    """A change of the cluster."""

    name: str
    path: str
    page: str
    title: str
    #: In a few words, on that page, and on the button that confirms it.
    label: str
    needs: Callable[[Parameters], Sequence[Need]]
    #: Returns what it will do. It runs in a thread of its own and makes calls with `Visit.ask` only.
    plan: Callable[[Visit], ActionPlan]
    #: Does it, with `Visit.observer.changer`, in a thread of its own.
    run: Callable[[Visit, Progress], ActionResult]
    fields: Callable[[Visit], Sequence[FormField]] = no_fields
    #: Names of the fields of which logs tell the length only.
    private: frozenset[str] = frozenset()

    def on(self, query: Mapping[str, str] | None = None, label: str = "", **names: str) -> ActionTarget:
        """Return the action on one thing."""
        return ActionTarget(self, tuple(names.items()), tuple((query or {}).items()), label or self.label)


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """An action on one thing."""

    action: Action
    names: tuple[tuple[str, str], ...]
    query: tuple[tuple[str, str], ...]
    label: str

    @property
    def address(self) -> str:
        """The address of the form, or of what will happen if all is filled in."""
        query = with_query({**dict(self.query), "step": "check"}) if self.query else ""
        return address(self.action.path, dict(self.names)) + query

    @property
    def needs(self) -> Sequence[Need]:
        """The rights that it takes."""
        return self.action.needs(Parameters(self.query, dict(self.names)))

    @property
    def offer(self) -> Offer:
        """The link to it."""
        return Offer(self.action.name, self.label, self.address)
