"""A report of a name server about a broker whose place another one has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ConflictReport:
    """One broker that a name server refused, or replaced by another, and that has not registered since.

    Attributes:
        nameserver: HOST:PORT of the name server; another one may have decided differently.
        cluster: of the broker without a place, as the following three.
        broker_name: its name.
        broker_id: its id.
        address: its HOST:PORT.
        holder_address: HOST:PORT of the broker that has the place.
        reason: why, and what can be done about it.
        first_at: when it was seen first.
        last_at: when it was seen last; a name server forgets it some minutes later.
        times: how often it was seen.
    """

    nameserver: str
    cluster: str
    broker_name: str
    broker_id: int
    address: str
    holder_address: str
    reason: str
    first_at: datetime
    last_at: datetime
    times: int
