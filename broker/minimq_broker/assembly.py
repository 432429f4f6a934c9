"""The features of this build. Importing this module registers them, so that stores can be opened."""

from __future__ import annotations

from minimq_broker.features.delayed.feature import Delayed
from minimq_broker.features.feature import Feature
from minimq_broker.features.registry import register

FEATURES: tuple[Feature, ...] = (Delayed(),)
register(*FEATURES)
