"""Delayed messages as a feature of the broker."""

from __future__ import annotations

from minimq_broker.features.delayed.delaying import DelayServing
from minimq_broker.features.delayed.table import NAME, BatchesRecalled, DelaysSetBack, DelayTable, DueSkipped
from minimq_broker.features.feature import Feature


class Delayed(Feature):
    name = NAME
    facts = (BatchesRecalled, DueSkipped, DelaysSetBack)
    table = DelayTable
    serve = DelayServing
