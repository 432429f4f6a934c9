"""The features of this build, by name and by what they own. Filled before a store is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minimq_broker.features.feature import Feature, IndexRow, Table
from minimq_broker.state.facts import Fact, register_facts
from minimq_broker.state.queue_ends import BatchHeld

FEATURES: dict[str, Feature] = {}
BY_TAG: dict[int, Feature] = {}
BY_FACT: dict[type[Fact], Feature] = {}


def register(*features: Feature) -> None:
    """Add features. Idempotent."""
    for each in features:
        FEATURES[each.name] = each
        BY_FACT.update(dict.fromkeys(each.facts, each))
        if each.tag:
            BY_TAG[each.tag] = each
    register_facts(BY_FACT)


def index_rows_of(effect: Any, position: int) -> Iterable[IndexRow]:
    """Return the index rows of the entry with this effect and log position."""
    owner = BY_TAG[effect.tag] if isinstance(effect, BatchHeld) else BY_FACT.get(type(effect))
    return owner.index_rows(effect, position) if owner is not None and owner.has_index else ()


def new_tables() -> dict[str, Table]:
    """Return an empty table of each feature."""
    return {name: each.table() for name, each in FEATURES.items()}
