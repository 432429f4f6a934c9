"""The features of this build, by name and by what they own. Filled before a store is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minimq_broker.features.feature import Feature, IndexRow, Table
from minimq_broker.state.facts import Fact, register_facts
from minimq_broker.state.queue_ends import BatchHeld
from minimq_common.errors import DataDirectoryVersion, StoreError

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


def versions() -> dict[str, int]:
    """Return the versions of the features, by name."""
    return {name: each.version for name, each in FEATURES.items()}


def check_features(used: Mapping[str, int], there: Mapping[str, int], log: object, broker: str) -> None:
    """Raise `DataDirectoryVersion` if a log uses features that a broker lacks."""
    for name, version in sorted(used.items()):
        if there.get(name, 0) < version:
            raise DataDirectoryVersion(
                f"{log} has entries of the feature {name!r}, version {version}, and {broker} is built without it: use "
                "a build that has it"
            )


def check_held(held: BatchHeld, position: int) -> None:
    """Raise `StoreError` if this broker cannot read the held batch at a log position."""
    owner = BY_TAG.get(held.tag)
    if owner is None:
        raise StoreError(
            f"the entry at position {position} is of a feature with the tag {held.tag}, and this broker is built "
            "without it: use a build that has it"
        )
    owner.check_held(held)


def index_rows_of(effect: Any, position: int) -> Iterable[IndexRow]:
    """Return the index rows of the entry with this effect and log position."""
    owner = BY_TAG[effect.tag] if isinstance(effect, BatchHeld) else BY_FACT.get(type(effect))
    return owner.index_rows(effect, position) if owner is not None and owner.has_index else ()


def new_tables() -> dict[str, Table]:
    """Return an empty table of each feature."""
    return {name: each.table() for name, each in FEATURES.items()}
