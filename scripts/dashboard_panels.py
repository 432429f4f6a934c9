"""The parts of a dashboard; scripts/write_dashboards.py writes the files for Grafana."""

from __future__ import annotations

from dataclasses import dataclass

#: The label by which every query selects the servers of one cluster.
JOB = 'job="$job"'


@dataclass(frozen=True)
class Panel:
    """One panel.

    Args:
        title: a few words.
        unit: unit in Grafana's terms, such as "s", "bytes" or "short".
        says: description of what it shows, and of the remedy.
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
        uid: its id in Grafana's URLs; also the name of its file.
        title: its title in Grafana.
        says: its description.
        variables: pairs of a name and the query of its values; the data source and the job are added in front.
        rows: title and panels of each row.
    """

    uid: str
    title: str
    says: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def one(title: str, unit: str, says: str, query: str, legend: str = "{{instance}}", kind: str = "timeseries") -> Panel:
    return Panel(title, unit, says, ((query, legend),), kind)


def stat(title: str, unit: str, says: str, query: str) -> Panel:
    """Return a panel that shows a single number."""
    return one(title, unit, says, query, "", "stat")


def rate(metric: str, labels: str = JOB) -> str:
    """Return the query of a counter's rate per second."""
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def quantiles(metric: str, labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({share}, sum by (le) ({rate(f'{metric}_bucket', labels)}))", legend)
        for share, legend in ((0.5, "median"), (0.99, "99 %"), (0.999, "99.9 %"))
    )
