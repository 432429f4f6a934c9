"""The files in docker/monitoring: rules, dashboards, and the metrics that these name."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import yaml

from support.container_files import Document

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "monitoring"
GRAFANA = FOLDER / "grafana"


def read_rules(path: Path) -> list[Document]:
    """Return the rules of a file."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


@functools.cache
def rules() -> list[Document]:
    """Return all rules, in the order of the page: servers, replicas, access, then what is recorded."""
    order = ("servers", "replicas", "access", "recording")
    files = {path.stem: path for path in FOLDER.glob("rules/*.yml")}
    assert files.keys() == set(order)
    return [rule for name in order for rule in read_rules(files[name])]


@functools.cache
def alerts() -> dict[str, Document]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


@functools.cache
def dashboards() -> dict[str, Document]:
    """Return the dashboards by the names of their files."""
    return {path.name: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("dashboards/*.json"))}


def queries() -> list[str]:
    """Return every query of rules and dashboards, those of variables included."""
    found = [str(rule["expr"]) for rule in rules()]
    for dashboard in dashboards().values():
        found += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
        found += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return found


def named_metrics() -> set[str]:
    """Return the metrics of servers that queries name; not what rules record."""
    texts = (re.sub(r'"[^"]*"', "", query) for query in queries())
    names = {name for text in texts for name in re.findall(r"[\w:]*\b(?:minimq|process)_\w[\w:]*", text)}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert {name for name in names if ":" in name} <= recorded
    return {name for name in names if ":" not in name}
