"""The files in docker/ agree with the commands they run, and the health check tells a server that serves from others.

They are read line by line, as YAML is not among what the tests need. `make compose-test` runs them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minimq import LocalCluster
from minimq.cli.main import main as minimq
from minimq_broker.__main__ import main as broker
from minimq_common import daemon
from minimq_nameserver.__main__ import main as nameserver

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker" / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
COMPOSE_TEST = (ROOT / "docker" / "compose-test.sh").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

COMMANDS: dict[str, click.Command] = {"minimq-nameserver": nameserver, "minimq-broker": broker, "minimq": minimq}


def services() -> dict[str, str]:
    """Return the text of each service by its name."""
    text = re.search(r"^services:\n(.*?)^\w", COMPOSE, re.MULTILINE | re.DOTALL)
    assert text
    parts = re.split(r"^  ([\w-]+):\n", text[1], flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def environment(service: str) -> dict[str, str]:
    """Return what a service sets, with the defaults of what may be substituted."""
    found = re.findall(r"^      (MINIMQ_\w+): (.+)$", services()[service], re.MULTILINE)
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in found}


def command_of(service: str) -> str:
    return {"n": "minimq-nameserver", "b": "minimq-broker", "c": "minimq"}[service[0]]


def variables(command: click.Command) -> set[str]:
    prefix = command.context_settings.get("auto_envvar_prefix")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {str(option.envvar or f"{prefix}_{option.name}".upper()) for option in options}


SERVERS = [name for name in services() if name != "client"]


def test_it_is_the_cluster_that_is_documented() -> None:
    assert list(services()) == ["nameserver-1", "nameserver-2", "broker-a", "broker-b", "client"]
    assert set(COMMANDS) == set(PYPROJECT["project"]["scripts"])
    assert set(re.findall(r"(?:command|entrypoint): \[([\w-]+)", COMPOSE)) == set(COMMANDS)


@pytest.mark.parametrize("service", services())
def test_a_service_sets_variables_that_its_command_has(service: str) -> None:
    assert environment(service)
    assert environment(service).keys() <= variables(COMMANDS[command_of(service)])


def test_the_image_sets_variables_that_a_command_has() -> None:
    known = set().union(*map(variables, COMMANDS.values()))
    check = (ROOT / "docker" / "healthcheck.py").read_text()
    assert {*re.findall(r"(MINIMQ_\w+)=", DOCKERFILE), *re.findall(r'"(MINIMQ_\w+)"', check)} <= known


@pytest.mark.parametrize("service", SERVERS)
def test_a_server_takes_the_values_that_a_service_gives(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(daemon, "run", lambda role, *_, **__: begun.append(role))
    done = CliRunner().invoke(COMMANDS[command_of(service)], [], env=environment(service))
    assert (done.exit_code, begun) == (0, [service.partition("-")[0]]), done.output


@pytest.mark.parametrize("service", SERVERS)
def test_a_port_is_the_same_inside_and_outside(service: str) -> None:
    given = environment(service)
    (listen,) = (value for name, value in given.items() if name.endswith("_LISTEN"))
    host, _, port = listen.partition(":")
    assert host == "0.0.0.0"
    assert f'ports: ["${{MINIMQ_PUBLISH_IP:-127.0.0.1}}:{port}:{port}"]' in services()[service]
    if service.startswith("broker"):
        alias = f"{service}.localhost"
        assert given["MINIMQ_BROKER_ADVERTISE"] == f"{alias}:{port}"
        assert f"aliases: [{alias}]" in services()[service]
        assert f'volumes: ["{service}:/var/lib/minimq"]' in services()[service]


def test_brokers_and_the_client_know_the_name_servers_where_they_listen() -> None:
    listening = {
        f"{name}:{environment(name)['MINIMQ_NAMESERVER_LISTEN'].partition(':')[2]}"
        for name in SERVERS
        if name.startswith("nameserver")
    }
    for service, variable in (
        ("broker-a", "MINIMQ_BROKER_NAMESERVER"),
        ("broker-b", "MINIMQ_BROKER_NAMESERVER"),
        ("client", "MINIMQ_NAMESERVER"),
    ):
        assert set(environment(service)[variable].split(",")) == listening


def test_what_may_be_substituted_is_documented() -> None:
    documented = set(re.findall(r"^\| `(MINIMQ_\w+)`", (ROOT / "docs" / "docker.md").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$\{(\w+)", COMPOSE)) == documented


def test_the_image_has_the_python_of_the_constraints() -> None:
    written_on = re.search(r"Python (3\.\d+)", (ROOT / "constraints.txt").read_text())
    assert written_on
    assert f"ARG PYTHON_IMAGE=python:{written_on[1]}-slim" in DOCKERFILE


def test_the_build_is_given_all_it_needs() -> None:
    given = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(r"^COPY ([\w/.]+\w) ", DOCKERFILE, re.MULTILINE)
    assert {package.split("/")[0] for package in packages} <= given
    assert {"pyproject.toml", *PYPROJECT["project"]["license-files"], *copied} <= given
    for path in given:
        assert (ROOT / path).exists(), path


def calls() -> list[list[str]]:
    """Return the arguments of each call of the command minimq in compose-test.sh."""
    commands = "|".join(minimq.list_commands(click.Context(minimq)))
    found = re.findall(rf"\b(?:minimq|inside) ((?:{commands}) (?:[\w./$\"-]+ ?)+)", COMPOSE_TEST)
    return [line.split() for line in found]


@pytest.mark.parametrize("arguments", calls(), ids=" ".join)
def test_the_script_calls_commands_with_flags_they_have(arguments: list[str]) -> None:
    command: click.Command = minimq
    words = iter(arguments)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), next(words))
        assert found
        command = found
    assert {word for word in words if word.startswith("-")} <= {
        flag for parameter in command.params for flag in parameter.opts
    }


def test_the_script_is_valid_and_does_the_whole_round() -> None:
    assert {words[0] for words in calls()} >= {"topic", "produce", "consume", "cluster"}
    subprocess.run(["bash", "-n", str(ROOT / "docker" / "compose-test.sh")], check=True)


def check_health(variable: str, address: str) -> subprocess.CompletedProcess[str]:
    listen = f"0.0.0.0:{address.rpartition(':')[2]}"
    return subprocess.run(
        [sys.executable, str(ROOT / "docker" / "healthcheck.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), variable: listen},
    )


@pytest.mark.system
def test_the_health_check_asks_the_server() -> None:
    with LocalCluster(brokers=1) as cluster:
        for variable, server in (
            ("MINIMQ_NAMESERVER_LISTEN", cluster.nameservers[0]),
            ("MINIMQ_BROKER_LISTEN", cluster.brokers[0]),
        ):
            healthy = check_health(variable, server.address)
            assert (healthy.returncode, healthy.stdout) == (0, "SERVING\n"), healthy.stderr
            server.kill()
            dead = check_health(variable, server.address)
            assert dead.returncode == 1
            assert "does not answer" in dead.stderr
            server.start()
