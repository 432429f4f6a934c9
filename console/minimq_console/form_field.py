"""The fields of forms: what each is called, what it may hold, and its value in a form that was sent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_console.parameters import Parameters

FieldKind = Literal["text", "number", "lines", "choice", "switch"]


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the form of an action."""

    name: str
    label: str
    #: A line of text, a whole number, several lines, one of some values, or something that is on or off.
    kind: FieldKind = "text"
    #: What it holds before anybody fills it in.
    default: str = ""
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()
    low: int = 0
    high: int = (1 << 63) - 1
    #: Of a text: its characters at most.
    most: int = 255
    #: It may not be left empty.
    is_required: bool = False
    #: What was filled in.
    value: str = ""

    def given(self, parameters: Parameters) -> str:
        """Return what it holds, unchecked."""
        value = parameters.given(self.name)
        return self.default if value is None else value

    def text(self, parameters: Parameters) -> str:
        """Return its text or its chosen value, checked. Raises `InvalidArgument`."""
        value = self.given(parameters)
        if self.kind != "lines":
            value = value.strip()
        if len(value) > self.most:
            raise InvalidArgument(f"{self.label} has {len(value):,} characters: at most {self.most:,} are allowed")
        if "\0" in value:
            raise InvalidArgument(f"{self.label} has a NUL character: leave it out")
        if self.is_required and not value:
            raise InvalidArgument(f"{self.label} is empty: fill it in")
        if self.kind == "choice" and value not in dict(self.choices):
            known = ", ".join(each for each, _ in self.choices)
            raise InvalidArgument(f"{self.label} is {value[:60]!r}: choose one of {known or 'none, there are none'}")
        return value

    def number(self, parameters: Parameters) -> int:
        """Return its number, checked. Raises `InvalidArgument`."""
        value = self.optional_number(parameters)
        if value is None:
            raise InvalidArgument(f"{self.label} is empty: give a whole number, {self.low} to {self.high}")
        return value

    def optional_number(self, parameters: Parameters) -> int | None:
        """Return its number, checked; None if it is empty. Raises `InvalidArgument`."""
        if not self.given(parameters).strip():
            return None
        sent = Parameters([(self.name, self.given(parameters))])
        return sent.number(self.name, self.low, self.low, self.high)

    def flag(self, parameters: Parameters) -> bool:
        """Return whether it is on. Raises `InvalidArgument`."""
        return Parameters([(self.name, self.given(parameters))]).flag(self.name)

    def check(self, parameters: Parameters) -> None:
        """Raise `InvalidArgument` if it holds what it may not hold."""
        if self.kind == "number":
            if self.is_required:
                self.number(parameters)
            else:
                self.optional_number(parameters)
        elif self.kind == "switch":
            self.flag(parameters)
        else:
            self.text(parameters)


def check_all(fields: Sequence[FormField], parameters: Parameters) -> None:
    """Raise `InvalidArgument` if one of some fields holds what it may not hold."""
    for field in fields:
        field.check(parameters)
