"""A real Prometheus reads a running cluster: rules are evaluated without an error, and dashboards have data."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from support.monitoring_files import FOLDER, dashboards, rules
from support.process import process
from support.scraping import metrics_address
from support.waiting import wait_until

SHOWN = {"metrics": "127.0.0.1:0", "log_format": "json"}
#: Panels of which a query finds nothing until calls are rejected, fail, or ask.
ONLY_THEN = {
    "Rejected batches",
    "Rejected by limits",
    "Rejected callers",
    "Calls without a valid key",
    "Dead letters",
    "In flight",
}


class Prometheus:
    """The Prometheus of a configuration, at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that it finds. Raises an error of HTTP if it takes the expression for none."""
        found: list[dict[str, Any]] = self._ask(f"query?{urlencode({'query': expression})}")["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules with their health, `unknown` before they were evaluated."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def answers(self) -> bool:
        """Return whether it is ready."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def _ask(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{what}", timeout=20) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus_of(cluster: LocalCluster, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration of the compose file, but for the addresses, and a tenth of its waits."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(FOLDER / path) for path in configuration["rule_files"]]
    job, own = configuration["scrape_configs"]
    job["tls_config"]["ca_file"] = str(cluster.data_dir / "secrets" / "server" / "ca.crt")
    servers = (*cluster.nameservers, *cluster.brokers)
    job["static_configs"] = [{"targets": [metrics_address(server.log_path) for server in servers]}]
    own["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    flags = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    with process("prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"):
        prometheus = Prometheus(port)
        wait_until(prometheus.answers, 60)
        yield prometheus


@contextmanager
def traffic(cluster: LocalCluster) -> Iterator[None]:
    """Send and read messages beside the block, some of them delayed."""
    over = threading.Event()

    def send() -> None:
        with Producer(cluster.nameserver, credentials=cluster.credentials) as producer:
            while not over.wait(0.2):
                producer.send_many(Message("orders", b"espresso") for _ in range(20))
                producer.send(Message("orders", b"tea", deliver_after_s=1))

    def read() -> None:
        with PullConsumer(cluster.nameserver, group="billing", credentials=cluster.credentials) as consumer:
            consumer.subscribe("orders")
            while not over.is_set():
                consumer.poll(0.2)
                consumer.commit()

    threads = [threading.Thread(target=work) for work in (send, read)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def queries(prometheus: Prometheus) -> dict[tuple[str, str], list[str]]:
    """Return the queries of each target of a panel, by title and expression: one, or one for each broker."""
    brokers = [each["metric"]["instance"] for each in prometheus.query("minimq_broker_info")]
    found = {}
    for dashboard in dashboards().values():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                text = re.sub(r"\$(topic|group)\b", ".*", target["expr"].replace("$__rate_interval", "5s"))
                text = text.replace("$job", "minimq")
                found[panel["title"], target["expr"]] = [text.replace("$instance", each) for each in brokers]
    return found


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus: apt-get install prometheus")
def test_rules_are_evaluated_and_dashboards_have_data(tmp_path: Path) -> None:
    options = {"broker_options": SHOWN, "nameserver_options": SHOWN}
    with LocalCluster(brokers=1, slaves=1, secure=True, **options) as cluster:  # type: ignore[arg-type]
        with Admin(cluster.nameserver, credentials=cluster.credentials) as admin:
            admin.create_topic("orders", queues=2)
        with traffic(cluster), prometheus_of(cluster, tmp_path) as prometheus:
            wait_until(lambda: len(prometheus.query('up{job="minimq"} == 1')) == 3, 60)
            wait_until(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()), 60)
            assert len(prometheus.rules()) == len(rules())
            lacking = queries(prometheus)

            def find_data() -> set[str]:
                for target, texts in list(lacking.items()):
                    if any(prometheus.query(text) for text in texts):
                        del lacking[target]
                return {title for title, _ in lacking} - ONLY_THEN

            assert {title for title, _ in lacking} > ONLY_THEN
            try:
                wait_until(lambda: not find_data(), 60)
            finally:
                print("targets without data:", sorted(lacking))
            assert [rule for rule in prometheus.rules() if rule.get("lastError")] == []
