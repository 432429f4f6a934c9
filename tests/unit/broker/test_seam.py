"""The classes by which features plug in."""

from __future__ import annotations

import inspect
import re

import pytest

from minimq_broker.features.feature import Feature, Pins, Scratch, Serving, Table

_THREAD = re.compile(r"thread|event loop|recovery", re.IGNORECASE)


def members(kind: type) -> dict[str, object]:
    """Return what a feature may override or set."""
    own = {name: each for name, each in vars(kind).items() if not name.startswith("_")}
    return own | dict.fromkeys(kind.__annotations__.keys() - own.keys())


@pytest.mark.parametrize("kind", [Feature, Pins, Scratch, Serving, Table])
def test_each_method_names_its_thread(kind: type) -> None:
    methods = {name: each for name, each in members(kind).items() if inspect.isfunction(each)}
    unnamed = [name for name, each in methods.items() if not _THREAD.search(inspect.getdoc(each) or "")]
    assert unnamed == [] or _THREAD.search(inspect.getdoc(kind) or ""), unnamed


def test_the_seam_stays_small() -> None:
    assert len(members(Feature)) + len(members(Table)) <= 25
