"""The help of the command `minimq`."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from minimq.cli.console import console
from minimq.cli.main import main


def test_each_command_is_summarized_in_whole_words_on_a_terminal_of_80_columns() -> None:
    for path in _groups(main, ()):
        shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).stdout
        summaries = shown.partition("Commands:\n")[2].splitlines()
        assert summaries
        assert [line for line in summaries if line.endswith("...") or line.startswith("   ")] == [], path


def _groups(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _groups(command, (*path, name))


@pytest.mark.parametrize(("value", "port"), [("tcp://10.0.0.1:8080", 8088), ("8090", 8090)])
def test_a_variable_that_kubernetes_makes_of_a_service_is_no_port(
    value: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIMQ_CONSOLE_PORT", value)
    assert console.make_context("console", [], auto_envvar_prefix="MINIMQ_CONSOLE").params["port"] == str(port)
