"""The files in docker/monitoring: promtool accepts the rules, alerts fire when they should, dashboards are whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from support.alert_cases import BROKER, CASES, LEADS, OTHER, Case
from support.cases import for_each
from support.container_files import Document, read_compose
from support.monitoring_files import FOLDER, ROOT, alerts, dashboards, read_rules

PROMETHEUS: Document = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
COMPOSE = read_compose()
SERVICES: dict[str, Document] = COMPOSE["services"]


def promtool(*arguments: str, cwd: Path = FOLDER) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=100, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    said = promtool("check", "config", "--syntax-only", "prometheus.yml")
    assert "SUCCESS" in said
    for path in sorted(FOLDER.glob("rules/*.yml")):
        assert f"SUCCESS: {len(read_rules(path))} rules found" in promtool("check", "rules", str(path))


def test_each_alert_has_a_case() -> None:
    assert [case.alert for case in CASES] == list(alerts())


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    """All metrics are there at once, so an alert that goes by those of another one is found out."""
    for step in {case.step for case in CASES}:
        cases = [case for case in CASES if case.step == step]
        series = {name: values for case in cases for name, values in case.series.items()}
        asked = [each for case in cases for each in expected(case)]
        test = {"interval": f"{step}m", "input_series": as_input(series), "alert_rule_test": asked}
        evaluate([test], tmp_path, step)


def test_topics_of_replicas_are_counted_once(tmp_path: Path) -> None:
    slave = 'job="minimq", instance="broker-a-1:9911"'
    series = {
        **LEADS,
        f'minimq_broker_role{{{slave}, role="master"}}': "0x60",
        f'minimq_broker_role{{{slave}, role="slave"}}': "1x60",
        f'minimq_broker_role{{{OTHER}, role="alone"}}': "1x60",
    }
    for labels, stored in ((BROKER, 5), (slave, 5), (OTHER, 2)):
        series[f'minimq_broker_topic_messages{{{labels}, topic="orders"}}'] = f"{stored}x60"
    name = "topic:minimq_broker_topic_messages:sum"
    sample = {"labels": f'{name}{{job="minimq", topic="orders"}}', "value": 7}
    query = {"expr": name, "eval_time": "30m", "exp_samples": [sample]}
    evaluate([{"interval": "1m", "input_series": as_input(series), "promql_expr_test": [query]}], tmp_path)


def as_input(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


def expected(case: Case) -> list[dict[str, Any]]:
    """Return what promtool shall see: the alert at one moment, and nothing at another."""
    rule = alerts()[case.alert]
    fired = {
        "exp_labels": {"job": "minimq", **rule["labels"], **case.labels},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    asked = [{"eval_time": f"{case.at * case.step}m", "alertname": case.alert, "exp_alerts": [fired]}]
    if case.quiet_at is not None:
        asked.append({"eval_time": f"{case.quiet_at * case.step}m", "alertname": case.alert, "exp_alerts": []})
    return asked


def evaluate(tests: list[dict[str, Any]], folder: Path, step: int = 1) -> None:
    rules = [str(path) for path in sorted(FOLDER.glob("rules/*.yml"))]
    groups = [group["name"] for path in rules for group in yaml.safe_load(Path(path).read_text())["groups"]]
    order = sorted(groups, key=lambda name: name != "minimq-recording")  # which others ask for
    document = {"rule_files": rules, "evaluation_interval": f"{step}m", "group_eval_order": order, "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", "tests.yml", cwd=folder)


@for_each("dashboard", dashboards().values())
def test_a_dashboard_can_be_read_without_its_author(dashboard: Document) -> None:
    assert dashboard["title"].startswith("minimq: ")
    assert dashboard["description"]
    chosen = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert chosen["datasource"]["type"] == "datasource"
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert all(each["datasource"] == source for name, each in chosen.items() if name != "datasource")
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len({panel["title"] for panel in panels}) == len(panels) >= 10
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith((".", "GROUP.", "list."))
        assert panel["fieldConfig"]["defaults"]["unit"] in {"short", "s", "bytes", "Bps", "cps", "percentunit"}
        assert panel["datasource"] == source
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"] == source
            assert 'job="$job"' in target["expr"]
            assert set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"} <= chosen.keys()


def test_the_dashboards_are_current() -> None:
    script = ROOT / "scripts" / "write_dashboards.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_prometheus_asks_every_server_where_it_shows_its_metrics() -> None:
    job = PROMETHEUS["scrape_configs"][0]
    targets = {target for group in job["static_configs"] for target in group["targets"]}
    shown = set()
    for name, service in SERVICES.items():
        given = service.get("environment", {})
        address = given.get("MINIMQ_BROKER_METRICS") or given.get("MINIMQ_NAMESERVER_METRICS")
        if address:
            shown.add(f"{name}:{address.partition(':')[2]}")
    assert targets == shown
    assert len(targets) == 6
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["prometheus"]["volumes"]}
    assert str(Path(job["tls_config"]["ca_file"]).parent) in mounted
    assert mounted["/etc/minimq/prometheus.yml"] == "./monitoring/prometheus.yml"
    assert mounted["/etc/minimq/rules"] == "./monitoring/rules"
