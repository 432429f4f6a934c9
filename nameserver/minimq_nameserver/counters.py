"""Counters of the calls that a name server has answered since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CallCounters:
    """Counted on the event loop; any thread looks."""

    registrations: int = 0
    refusals: int = 0
    #: Brokers that lost their place, by silence or to another one.
    removals: int = 0
    look_ups: int = 0
    unknown_look_ups: int = 0
