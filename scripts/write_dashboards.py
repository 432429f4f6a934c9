"""Write the dashboards of docker/monitoring from dashboard_*.py: `python scripts/write_dashboards.py [--check]`."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from dashboard_broker import BROKER
from dashboard_cluster import CLUSTER
from dashboard_panels import Dashboard, Panel
from dashboard_topics import TOPICS

FOLDER = Path(__file__).parent.parent / "docker" / "monitoring" / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: Grafana divides the width of a page into this many columns.
COLUMNS = 24
SIZES = {"stat": (4, 4), "timeseries": (8, 8), "table": (8, 8)}


def written(dashboard: Dashboard) -> str:
    numbers = count(1)
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in dashboard.rows:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        panels.append({"id": next(numbers), "type": "row", "title": title, "gridPos": place, "panels": []})
        top += 1
        left, height = 0, 0
        for panel in row:
            width, height = SIZES[panel.kind]
            if left + width > COLUMNS:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": width, "h": height}
            panels.append({"id": next(numbers), "gridPos": place, **shown(panel)})
            left += width
        top += height
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": ["minimq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "minimq", "tags": ["minimq"], "keepTime": True, "includeVars": True}],
        "templating": {"list": variables(dashboard)},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


def variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return the variables that users choose above a dashboard."""
    source = {"name": "datasource", "type": "datasource", "label": "data source", "query": "prometheus"}
    queries = [("job", "label_values(minimq_nameserver_info, job)"), *dashboard.variables]
    return [source, *(variable(name, query) for name, query in queries)]


def variable(name: str, query: str) -> dict[str, Any]:
    """Return a variable with the values of a label: single choice for servers, multiple for topics and groups."""
    document: dict[str, Any] = {"name": name, "type": "query", "label": name, "datasource": SOURCE, "query": query}
    document |= {"refresh": 2, "sort": 1}  # refresh when the time range changes; sort alphabetically
    if name not in {"job", "instance"}:
        everything = {"text": ["All"], "value": ["$__all"]}
        document |= {"multi": True, "includeAll": True, "allValue": ".*", "current": everything}
    return document


def shown(panel: Panel) -> dict[str, Any]:
    """Return a panel without its position."""
    instant = panel.kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": query,
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for number, (query, legend) in enumerate(panel.queries)
    ]
    document: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
    if panel.kind == "timeseries":
        document["fieldConfig"]["defaults"]["custom"] = {"fillOpacity": 5, "showPoints": "never"}
        document["options"] = {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list"}}
        if any("deriv(" in query for query, _ in panel.queries):
            del document["fieldConfig"]["defaults"]["min"]
    elif panel.kind == "stat":
        document["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"}
    else:
        hidden = dict.fromkeys(("Time", "Value", "__name__", "job"), True)
        document["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return document


def main() -> None:
    """Write the files, or with --check exit with status 1 if one is out of date."""
    files = {FOLDER / f"{each.uid}.json": written(each) for each in (CLUSTER, TOPICS, BROKER)}
    for path, text in files.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            sys.exit(f"{path} is out of date: run make docs")


if __name__ == "__main__":
    main()
