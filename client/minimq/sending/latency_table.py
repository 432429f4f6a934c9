"""The exclusion times of brokers after slow answers: the tables of RocketMQ, by name."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_common.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Exclusion times by latency. All times are seconds."""

    name: str
    steps: tuple[tuple[float, float], ...]
    isolation_latency_s: float

    def out_s(self, latency_s: float) -> float:
        """Return the seconds for which a broker with this latency is excluded; 0 if it was quick enough."""
        found = 0.0
        for least, out in self.steps:
            if latency_s < least:
                break
            found = out
        return found

    @property
    def isolation_s(self) -> float:
        """Seconds for which a broker is excluded after an error."""
        return self.out_s(self.isolation_latency_s)


#: The default table.
DEFAULT_LATENCY_TABLE = "5.1.4"

_TABLES = {
    table.name: table
    for table in (
        LatencyTable(
            "5.1.4",
            ((0.05, 0.0), (0.1, 0.0), (0.55, 2.0), (1.8, 5.0), (3.0, 6.0), (5.0, 10.0), (15.0, 30.0)),
            isolation_latency_s=10.0,
        ),
        LatencyTable(
            "4.x",
            ((0.05, 0.0), (0.1, 0.0), (0.55, 30.0), (1.0, 60.0), (2.0, 120.0), (3.0, 180.0), (15.0, 600.0)),
            isolation_latency_s=30.0,
        ),
    )
}


def latency_table(name: str = DEFAULT_LATENCY_TABLE) -> LatencyTable:
    """Return the table of that name. Raises `InvalidArgument` with the list of names."""
    table = _TABLES.get(name)
    if table is None:
        raise InvalidArgument(f"no latency table {name!r}: there are {', '.join(_TABLES)}")
    return table
