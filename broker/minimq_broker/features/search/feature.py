"""Search as a feature of the broker."""

from __future__ import annotations

from minimq_broker.features.feature import Feature
from minimq_broker.features.search.finding import SearchServing


class Search(Feature):
    name = "search"
    serve = SearchServing
