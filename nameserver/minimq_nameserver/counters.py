"""Counters of the calls that a name server has answered since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CallCounters:
    """Counted on the event loop; any thread looks.

    Attributes:
        registrations: tables of brokers that were taken in; heartbeats are none.
        refusals: registrations that were refused.
        removals: brokers that lost their place, by silence or to another one.
        look_ups: questions where a topic is.
        unknown_look_ups: those among them that found no route.
    """

    registrations: int = 0
    refusals: int = 0
    removals: int = 0
    look_ups: int = 0
    unknown_look_ups: int = 0
