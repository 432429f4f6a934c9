"""The metrics that a server shows to Prometheus."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

Labels = dict[str, str]


def metrics_address(log_path: Path) -> str:
    """Return where a server shows its metrics, from its log, which is written as JSON."""
    for line in reversed(log_path.read_text().splitlines()):
        record = json.loads(line)
        if record["message"] == "ready":
            address: str = record["fields"]["metrics"]
            return address
    raise AssertionError(f"not ready: {log_path}")


class Scrape:
    """All metrics of a server at one moment."""

    def __init__(self, address: str) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            self.text = answer.read().decode()
        self.families: dict[str, Metric] = {
            family.name + {"counter": "_total", "info": "_info"}.get(family.type, ""): family
            for family in text_string_to_metric_families(self.text)
        }

    def series(self, name: str) -> list[tuple[Labels, float]]:
        """Return the values of a metric that is no histogram."""
        return [(sample.labels, sample.value) for sample in self.families[name].samples if sample.name == name]

    def value(self, name: str, **labels: str) -> float:
        """Return one value: of a histogram, add _count or _sum to the name."""
        family = self.families[re.sub(r"_(count|sum)$", "", name)]
        [value] = [each.value for each in family.samples if each.name == name and each.labels == labels]
        return value

    def labels(self, name: str) -> tuple[str, ...]:
        """Return the labels that tell the series of a metric apart."""
        return tuple(sorted({label for sample in self.families[name].samples for label in sample.labels} - {"le"}))
