"""The files in docker/monitoring: promtool accepts the rules, alerts fire when they should, dashboards are whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from minimq_cli.main import main as command_minimq
from support.alert_cases import BROKER, CASES, LEADS, OTHER, Case
from support.cases import for_each
from support.container_files import Document, read_compose
from support.monitoring_files import FOLDER, GRAFANA, ROOT, alerts, dashboards, matched_labels, read_rules

PROMETHEUS: Document = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
COMPOSE = read_compose()
SERVICES: dict[str, Document] = COMPOSE["services"]
#: Groups of commands that runbooks name.
GROUPS = "topic|group|cluster|dlq|transaction|secure|user|access"


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


@for_each("name", alerts())
def test_an_alert_says_how_urgent_it_is_and_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert rule["annotations"].keys() == {"summary", "runbook"}
    runbook = rule["annotations"]["runbook"]
    assert len(runbook) > 60
    for page in re.findall(r"\bdocs/[\w-]+\.md\b", runbook):
        assert (ROOT / page).is_file()
    for group, name_ in re.findall(rf"\bminimq ({GROUPS}) ([\w-]+)", runbook):
        command = command_minimq.get_command(click.Context(command_minimq), group)
        assert isinstance(command, click.Group)
        assert name_ in command.commands
    assert set(re.findall(r"\bMinimq\w+", runbook)) <= alerts().keys()


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


def test_panels_do_not_cover_each_other() -> None:
    for dashboard in dashboards().values():
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            columns = range(place["x"], place["x"] + place["w"])
            cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
            assert not taken & cells, panel["title"]
            assert max(columns) < 24
            taken |= cells


def test_the_dashboards_are_current() -> None:
    script = ROOT / "scripts" / "write_dashboards.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/minimq.yml").read_text())["providers"]
    service, grafana = SERVICES["prometheus"], SERVICES["grafana"]
    assert source["type"] == "prometheus"
    assert source["url"] == f"http://prometheus:{service['ports'][0].rpartition(':')[2]}"
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in grafana["volumes"]}
    assert mounted["/etc/grafana/provisioning"] == "./monitoring/grafana/provisioning"
    assert mounted[provider["options"]["path"]] == "./monitoring/grafana/dashboards"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert (GRAFANA / "dashboards" / home.name).is_file()


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


def test_no_label_of_a_target_hides_that_of_a_metric() -> None:
    """Prometheus renames the metric's label then, and rules that ask for it, such as a role, never see it."""
    used = {label for labels in matched_labels().values() for label in labels}
    assert "role" in used
    for job in PROMETHEUS["scrape_configs"]:
        for group in job["static_configs"]:
            assert not group.get("labels", {}).keys() & (used - {"job", "instance"})


def test_what_monitoring_shows_is_for_this_machine_alone() -> None:
    for name in ("prometheus", "grafana"):
        assert all(port.startswith("127.0.0.1:") for port in SERVICES[name]["ports"])
        assert "secrets" not in str(SERVICES[name]["volumes"])
    assert all(SERVICES[name]["profiles"] == ["monitoring"] for name in ("trust", "prometheus", "grafana"))
    assert json.loads((GRAFANA / "dashboards/minimq-cluster.json").read_text())["uid"] == "minimq-cluster"
