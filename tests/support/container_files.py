"""The files in docker/, and the commands that they run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

import minimq_broker.__main__
import minimq_nameserver.__main__
from minimq_broker.assembly import BrokerOptions
from minimq_cli.main import main as minimq
from minimq_common.serving import daemon
from minimq_nameserver.options import NameServerOptions

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()

COMMANDS: dict[str, click.Command] = {
    "minimq-nameserver": minimq_nameserver.__main__.main,
    "minimq-broker": minimq_broker.__main__.main,
    "minimq": minimq,
}

#: As a parser of YAML gives it.
Document = dict[str, Any]


def variables(command: click.Command) -> set[str]:
    """Return the names of all variables that a command reads."""
    prefix = command.context_settings.get("auto_envvar_prefix")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {str(option.envvar or f"{prefix}_{option.name}".upper()) for option in options}


def started(
    command: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> BrokerOptions | NameServerOptions:
    """Run the command of a server up to the point where it would serve; return the options it has then."""
    begun: list[BrokerOptions | NameServerOptions] = []
    for module, server in ((minimq_broker.__main__, "Broker"), (minimq_nameserver.__main__, "NameServer")):
        monkeypatch.setattr(module, server, begun.append)
    monkeypatch.setattr(daemon, "run", lambda *_, **__: None)
    done = CliRunner().invoke(COMMANDS[command], [], env=environment)
    assert done.exit_code == 0, done.output
    (options,) = begun
    return options


def read_compose() -> Document:
    """Return the compose file, with the defaults of what may be substituted."""
    text = (ROOT / "docker" / "docker-compose.yml").read_text()
    document: Document = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return document


def read_manifests() -> dict[str, list[Document]]:
    """Return the documents of each file for Kubernetes by its name."""
    files = sorted((ROOT / "docker" / "kubernetes").glob("*.yaml"))
    return {file.name: list(yaml.safe_load_all(file.read_text())) for file in files}
