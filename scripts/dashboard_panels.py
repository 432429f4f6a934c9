"""The parts of a dashboard; scripts/write_dashboards.py makes the files that Grafana reads."""

from __future__ import annotations

from dataclasses import dataclass

#: The label with which every query picks the servers of one cluster.
JOB = 'job="$job"'


@dataclass(frozen=True)
class Panel:
    """One panel.

    Args:
        title: of a few words.
        unit: as Grafana calls it, such as "s", "bytes" or "short".
        says: what it shows, and what to do about it.
        queries: pairs of a query and the legend of its series.
        kind: "timeseries", "stat" or "table".
    """

    title: str
    unit: str
    says: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    """One dashboard.

    Args:
        uid: its address in Grafana; also the name of its file.
        title: as people look for it.
        says: what it is for.
        variables: pairs of a name and the query of its values; the data source and the job come first by themselves.
        rows: each row's title, and its panels.
    """

    uid: str
    title: str
    says: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def one(title: str, unit: str, says: str, query: str, legend: str = "{{instance}}", kind: str = "timeseries") -> Panel:
    """Return a panel with one query."""
    return Panel(title, unit, says, ((query, legend),), kind)


def stat(title: str, unit: str, says: str, query: str) -> Panel:
    """Return a panel with one number."""
    return one(title, unit, says, query, "", "stat")


def rate(metric: str, labels: str = JOB) -> str:
    """Return the query of the growth of a counter in a second."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def quantiles(metric: str, labels: str) -> tuple[tuple[str, str], ...]:
    """Return the queries of the usual quantiles of a histogram."""
    return tuple(
        (f"histogram_quantile({share}, sum by (le) ({rate(f'{metric}_bucket', labels)}))", legend)
        for share, legend in ((0.5, "median"), (0.99, "99 %"), (0.999, "99.9 %"))
    )
