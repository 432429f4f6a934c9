"""The features of this build, by name and by what they own. Filled before a store is opened."""

from __future__ import annotations

from minimq_broker.features.feature import Feature, Table
from minimq_broker.state.facts import Fact, register_facts

FEATURES: dict[str, Feature] = {}
BY_FACT: dict[type[Fact], Feature] = {}


def register(*features: Feature) -> None:
    """Add features. Idempotent."""
    for each in features:
        FEATURES[each.name] = each
        BY_FACT.update(dict.fromkeys(each.facts, each))
    register_facts(BY_FACT)


def new_tables() -> dict[str, Table]:
    """Return an empty table of each feature."""
    return {name: each.table() for name, each in FEATURES.items()}
