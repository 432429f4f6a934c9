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
    """The effect of an action, told before it is done.

    Attributes:
        sentences: what will happen, with the figures of the cluster as it is.
        warnings: sentences about what one may not want.
        button: in a few words, on the button that confirms it; that of the action if it is empty.
        typed: a name that is to be typed before it is done; empty if none is.
        carried: further parameters of what is confirmed, such as the moment at which it was described.
    """

    sentences: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    button: str = ""
    typed: str = ""
    carried: Mapping[str, str] = {}


class ActionResult(msgspec.Struct, frozen=True):
    """The end of an action that was done.

    Attributes:
        said: a sentence about what has happened.
        to: address of the page that shows the effect.
    """

    said: str
    to: str


class Offer(msgspec.Struct, frozen=True):
    """An action that a visitor may use, on a page about what it changes.

    Attributes:
        action: its name.
        label: in a few words.
        address: of its form.
    """

    action: str
    label: str
    address: str


def no_fields(_visit: Visit) -> Sequence[FormField]:
    """Return the fields of an action that has none."""
    return ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Action:
    """A change of the cluster.

    Attributes:
        name: in logs, and of the elements of pages: "delete-topic".
        path: of its address, such as "/topics/{topic}/delete".
        page: path of the page that leads to it.
        title: of its form, with the names of the path: "Delete topic {topic}".
        label: in a few words, on that page, and on the button that confirms it unless its plan has other ones.
        needs: the rights that it takes, by the names of the path and what is filled in.
        plan: returns what it will do. It runs in a thread of its own and makes calls with `Visit.ask` only.
        run: does it, with `Visit.observer.changer`, in a thread of its own.
        fields: of its form.
        private: names of the fields of which logs tell the length only.
    """

    name: str
    path: str
    page: str
    title: str
    label: str
    needs: Callable[[Parameters], Sequence[Need]]
    plan: Callable[[Visit], ActionPlan]
    run: Callable[[Visit, Progress], ActionResult]
    fields: Callable[[Visit], Sequence[FormField]] = no_fields
    private: frozenset[str] = frozenset()

    def on(self, query: Mapping[str, str] | None = None, label: str = "", **names: str) -> ActionTarget:
        """Return the action on one thing.

        Args:
            query: what is filled in already; then the address leads to what will happen.
            label: in place of that of the action.
            **names: those of the path.
        """
        return ActionTarget(self, tuple(names.items()), tuple((query or {}).items()), label or self.label)


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """An action on one thing.

    Attributes:
        action: which one.
        names: those of its path.
        query: what is filled in already.
        label: in a few words.
    """

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
