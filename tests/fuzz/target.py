"""A decoder, and how input for it is made."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A decoder, with the only errors that may come out of it.

    Attributes:
        name: of the decoder, "room.name".
        make: returns an input.
        decode: reads an input, and looks at all that came of it.
        errors: what it documents.
        weight: of all inputs this share, relative to the others.
    """

    name: str
    make: Callable[[Random], Any]
    decode: Callable[[Any], object]
    errors: tuple[type[BaseException], ...]
    weight: float = 1.0
